#!/usr/bin/env bash
# Installs missing packages, builds everything and runs all tests.
#
#   bash tools/test.sh [CTEST OPTION...]    e.g. -L style, -R Philox, -V
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash tools/setup.sh
# Compiling and planning for GPUs is also tested with CUDA 12, if pip has it.
if [[ -n $(find build -name fusor_cuda.so -print -quit) ]]; then
  bash tools/install_cuda.sh --compiler build/cuda12 build/cuda12.log \
    >/dev/null || true
  export PATH="$PWD/build/cuda12/nvidia/cu13/bin:$PATH"  # nvdisasm
fi
# Several multi-threaded tests run at once. Waiting threads must not spin, or
# the tests take 10 times as long. Some tests wait for time-outs: another one
# runs meanwhile.
export OMP_WAIT_POLICY=passive
exec ctest --test-dir build --output-on-failure -j $(($(nproc) + 1)) "$@"
