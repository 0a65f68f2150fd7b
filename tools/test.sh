#!/usr/bin/env bash
# Sets up what is missing, builds everything and runs all tests.
#
#   bash tools/test.sh [CTEST OPTION...]    e.g. -L style, -R Philox, -V
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash tools/setup.sh
# Programs of several threads run side by side: those that wait for their own
# threads must not take the processor from others (tests took 10 times as long).
export OMP_WAIT_POLICY=passive
exec ctest --test-dir build --output-on-failure -j "$(nproc)" "$@"
