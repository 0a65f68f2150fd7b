#!/usr/bin/env bash
# Renders an HTML page to a picture in headless Chromium without network:
#
#     tests/tools/render_html.sh PAGE.html PICTURE.png [WIDTH [HEIGHT]]
#
# PAGE.html#layer1.0,fc opens these rows of a graph.
# Exits with 77 if Chromium is missing (Debian package `chromium`).
set -euo pipefail

if [ $# -lt 2 ]; then
  sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
browser=$(command -v chromium || command -v chromium-browser || true)
if [ -z "$browser" ]; then
  echo "render_html.sh: chromium is not installed" >&2
  exit 77
fi
page=$(realpath -- "${1%%#*}")
rows=${1#"${1%%#*}"}
picture=$2
profile=$(mktemp -d)
trap 'rm -rf "$profile"' EXIT
# Without its sandbox, which cannot be set up in many containers.
"$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars \
  --disable-dev-shm-usage --user-data-dir="$profile" \
  --host-resolver-rules='MAP * ~NOTFOUND' --virtual-time-budget=3000 \
  "--screenshot=$(realpath -- "$picture")" \
  "--window-size=${3:-1560},${4:-2400}" "file://$page$rows" 2>"$profile/log" || {
  cat "$profile/log" >&2
  exit 1
}
