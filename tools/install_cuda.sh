#!/usr/bin/env bash
# Finds the CUDA toolkit to build the CUDA backend with, or installs pip's
# wheels.
#
#   bash tools/install_cuda.sh PREFIX [LOG [TOOLKIT]]
#
# Does nothing if a toolkit ($CUDA_HOME, $CUDA_PATH, TOOLKIT, default
# /usr/local/cuda) has NVRTC's and cuDNN's headers. Otherwise installs the
# wheels below into PREFIX, about 2 GiB, for CMake's CMAKE_PREFIX_PATH. Prints
# the value of that variable to stdout, empty with a toolkit, and one line of
# information to stderr. Writes pip's output to LOG.
set -euo pipefail

prefix=$(realpath -m -- "$1")
log=$(realpath -m -- "${2:-/dev/null}")
usual=${3:-/usr/local/cuda}
# Matching versions: cuDNN 9.19 for CUDA 13.0. nvidia-cudnn-frontend is not
# needed, because the backend calls cuDNN directly.
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
# During installation, disk space is needed for the wheels and their contents.
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
