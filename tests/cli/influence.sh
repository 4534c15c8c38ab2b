#!/usr/bin/env bash
# natgrad influence: tables and the file agree; a mislabelled row comes first; all invalid requests.
. "$(dirname "$0")/lib.sh"
cd "$scratch" || exit 1
influence() { expect "$1" "$2" "$natgrad" influence "${@:3}"; }

"$natgrad" train --data digits --model mlp --method sgd --lr 0.1 --epochs 10 --out run --quiet || fail "train"
cp -r run copy
influence 0 "influence on the mean loss of 360 test samples: 1437 training samples of digits, step 220${nl:=$'\n'}*largest*smallest*" \
  run --top 3 --out all.csv
[[ $(head -1 all.csv) == sample,label,score && $(wc -l <all.csv) == 1438 ]] || fail "all.csv: $(head -2 all.csv)"
[[ $(tail -n +2 all.csv | cut -d, -f1 | sort -n | uniq | wc -l) == 1437 ]] || fail "all.csv does not have every sample once"
tail -n +2 all.csv | cut -d, -f3 | sort -grc || fail "all.csv is not sorted"
# The rows of the tables: the first three of the file, and the last three from the end.
"$natgrad" influence run --top 3 >table.txt || fail "table"
diff <(awk '$1 ~ /^[0-9]+$/ { print $2 "," $3 }' table.txt) <({ sed -n 2,4p all.csv; tail -n 3 all.csv | tac; } | cut -d, -f1,2) ||
  fail "table and file differ"
"$natgrad" influence run --out all.json >/dev/null
diff all.csv <(python3 -c 'import json; print("sample,label,score"); [print("%d,%d,%.17g" % (x["sample"], x["label"], x["score"])) for x in json.load(open("all.json"))]') ||
  fail "all.json is not all.csv"
"$natgrad" influence run --out again.csv >/dev/null && cmp -s all.csv again.csv || fail "not the same again"
influence 0 'influence on test sample 359: 1437 training samples *' run --test 359 --damping 0.001 --top 1
influence 0 "self-influence: 1437 training samples *largest*" run --self --empirical
influence 0 'influence on test sample 359: 1437 training samples *' run --test 359 --ekfac --out ekfac.csv
"$natgrad" influence run --test 359 --out kfac.csv >/dev/null && ! cmp -s ekfac.csv kfac.csv || fail "--ekfac has no effect"
diff -r run copy || fail "the run was changed"

"$natgrad" train --data synthetic:classes=3,image=8x8x3,train=64,test=32 --model resnet20 --method sgd --batch 16 --steps 4 --augment none \
  --out norms --quiet || fail "train norms"
influence 0 '*: 64 training samples of synthetic, step 4*' norms --top 1

influence 2 'natgrad: influence: expected the folder of a run *'
influence 2 "natgrad: influence: unexpected argument 'copy'" run copy
influence 2 'natgrad: influence: --self and --test exclude each other' run --self --test 1
influence 2 'natgrad: --test: 360, but digits has 360 test samples, 0 to 359' run --test 360
influence 2 "natgrad: --test: '-1' *" run --test=-1
influence 2 "natgrad: --top: '0' *" run --top 0
influence 2 "natgrad: --damping: 'x' *" run --damping x
influence 2 'natgrad: --out: all.csv exists' run --out all.csv
influence 2 'natgrad: /nowhere/x: cannot be written: No such file or directory' run --out /nowhere/x
influence 2 'natgrad: nowhere: expected the folder of a run, but there is no config.json in it' nowhere
influence 2 'natgrad: influence: unknown option --tst; the nearest is --test' run --tst 1
checkpoint=$(newest_checkpoint copy)
cp "$checkpoint" whole
head -c 1000 whole >"$checkpoint"
influence 2 "natgrad: $checkpoint: *" copy --out x
rm "$checkpoint"
influence 2 'natgrad: copy: there is no checkpoint in it' copy --out x
printf 'It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness.' >words.txt
"$natgrad" train --data text:words.txt,context=8 --model gpt-char-8-1-1 --method sgd --batch 4 --steps 1 --out words --quiet || fail "train words"
influence 2 'natgrad: influence: text is a text, expected images or rows' words --out x
[[ ! -e x ]] || fail "bad input left a file"
finish
