#!/usr/bin/env bash
# Sets up what is missing, builds everything and runs all tests.
#
#   bash tools/test.sh [CTEST OPTION...]    e.g. -L style, -R Philox, -V
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash tools/setup.sh
exec ctest --test-dir build --output-on-failure -j "$(nproc)" "$@"
