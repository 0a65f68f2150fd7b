#!/usr/bin/env bash
# Runs the tests of a bundle (tools/bundle.sh packs this script into it).
#
#   bash run_tests.sh [GOOGLETEST OPTION...]
#
# Prints a line per program, the names of failed tests, and the totals as the
# last line: passed, failed, skipped (tests that need a GPU, if there is none).
# Exits with 1 if a test failed. Requires only bash and coreutils.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
scratch=${TMPDIR:-/tmp}/fusor-tests.$$
mkdir "$scratch" || exit 1
trap 'rm -rf "$scratch"' EXIT
export FUSOR_CACHE_DIR=${FUSOR_CACHE_DIR:-$scratch/cache}

# count TEXT WORD: prints the number in GoogleTest's summary line with WORD, or
# 0.
count() {
  local pattern="\[ +$2 +\] ([0-9]+) tests?[.,]"
  if [[ $1 =~ $pattern ]]; then
    echo "${BASH_REMATCH[1]}"
  else
    echo 0
  fi
}

nvrtc='cuda: NVRTC [0-9]'
[[ $("$here/bin/fusor" doctor 2>&1) =~ $nvrtc ]] && has_nvrtc=1 || has_nvrtc=0

passed=0 failed=0 skipped=0
for program in "$here"/tests/*_test; do
  [[ -x $program ]] || continue
  name=${program##*/}
  if [[ $name == nvrtc_test || $name == *_plan_test ]] && ((!has_nvrtc)); then
    echo "$name: skipped, NVRTC is missing (fusor doctor)"
    ((++skipped))
    continue
  fi
  # Tests on the emulated GPU compile kernels and need a compiler.
  "$program" --gtest_brief=0 --gtest_color=no --gtest_filter=-Emulated* "$@" \
    >"$scratch/out" 2>&1
  code=$?
  out=$(<"$scratch/out")
  p=$(count "$out" PASSED) f=$(count "$out" FAILED) s=$(count "$out" SKIPPED)
  ending=
  if ((code != 0 && f == 0)); then
    f=1
    ending=" (ended with $code)"
  fi
  echo "$name: $p passed, $f failed, $s skipped$ending"
  if ((f > 0)); then
    cp "$scratch/out" "${TMPDIR:-/tmp}/$name.log" &&
      echo "  output: ${TMPDIR:-/tmp}/$name.log"
    while IFS= read -r line; do
      [[ $line =~ ^"[  FAILED  ] "[A-Z][A-Za-z0-9_/.]*\.[^\ ]*$ ||
        $line == *': Failure' ]] && echo "  $line"
    done <"$scratch/out" | { mapfile -t -n 20 lines; printf '%s\n' "${lines[@]}"; }
  fi
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done
echo "all: $passed passed, $failed failed, $skipped skipped"
((passed + failed + skipped > 0)) || {
  echo "error: no tests in $here/tests" >&2
  exit 1
}
((failed == 0))
