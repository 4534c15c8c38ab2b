#!/usr/bin/env bash
# sizes.sh [--record]: print the lines of C of every room beside their record in scripts/sizes.txt; exit 1 if a room is
# larger than its record or has no record.  A commit that needs a larger room raises the record and says why.
# --record writes the present sizes as records.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C
record=scripts/sizes.txt

# room lines: a room is a folder with C files
sizes() {
  find src include base io cuda cli tests fuzz examples bench -name '*.[ch]' -o -name '*.cu' | while read -r file; do
    echo "$(dirname "$file") $(wc -l <"$file")"
  done | awk '{ lines[$1] += $2 } END { for (room in lines) print room, lines[room] }' | sort
}

if [[ ${1:-} == --record ]]; then
  sizes >"$record"
  exit
elif [[ $# -gt 0 ]]; then
  echo "usage: scripts/sizes.sh [--record]" >&2
  exit 2
fi
awk '
  FNR == NR { record[$1] = $2; next }
  {
    printf "%-16s %6d of %6d\n", $1, $2, record[$1]
    total += $2
    if (!($1 in record)) { print "scripts/sizes.txt has no record for " $1; bad = 1 }
    else if ($2 > record[$1]) { print $1 ": " $2 - record[$1] " lines more than its record"; bad = 1 }
  }
  END { printf "%-16s %6d\n", "all", total; exit bad }' "$record" <(sizes)
