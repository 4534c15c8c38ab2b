#!/usr/bin/env bash
# Count phrases that hide the subject of a sentence, per 1,000 lines, one line per folder.  Fail if the total exceeds
# the record in scripts/english.txt.  A commit that lowers the total also lowers the record.
#   english.sh [TREE]          count                english.sh --list [TREE]    print every occurrence
set -euo pipefail

list=
if [[ ${1:-} == --list ]]; then list=1; shift; fi
cd "${1:-$(dirname "$0")/..}"

pattern='\b(what (is|it|they|of|was|comes|goes|stays|has|does|leaves)|those of|that of|nobody|of them|of it'
pattern+='|one that|who (has|keeps|waits)|let go|anew|is told|so is|and so|nor does)\b'

list_sources() { # FOLDER-OR-FILE: its files, one a line
  if [[ -f $1 ]]; then echo "$1"; return; fi
  [[ ! -d $1 ]] || find "$1" -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.py' -o -name '*.md' \) | LC_ALL=C sort
}
per_thousand() { awk -v found="$1" -v lines="$2" 'BEGIN { printf "%.2f", lines ? 1000 * found / lines : 0 }'; }

all_lines=0 all_found=0
for place in src include cli io base python docs README.md CONTRIBUTING.md; do
  mapfile -t file < <(list_sources "$place")
  ((${#file[@]})) || continue
  if [[ $list ]]; then
    grep -noiE "$pattern" "${file[@]}" /dev/null || true
    continue
  fi
  lines=$(cat "${file[@]}" | wc -l)
  found=$(cat "${file[@]}" | { grep -oiE "$pattern" || true; } | wc -l)
  printf '%-16s %6d lines %5d found %6s per 1,000\n' "$place" "$lines" "$found" "$(per_thousand "$found" "$lines")"
  all_lines=$((all_lines + lines)) all_found=$((all_found + found))
done
[[ -z $list ]] || exit 0
((all_lines)) || { echo "english.sh: no sources under $PWD" >&2; exit 1; }

now=$(per_thousand "$all_found" "$all_lines")
record=$(cat scripts/english.txt)
printf '%-16s %6d lines %5d found %6s per 1,000 (record %s)\n' total "$all_lines" "$all_found" "$now" "$record"
awk -v now="$now" -v record="$record" 'BEGIN { exit now > record }' || {
  echo "english.sh: $now per 1,000 lines, at most $record are accepted (scripts/english.sh --list prints them)" >&2
  exit 1
}
