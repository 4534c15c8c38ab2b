#!/usr/bin/env bash
# The option table, the command line, the environment, docs/options.md and the man page name the same options in
# the same order.
. "$(dirname "$0")/lib.sh"
cd "$NG_SOURCE_DIR"
file=$golden/kaisa-eigen-0.safetensors

same() { # WHAT FILE: against the table
  diff "$scratch/table" "$2" >"$scratch/diff" || fail "the option table and $1 differ: $(cat "$scratch/diff")"
}

sed -nE 's/^ *ROW\(([a-z_]+), .*/\1/p' src/option/option_table.c >"$scratch/table"
[[ $(wc -l <"$scratch/table") -ge 30 ]] || fail "the option table has $(wc -l <"$scratch/table") rows"

"$natgrad" info --options | awk '{ print $1 }' >"$scratch/info"
same "natgrad info --options" "$scratch/info"

# docs/options.md equals the output of the program, and has every option.
scripts/options_doc.sh "$natgrad" >"$scratch/options.md" || fail "scripts/options_doc.sh fails"
diff docs/options.md "$scratch/options.md" >"$scratch/diff" ||
  fail "docs/options.md is out of date, run scripts/options_doc.sh build/natgrad >docs/options.md: $(head -5 "$scratch/diff")"
sed -nE 's/^### (.*)$/\1/p' docs/options.md >"$scratch/page"
same "docs/options.md" "$scratch/page"

# The man page equals the output of the program, and has every option.
scripts/manpage.sh "$natgrad" >"$scratch/natgrad.1" || fail "scripts/manpage.sh fails"
diff docs/natgrad.1 "$scratch/natgrad.1" >"$scratch/diff" ||
  fail "docs/natgrad.1 is out of date, run scripts/manpage.sh build/natgrad >docs/natgrad.1: $(head -5 "$scratch/diff")"
sed -nE 's/^\.B \\-\\-(.*)$/\1/p' docs/natgrad.1 | sed -e 's/\\-/_/g' >"$scratch/page"
same "docs/natgrad.1" "$scratch/page"
if command -v groff >/dev/null; then
  groff -man -ww -Tutf8 docs/natgrad.1 >"$scratch/text" 2>"$scratch/warnings" || fail "groff fails"
  [[ ! -s $scratch/warnings ]] || fail "groff: $(head -3 "$scratch/warnings")"
fi

# The list of variables has each option and each variable that the sources read, and no name twice.
"$natgrad" info --environment >"$scratch/environment"
awk '{ print $1 }' "$scratch/environment" | sort >"$scratch/known"
[[ -z $(uniq -d "$scratch/known") ]] || fail "info --environment has twice: $(uniq -d "$scratch/known")"
if grep -vE '^[A-Z_*]+ +[^ ]' "$scratch/environment"; then fail "info --environment: a name without a meaning"; fi
{
  tr a-z A-Z <"$scratch/table" | sed 's/^/NG_/'
  grep -rhoE 'getenv\("(NG|NATGRAD)_[A-Z_]+"' src cli | cut -d'"' -f2
} | grep -v NATGRAD_STARTED_AGAIN | sort -u | comm -23 - "$scratch/known" >"$scratch/missing"
[[ ! -s $scratch/missing ]] || fail "info --environment lacks: $(tr '\n' ' ' <"$scratch/missing")"

# Each option is read from the command line and the environment: the value "(", which no option accepts, is refused with
# the name of the option.
while IFS= read -r name; do
  expect 2 "natgrad: *$name*" "$natgrad" replay "$file" "--$name" '('
  expect 2 "natgrad: *$name*" "$natgrad" replay "$file" "--${name//_/-}=("
  variable=NG_${name^^}
  expect 2 "natgrad: *$name*" env NG_LOG=none "$variable=(" "$natgrad" bench kfac --model resnet18 --batch 1
done <"$scratch/table"

run=(train --data synthetic --model logreg --epochs 1 --quiet)
# A variable that nothing reads is reported with the nearest known name; variables of the tests are not reported.
expect 0 '*environment: NG_DAMPNG is set, and nothing reads it; did you mean '"'NG_DAMPING'"'?*' \
  env NG_DAMPNG=0.5 "$natgrad" "${run[@]}"
NG_TEST_ANYTHING=1 "$natgrad" "${run[@]}" >"$scratch/out" 2>&1
if grep environment "$scratch/out"; then fail "a variable of the tests is complained about"; fi
finish
