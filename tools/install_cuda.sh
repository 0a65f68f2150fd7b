#!/usr/bin/env bash
# Finds the CUDA toolkit to build the CUDA backend with, or installs pip's
# wheels.
#
#   bash tools/install_cuda.sh [--compiler] PREFIX [LOG [TOOLKIT]]
#
# Does nothing if a toolkit ($CUDA_HOME, $CUDA_PATH, TOOLKIT, default
# /usr/local/cuda) has NVRTC's and cuDNN's headers, and the driver, if there is
# one, runs its code. Otherwise installs the wheels below into PREFIX, about
# 2 GiB, for CMake's CMAKE_PREFIX_PATH: of CUDA 12 for a driver for CUDA 12,
# else of CUDA 13. Prints the value of that variable to stdout, empty with a
# toolkit, and one line of information to stderr. Writes pip's output to LOG.
# --compiler: installs only the libraries of CUDA 12 that compile and plan, and
# nvdisasm, about 2 GiB, for tests that use them.
set -euo pipefail

compiler=
if [[ $1 == --compiler ]]; then
  compiler=1
  shift
fi
prefix=$(realpath -m -- "$1")
log=$(realpath -m -- "${2:-/dev/null}")
usual=${3:-/usr/local/cuda}
# Matching versions: cuDNN 9.19 for CUDA 13.0 or 12.9. nvidia-cudnn-frontend is
# not needed, because the backend calls cuDNN directly.
wheels_13=(
  nvidia-cublas==13.1.0.3
  nvidia-cuda-cccl==13.0.85
  nvidia-cuda-crt==13.0.88
  nvidia-cuda-nvrtc==13.0.88
  nvidia-cuda-runtime==13.0.96
  nvidia-cudnn-cu13==9.19.0.56
  nvidia-nccl-cu13==2.28.9
  nvidia-nvtx==13.0.85
)
wheels_12=(
  nvidia-cublas-cu12==12.9.1.4
  nvidia-cuda-cccl-cu12==12.9.27
  nvidia-cuda-nvcc-cu12==12.9.86
  nvidia-cuda-nvrtc-cu12==12.9.86
  nvidia-cuda-runtime-cu12==12.9.79
  nvidia-cudnn-cu12==9.19.0.56
  nvidia-nccl-cu12==2.28.9
  nvidia-nvtx-cu12==12.9.79
)
# During installation, disk space is needed for the wheels and their contents.
readonly needed_mib=4096

fail() {
  echo "error: cuda: $1" >&2
  exit 1
}

# Prints the newest CUDA version that the driver runs, "12.4"; nothing without
# a driver.
driver_version() {
  nvidia-smi 2>>"$log" | sed -n 's/.*CUDA Version: *\([0-9.]*\).*/\1/p' |
    head -n 1 || true
}

# Prints the folder of a toolkit of at most this CUDA version.
toolkit() {
  local folder version
  for folder in "${CUDA_HOME:-}" "${CUDA_PATH:-}" "$usual"; do
    if [[ -n $folder && -f $folder/include/nvrtc.h &&
      -f $folder/include/cudnn_graph.h ]]; then
      version=$(sed -n 's/^#define CUDA_VERSION \([0-9]*\)/\1/p' \
        "$folder/include/cuda.h" 2>>"$log" || true)
      ((${version:-0} / 1000 <= $1)) || continue
      echo "$folder"
      return
    fi
  done
}

search_path() {
  local folders=(cu13 cudnn nccl)
  if [[ -n $compiler ]]; then
    folders=(cublas cuda_nvrtc cudnn)
  elif ((cuda == 12)); then
    folders=(cublas cuda_cccl cuda_nvcc cuda_nvrtc cuda_runtime cudnn nccl nvtx)
  fi
  printf "$prefix/nvidia/%s;" "${folders[@]}" | sed 's/;$//'
}

version=$(driver_version)
cuda=13
if [[ -n $version ]]; then
  ((${version%%.*} >= 12)) ||
    fail "the driver is for CUDA $version, expected driver 525.60 (CUDA 12.0) or newer"
  ((${version%%.*} >= 13)) || cuda=12
fi
wheels=("${wheels_13[@]}")
((cuda == 13)) || wheels=("${wheels_12[@]}")
newest=${version%%.*}
found=$(toolkit "${newest:-99}")
if [[ -n $compiler ]]; then
  cuda=12
  found=
  wheels=(nvidia-cuda-nvdisasm==13.5.37)
  for wheel in "${wheels_12[@]}"; do
    [[ ! $wheel =~ cublas|nvrtc|cudnn ]] || wheels+=("$wheel")
  done
fi
if [[ -n $found ]]; then
  echo "cuda       toolkit in $found" >&2
  exit 0
fi
if [[ -f $prefix/wheels && $(<"$prefix/wheels") == "${wheels[*]}" ]]; then
  echo "cuda       ${#wheels[@]} wheels of CUDA $cuda in $prefix" >&2
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
echo "cuda       installing ${#wheels[@]} wheels of CUDA $cuda with pip ..." >&2
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
echo "cuda       ${#wheels[@]} wheels of CUDA $cuda in $prefix" >&2
search_path
