#!/usr/bin/env bash
# rooms.sh [TREE [ARCHIVE]]: check that the rooms of src/ use only rooms below them.  Print one line for each
# violation; exit code 1 if there is any.
#
# A room is a folder with one header of its name.  A file may include all headers of its own room, and of each
# room below the header of that room's name.  If the static library ARCHIVE is given, the functions and tables that an object
# uses are checked, too, because natgrad.h declares functions of rooms above.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"
archive=${2:-}
export LC_ALL=C

# [room]="the rooms that it may use", lowest room first.
declare -A below=(
  [core]=""
  [linalg]="core"
  [comm]="core linalg"
  [option]="core"
  [kernel]="core linalg"
  [twosided]="core linalg kernel"
  [stat]="core linalg kernel comm option"
  [model]="core linalg kernel comm option stat"
  [family]="core linalg kernel twosided comm option stat model"
  [step]="core linalg kernel comm option stat model family"
  [setup]="core linalg kernel comm option stat model family step"
  [state]="core linalg kernel comm option stat model family step"
  [api]="core linalg kernel twosided comm option stat model family step setup state"
)
# No family uses another family; code for several families is declared in family.h.
families="adam kronecker muon rankone norm shampoo soap window"

bad=0
report_violation() {
  echo "$*"
  bad=1
}
may_use() { [[ $1 == "$2" || " ${below[$1]} " == *" $2 "* ]]; } # may_use ROOM OTHER

for folder in src/*/; do
  room=$(basename "$folder")
  [[ -v below[$room] ]] || report_violation "$folder: this room is not in scripts/rooms.sh: add the rooms that it may use"
done
for room in "${!below[@]}"; do
  if [[ -d src/$room && $room != api && ! -f src/$room/$room.h ]]; then
    report_violation "src/$room: its header $room.h is missing"
  fi
done

while read -r file; do
  known=
  for f in families $families; do [[ $(basename "$file") == "$f"* ]] && known=1; done
  [[ -n $known ]] || report_violation "$file: its name begins with no family of scripts/rooms.sh: add the family to 'families'"
done < <(find src/family -name '*.c' | sort)

family_of() { # FILE: print the family of a file of src/family/, or nothing
  local f
  for f in $families; do [[ $(basename "$1") == "$f"* ]] && echo "$f"; done || true
}

while IFS=: read -r file line included; do
  room=$(cut -d/ -f2 <<<"$file")
  [[ -v below[$room] ]] || continue
  other=${included%%/*}
  if [[ $included != */* ]]; then
    # include/ and base/ (for every room) and io/ (for rooms that access files) are no rooms
    case $included in
      natgrad.h | natgrad_mpi.h | clock.h | crc.h | meter.h | pages.h | pool.h | simd.h | words.h) ;;
      io.h | json.h | npy.h | part_files.h | safetensors.h) [[ $room == state ]] || report_violation "$file:$line: only state/ may use $included" ;;
      *) report_violation "$file:$line: \"$included\": write the room, as in \"$room/$included\"" ;;
    esac
    continue
  fi
  if ! may_use "$room" "$other"; then
    report_violation "$file:$line: $room/ may not use $other/ ($included); it may use: ${below[$room]:-nothing}"
  elif [[ $room != "$other" && $included != "$other/$other.h" ]]; then
    report_violation "$file:$line: of $other/ only $other.h is for other rooms ($included)"
  elif [[ $room == family && $other == family ]]; then
    mine=$(family_of "$file") theirs=$(family_of "$included")
    [[ -z $theirs || $mine == "$theirs" ]] || report_violation "$file:$line: ${mine:-it} includes another family ($included)"
  fi
done < <(grep -nE '^#include "' -r src --include='*.[ch]' |
  sed -nE 's/^([^:]+):([0-9]+):#include "([^"]+)".*/\1:\2:\3/p')

# Options, the engine, the program and the PyTorch front ask for traits (NG_TRAIT_..., ng_method_info.traits), not for a
# family by name.
while read -r line; do
  report_violation "$line: a family is named outside src/family/ and src/option/methods.c: ask for a trait"
done < <(grep -rnE '"(kronecker|rankone)"|\bfamily\b.*"(norm|window)"|ng_family_(adam|kronecker|muon|rankone|norm|shampoo|soap|window)\b' src cli python/natgrad \
  --include='*.[ch]' --include='*.py' 2>/dev/null | grep -vE '^src/(family/|option/methods\.c)' | cut -c1-100)

# Vectorised functions and parallel loops stand in kernel/ and linalg/ only (design D2). core/memory.c and api/context.c
# pass the thread pool to the queue. save.c and load.c of state/ overlap reading, writing and checksums of files in parallel
# loops without a queue.
loops_outside="
src/api/context.c src/core/memory.c
src/state/load.c src/state/save.c
"
loops='\b(NG_CLONES|ng_parallel|ng_queue_run)\b'
while IFS=: read -r file line _; do
  [[ " ${loops_outside//$'\n'/ } " == *" $file "* ]] ||
    report_violation "$file:$line: a vectorised function or a parallel loop: only kernel/ and linalg/ may have one"
done < <(grep -rnE "$loops" src --include='*.[ch]' | grep -vE '^src/(kernel/|linalg/|core/core\.h)' |
  grep -vE '^[^:]*:[0-9]+: *(/\*|\*)' || true)
for file in $loops_outside; do
  [[ ! -f $file ]] || grep -qE "$loops" "$file" ||
    report_violation "$file: has no vectorised function and no parallel loop: delete it from loops_outside in scripts/rooms.sh"
done

# The program: cli/common, then cli/nn and cli/data, then cli/train; the other commands in cli/*.c use all of them.
declare -A cli_below=([common]="" [nn]="common" [data]="common" [train]="common nn data")
while IFS=: read -r file line included; do
  room=$(cut -d/ -f2 <<<"$file")
  other=${included%%/*}
  if [[ $included == */* ]]; then
    [[ $other == "$room" || " ${cli_below[$room]} " == *" $other "* ]] ||
      report_violation "$file:$line: cli/$room/ may not use $included; it may use: ${cli_below[$room]:-nothing}"
  elif [[ ! -e cli/$room/$included && -e cli/$included ]]; then
    report_violation "$file:$line: cli/$room/ may not use cli/$included, which is above it"
  fi
done < <(grep -nE '^#include "' -r cli/common cli/nn cli/data cli/train --include='*.[ch]' 2>/dev/null |
  sed -nE 's/^([^:]+):([0-9]+):#include "([^"]+)".*/\1:\2:\3/p')

# File names are unique, so that the name of an object file determines its source.
while read -r twice; do
  report_violation "src: two files have the name $twice"
done < <(find src -name '*.c' -printf '%f\n' | sort | uniq -d)

if [[ -n $archive ]]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  # rooms: "object room"; symbols: "object type symbol"; used: "room object symbol"; defined: "symbol room"
  find src -name '*.c' | awk -F/ '{ print $3, $2 }' >"$work/rooms"
  nm -A "$archive" 2>/dev/null | sed -nE 's/^[^:]*:([^:]+\.c)\.o:[0-9a-f ]* ([A-Za-z]) (ng_[A-Za-z0-9_]+)$/\1 \2 \3/p' >"$work/symbols"
  [[ -s $work/symbols ]] || report_violation "$archive: no symbols could be read"
  awk '
    FNR == NR { room[$1] = $2; next }
    !($1 in room) { next }
    $2 != "U" { where[$3] = room[$1]; next }
    { print room[$1], $1, $3 > used }
    END { for (s in where) print s, where[s] > defined }
  ' used="$work/used" defined="$work/defined" "$work/rooms" "$work/symbols"
  while read -r room file symbol other; do
    may_use "$room" "$other" || report_violation "src/$room/$file uses $symbol of $other/, which is not below it"
  done < <(awk 'FNR == NR { where[$1] = $2; next } ($3 in where) && where[$3] != $1 { print $1, $2, $3, where[$3] }' \
    "$work/defined" "$work/used" | sort -u)
fi
exit $bad
