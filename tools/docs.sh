#!/usr/bin/env bash
# Builds the documentation as a static site: the documents of the tree, the C++
# and Python interfaces from their sources, and the manual pages if they are
# built.
#
#   bash tools/docs.sh [OUT]
#
# OUT: a new folder or an earlier site, default build/docs/site. The pages need
# neither a server nor a network: open OUT/index.html. MkDocs is installed into
# build/docs/venv with pip, the first time.
#
# The log is build/docs/log.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build/docs
log=$build/log
out=$(realpath -m -- "${1:-$build/site}")
packages=(
  Markdown==3.11.3
  Pygments==2.21.0
  mkdocs==1.6.1
  mkdocs-material==9.8.2
  pymdown-extensions==13.1.2
)

# report STAGE TEXT: prints one line per stage, with the seconds it took.
stage_start=$SECONDS
report() {
  printf '%-10s %s (%d s)\n' "$1" "$2" $((SECONDS - stage_start)) >&2
  stage_start=$SECONDS
}

fail() {
  echo "error: $1: $2" >&2
  exit 1
}

install_packages() {
  local venv=$build/venv
  if [[ -f $venv/installed &&
    $(<"$venv/installed") == "${packages[*]}" ]]; then
    report python "${#packages[@]} packages in build/docs/venv"
    return
  fi
  { python3 -m venv --clear "$venv" &&
    "$venv/bin/python" -m pip install -q "${packages[@]}"; } >>"$log" 2>&1 ||
    fail python "pip could not install ${packages[*]} in build/docs/venv; see $log"
  echo "${packages[*]}" >"$venv/installed"
  report python "installed ${#packages[@]} packages in build/docs/venv"
}

# MkDocs removes what is in its output folder, so that must be a site.
check_out() {
  [[ ! -e $out || -f $out/search/search_index.js ||
    (-d $out && -z $(ls -A "$out")) ]] ||
    fail site "$out: expected a new or empty folder or an earlier site"
}

build_site() {
  if [[ ! -d $root/build/manual ]]; then
    report manual "left out: build/manual is not built (tools/setup.sh)"
  fi
  # A warning, such as a broken link, is an error.
  if ! NO_MKDOCS_2_WARNING=1 "$build/venv/bin/python" -B -m mkdocs build \
    --strict -f "$root/tools/docs/mkdocs.yml" -d "$out" >>"$log" 2>&1; then
    grep -E '^(WARNING|ERROR) |^  - ' "$log" >&2 || tail -n 30 "$log" >&2
    fail site "MkDocs could not build $out; see $log"
  fi
  report site "$(find "$out" -name '*.html' | wc -l) pages: $out/index.html"
}

(($# <= 1)) || fail arguments "expected at most one folder, got $#: $*"
mkdir -p "$build"
: >"$log"
check_out
install_packages
build_site
