#!/usr/bin/env bash
# Set-up for quickstart.sh and test.sh: installs missing Debian packages,
# configures build/ and builds. Skips completed stages, so a second run needs
# neither network nor privileges.
#
#   bash tools/setup.sh [--cuda] [TARGET...]
#
# TARGET: what to build, default all, which includes the Python package. --cuda:
# build the CUDA backend; without a CUDA toolkit, pip's wheels are installed into
# build/cuda and used.
#
# The log of all stages is build/setup.log.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build
log=$build/setup.log
cuda=
if [[ ${1:-} == --cuda ]]; then
  cuda=1
  shift
fi

packages=(
  ccache
  clang-19
  clang-format
  cmake
  fish
  g++
  groff-base
  iproute2
  libbenchmark-dev
  libclang-rt-19-dev
  libcli11-dev
  libdnnl-dev
  libfmt-dev
  libgif-dev
  libgloo-dev
  libgmock-dev
  libgtest-dev
  libisal-dev
  libjpeg62-turbo-dev
  libonnx-dev
  libpng-dev
  libprotobuf-dev
  libwebp-dev
  libzip-dev
  libzstd-dev
  lld
  llvm-19-dev
  ninja-build
  nlohmann-json3-dev
  nodejs
  openmpi-bin
  patchelf
  pkg-config
  protobuf-compiler
  python3
  python3-dev
  python3-venv
  xz-utils
  zsh
)
# Packages of build/venv, which builds and tests the Python package.
python_packages=(
  ipykernel==6.29.5
  nanobind==3.1.0
  nbclient==0.10.2
  numpy==2.2.6
  scikit-build-core==1.1.2
)

# report STAGE TEXT: prints one line per stage, with the seconds it took.
stage_start=$SECONDS
report() {
  printf '%-10s %s (%d s)\n' "$1" "$2" $((SECONDS - stage_start)) >&2
  stage_start=$SECONDS
}

# fail STAGE REASON: prints the end of the log, then the reason as the last
# line.
fail() {
  if [[ -s $log ]]; then
    echo "----- last lines of $log" >&2
    tail -n 30 "$log" >&2
    echo "-----" >&2
  fi
  echo "error: $1: $2" >&2
  exit 1
}

missing_packages() {
  local installed
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' \
    "${packages[@]}" 2>/dev/null || true)
  local package
  for package in "${packages[@]}"; do
    grep -qxF "installed $package" <<<"$installed" || echo "$package"
  done
}

install_packages() {
  if ! command -v apt-get dpkg-query >/dev/null; then
    report packages "not a Debian system, none checked"
    return
  fi
  local missing
  mapfile -t missing < <(missing_packages)
  if ((${#missing[@]} == 0)); then
    report packages "all ${#packages[@]} present"
    return
  fi
  local as_root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null || fail packages \
      "neither root nor sudo; install these first: ${missing[*]}"
    as_root=(sudo)
  fi
  echo "packages   installing ${missing[*]} ..." >&2
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q
    -o DPkg::Lock::Timeout=300)
  "${apt[@]}" update >>"$log" 2>&1 || fail packages \
    "apt-get update failed: no network, or a package source is wrong"
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}" \
    >>"$log" 2>&1 || fail packages "apt-get could not install ${missing[*]}"
  report packages "installed ${#missing[@]} of ${#packages[@]}"
}

# The CMake prefix of CUDA if there is no toolkit. install_cuda.sh prints
# errors.
cuda_path=
install_cuda() {
  cuda_path=$(bash "$root/tools/install_cuda.sh" "$build/cuda" "$log") || exit 1
  stage_start=$SECONDS
}

# Creates build/venv, which CMake finds by its name.
install_python() {
  local venv=$build/venv
  if [[ -f $venv/installed &&
    $(<"$venv/installed") == "${python_packages[*]}" ]]; then
    report python "${#python_packages[@]} packages in build/venv"
    return
  fi
  { python3 -m venv "$venv" &&
    "$venv/bin/python" -m pip install -q "${python_packages[@]}"; } \
    >>"$log" 2>&1 ||
    fail python "pip could not install ${python_packages[*]} in build/venv"
  echo "${python_packages[*]}" >"$venv/installed"
  rm -f "$build/python.configured"
  report python "installed ${#python_packages[@]} packages in build/venv"
}

# Configures the first time, the first time with CUDA, the first time that
# build/venv is there, and when the tree was moved. Ninja reruns CMake when a
# CMakeLists.txt changes.
configure() {
  local options=()
  if [[ -f $build/CMakeCache.txt ]] && ! grep -qxF \
    "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$build/CMakeCache.txt"; then
    rm -rf "$build/CMakeCache.txt" "$build/CMakeFiles" "$build/build.ninja"
  fi
  if [[ -n $cuda ]]; then
    options+=(-DFUSOR_BACKENDS="cpu;cuda;null")
    [[ -z $cuda_path ]] || options+=("-DCMAKE_PREFIX_PATH=$cuda_path")
  fi
  if [[ -f $build/build.ninja && (-z $cuda || -f $build/cuda.configured) &&
    (! -d $build/venv || -f $build/python.configured) ]]; then
    report configure "build/ is configured"
    return
  fi
  (cd "$root" && cmake --preset default "${options[@]}") >>"$log" 2>&1 ||
    fail configure "CMake failed"
  [[ -z $cuda ]] || touch "$build/cuda.configured"
  [[ ! -d $build/venv ]] || touch "$build/python.configured"
  report configure "build/ (preset default${cuda:+, with CUDA})"
}

# Reads Ninja's output. On a terminal, shows how many of its steps are done.
show_progress() {
  local line
  while read -r line; do
    if [[ -t 2 && $line =~ ^\[([0-9]+/[0-9]+)\] ]]; then
      printf '\rbuild      %s ' "${BASH_REMATCH[1]}" >&2
    fi
  done
  [[ ! -t 2 ]] || printf '\r' >&2
}

build_targets() {
  local jobs
  jobs=$(nproc)
  local targets=("$@")
  echo "build      $jobs jobs ..." >&2
  local start_bytes
  start_bytes=$(stat -c %s "$log")
  cmake --build "$build" -j "$jobs" ${targets[@]:+--target "${targets[@]}"} \
    2>&1 | tee -a "$log" | show_progress || fail build "compiling failed"
  if tail -c +$((start_bytes + 1)) "$log" | grep -q 'no work to do'; then
    report build "up to date"
  else
    report build "done"
  fi
}

mkdir -p "$build"
: >"$log"
if [[ -n $cuda ]] && ! python3 -m pip --version >>"$log" 2>&1; then
  packages+=(python3-pip)
fi
install_packages
[[ -z $cuda ]] || install_cuda
# Programs alone need no Python.
(($# > 0)) || install_python
configure
build_targets "$@"
