#!/usr/bin/env bash
# globals.sh ARCHIVE: the library has no variables: .data, .bss and the thread-local sections are empty.  Tables of
# constants are in .rodata or, if they have pointers, in .data.rel.ro.
set -euo pipefail
members=$(objdump -t "$1")
# Self-test: objdump lists functions, so an empty list below is a result.
grep -qE ' F \.text.* ng_version$' <<<"$members" || { echo "cannot read symbols of $1"; exit 1; }
# objdump -t: address, flags, section, a tab, size, name; the entry of a section has size 0.
found=$(awk '/file format/ { file = $1 }
  / (\.data|\.bss|\.tdata|\.tbss|\.data\.rel|\.data\.rel\.local|\*COM\*)\t0*[1-9a-f]/ { print file " " $NF }' <<<"$members")
if [[ -n $found ]]; then
  echo "variables that outlive a call (state belongs to a context):"
  echo "$found"
  exit 1
fi
