#!/usr/bin/env bash
# Packs fusor for machines without a compiler or a package manager: one
# relocatable archive for x86-64 Linux with glibc 2.36 or newer.
#
#   bash tools/bundle.sh [--gpu] [ARCHIVE [BUILD]]
#
# ARCHIVE: build/fusor-VERSION-x86_64.tar.xz, with --gpu build/fusor-gpu-...
# BUILD: the build folder, default build/.
#
# The archive contains the programs, libfusor, the backends that were built,
# those of the tests below that were built (run_tests.sh runs them), the scripts
# that check and measure fusor on a GPU, and all linked libraries except glibc.
# With --gpu it contains only the CUDA backend, without LLVM and oneDNN, and is
# a sixth of the size.
#
# CUDA's libraries are not included. They are found at run time (fusor doctor
# prints where). If XZ_OPT is set, xz uses it in place of the default, which
# converts the addresses in x86 code first. The size limit is checked only for
# the default; -0 is fast but larger.
#
# Equal builds give equal archives.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Tests of the machine's GPU, CUDA libraries and CPU that need neither the tree
# nor a compiler.
tests=(gpu_test nvrtc_test conv_plan_test matmul_problem_test)
if [[ ${1:-} == --gpu ]]; then
  shift
  kind=fusor-gpu
  backends=(fusor_cuda.so)
  limit_mib=6
else
  kind=fusor
  backends=()
  tests+=(cpu_backend_test own_model_test)
  limit_mib=40
fi
build=$(realpath -m -- "${2:-$root/build}")

fail() {
  echo "error: bundle: $1" >&2
  exit 1
}

command -v xz >/dev/null || fail "no xz; run bash tools/setup.sh"
[[ -x $build/bin/fusor ]] ||
  fail "$build has no bin/fusor; run bash tools/setup.sh"

if ((${#backends[@]} == 0)); then
  backends=("$build"/lib/fusor/*.so)
  backends=("${backends[@]##*/}")
fi
for backend in "${backends[@]}"; do
  [[ -f $build/lib/fusor/$backend ]] ||
    fail "$build has no lib/fusor/$backend; run bash tools/setup.sh --cuda"
done

version=$("$build/bin/fusor" --version | sed -n "1s/^fusor //p")
name=$kind-$version-x86_64
archive=$(realpath -m -- "${1:-$build/$name.tar.xz}")
[[ -d $(dirname -- "$archive") ]] || fail "no folder $(dirname -- "$archive")"
staging=$(mktemp -d)
partial=
trap 'rm -rf "$staging" ${partial:+"$partial"}' EXIT
bundle=$staging/$name
mkdir -p "$bundle/bin" "$bundle/lib/fusor" "$bundle/tests"

cp "$build/bin/fusor" "$bundle/bin"
ln -s fusor "$bundle/bin/rn50"
for backend in "${backends[@]}"; do
  cp "$build/lib/fusor/$backend" "$bundle/lib/fusor"
done
for test in "${tests[@]}"; do
  [[ ! -x $build/bin/$test ]] || cp "$build/bin/$test" "$bundle/tests"
done
cp "$root/LICENSE" "$root/tools/run_tests.sh" "$bundle"
(cd "$root" &&
  for script in tests/benchmarks/{gpu,curves}/*.{py,md}; do
    [[ $script == *_test.py ]] || cp --parents "$script" "$bundle"
  done)
for text in README.md tools/fusor/*.md runtime/cuda/README.md; do
  (cd "$root" && cp --parents $text "$bundle")
done

bash "$root/tools/pack_libraries.sh" "$bundle" lib

# xz reads XZ_OPT, too.
filters=(--x86 --lzma2=preset=9e -T0)
[[ -z ${XZ_OPT:-} ]] || filters=()
partial=$(mktemp "$archive.XXXXXX")
tar -C "$staging" --sort=name --owner=0 --group=0 --numeric-owner \
  --mtime=@0 --mode=u+w,go=u-w -cf - "$name" | xz "${filters[@]}" >"$partial"
bytes=$(stat -c %s "$partial")
[[ -n ${XZ_OPT:-} ]] || ((bytes < limit_mib << 20)) ||
  fail "$((bytes >> 20)) MiB; expected less than $limit_mib"
chmod 644 "$partial"
mv -- "$partial" "$archive"
partial=
echo "$archive ($(((bytes + (1 << 19)) >> 20)) MiB)"
