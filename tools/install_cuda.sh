#!/usr/bin/env bash
# Finds what the CUDA backend is built against, or installs pip's wheels of it.
#
#   bash tools/install_cuda.sh PREFIX [LOG [TOOLKIT]]
#
# Where a toolkit is found ($CUDA_HOME, $CUDA_PATH, TOOLKIT: /usr/local/cuda) that
# has NVRTC's and cuDNN's headers, nothing is done. Otherwise the wheels below go
# into PREFIX, some 2 GiB, which CMake finds by CMAKE_PREFIX_PATH. stdout is that
# path's value, empty with a toolkit; one line about it goes to stderr. pip's
# output goes to LOG.
set -euo pipefail

prefix=$(realpath -m -- "$1")
log=$(realpath -m -- "${2:-/dev/null}")
usual=${3:-/usr/local/cuda}
# Of one release: cuDNN 9.19 for CUDA 13.0. The backend calls cuDNN's own
# interface, so nvidia-cudnn-frontend is not among them.
wheels=(
  nvidia-cublas==13.1.0.3
  nvidia-cuda-cccl==13.0.85
  nvidia-cuda-crt==13.0.88
  nvidia-cuda-nvrtc==13.0.88
  nvidia-cuda-runtime==13.0.96
  nvidia-cudnn-cu13==9.19.0.56
  nvidia-nccl-cu13==2.28.9
  nvidia-nvtx==13.0.85
)
# While they are unpacked, a wheel and its contents lie side by side.
readonly needed_mib=4096

fail() {
  echo "error: cuda: $1" >&2
  exit 1
}

toolkit() {
  local folder
  for folder in "${CUDA_HOME:-}" "${CUDA_PATH:-}" "$usual"; do
    if [[ -n $folder && -f $folder/include/nvrtc.h &&
      -f $folder/include/cudnn_graph.h ]]; then
      echo "$folder"
      return
    fi
  done
}

search_path() {
  printf '%s;' "$prefix"/nvidia/{cu13,cudnn,nccl} | sed 's/;$//'
}

found=$(toolkit)
if [[ -n $found ]]; then
  echo "cuda       toolkit in $found" >&2
  exit 0
fi
if [[ -f $prefix/wheels && $(<"$prefix/wheels") == "${wheels[*]}" ]]; then
  echo "cuda       ${#wheels[@]} wheels in $prefix" >&2
  search_path
  exit 0
fi

python3 -m pip --version >>"$log" 2>&1 ||
  fail "no CUDA toolkit, and no pip to install one: python3 -m pip does not run"
mkdir -p "$prefix" 2>>"$log" || fail "cannot make the folder $prefix"
trap 'rmdir "$prefix" 2>/dev/null || true' EXIT
free_mib=$(df --output=avail -BM -- "$prefix" | tail -n 1 | tr -dc 0-9)
((free_mib >= needed_mib)) ||
  fail "$prefix: $free_mib MiB free, expected at least $needed_mib for the wheels"
rm -rf "$prefix"
partial=$prefix.part
rm -rf "$partial"
trap 'rm -rf "$partial"' EXIT
echo "cuda       installing ${#wheels[@]} wheels with pip ..." >&2
status=0
python3 -m pip install --no-deps --only-binary=:all: --no-input \
  --disable-pip-version-check --no-compile --target "$partial" "${wheels[@]}" \
  >>"$log" 2>&1 || status=$?
if ((status != 0)); then
  reason=$(grep -s '^ERROR' "$log" | tail -n 1 || true)
  if grep -qs 'Connection\|NewConnectionError\|Temporary failure' "$log"; then
    reason="the package index cannot be reached: no network"
  fi
  fail "pip could not install the wheels: ${reason:-see $log}"
fi
printf '%s' "${wheels[*]}" >"$partial/wheels"
mv -- "$partial" "$prefix"
echo "cuda       ${#wheels[@]} wheels in $prefix" >&2
search_path
