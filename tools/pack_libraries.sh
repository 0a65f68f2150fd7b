#!/usr/bin/env bash
# Makes a folder of programs and libraries independent of the machine, for
# bundle.sh and the Python wheel.
#
#   bash tools/pack_libraries.sh FOLDER LIB
#
# Copies the libraries that the ELF files in FOLDER link to, transitively, to
# FOLDER/LIB. Strips all files and makes them find each other relative to their
# own folder. Only glibc is not copied; fails if a file needs a newer one than
# Debian 12 has.
set -euo pipefail

folder=$1
lib=$1/$2
readonly glibc=2.36
# glibc's libraries.
readonly of_glibc='^(ld-linux-x86-64|libc|libm|libdl|libpthread|librt|libresolv|libutil)\.so'

fail() {
  echo "error: pack_libraries: $1" >&2
  exit 1
}

for tool in patchelf strip; do
  command -v "$tool" >/dev/null || fail "no $tool; run bash tools/setup.sh"
done

objects() {
  local file
  find "$folder" -type f | while read -r file; do
    [[ $(head -c 4 -- "$file" | tr -d '\0') != $'\x7fELF' ]] || echo "$file"
  done
}

# Copies libraries as the loader finds them here.
mkdir -p "$lib"
mapfile -t objects < <(objects)
while read -r library path; do
  [[ $library =~ $of_glibc || -e $lib/$library ]] ||
    cp -L -- "$path" "$lib/$library"
done < <(ldd "${objects[@]}" | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}' |
  sort -u)

while read -r object; do
  chmod u+w "$object"
  strip --strip-unneeded "$object"
  patchelf --set-rpath \
    "\$ORIGIN/$(realpath --relative-to="$(dirname "$object")" "$lib")" "$object"
done < <(objects)

# Checks that no library is missing and none needs a newer glibc.
while read -r object; do
  for needed in $(patchelf --print-needed "$object"); do
    [[ $needed =~ $of_glibc || -e $lib/$needed ]] ||
      fail "${object#"$folder/"} needs $needed, which is not packed"
  done
  newest=$({ objdump -T "$object" | grep -o 'GLIBC_[0-9.]*' || true; } |
    sed 's/GLIBC_//' | sort -V | tail -n 1)
  [[ $(printf '%s\n' "$glibc" "${newest:-0}" | sort -V | tail -n 1) == "$glibc" ]] ||
    fail "${object#"$folder/"} needs glibc $newest; expected $glibc or older"
done < <(objects)
