#!/usr/bin/env bash
# Installs missing packages, builds everything and runs all tests.
#
#   bash tools/test.sh [CTEST OPTION...]    e.g. -L style, -R Philox, -V
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash tools/setup.sh
# Several multi-threaded tests run at once. Waiting threads must not spin, or
# the tests take 10 times as long.
export OMP_WAIT_POLICY=passive
exec ctest --test-dir build --output-on-failure -j "$(nproc)" "$@"
