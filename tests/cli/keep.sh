#!/usr/bin/env bash
# A run directory is one unit: files that are mixed, edited, renamed or missing are refused by name and left unchanged;
# files of others are not followed, waited for, replaced or removed.
. "$(dirname "$0")/lib.sh"
cd "$scratch" || exit 1
tiny=(--data synthetic:classes=3,features=6,train=64,test=16 --model mlp --batch 8 --epochs 2 --log-every 2
  --lr-schedule constant --quiet)
full=("${tiny[@]}" --mixup-alpha 1 --running-mixup --average-weights 0.25 --average-every 3 --checkpoint-every 6)
train() { expect "$1" "$2" "$natgrad" train "${@:3}"; }
listing() { (cd "$1" && find . -printf '%p %y %l\n' | sort && find . -type f -exec cksum {} + | sort -k 3); }
# again CHANGE...: copy `whole` and change the copy
again() {
  rm -rf run && cp -a whole run
  "$@"
  listing run >before
}
# wrong MESSAGE CHANGE...: after the change, --resume fails with the message and changes nothing
wrong() {
  again "${@:2}"
  train 2 "natgrad: $1" --out run --resume --epochs 3 --quiet
  diff before <(listing run) || fail "$1: refused, but changed"
}

train 0 '' "${full[@]}" --out whole
train 0 '' "${full[@]}" --out twin
train 0 '' "${full[@]}" --out other --seed 2
train 0 '' "${full[@]}" --out long
train 0 '' --out long --resume --epochs 3 --quiet
[[ $(cd whole && echo *) == 'average.safetensors checkpoint-16.safetensors config.json log.jsonl' ]] || fail "a run has $(ls whole)"

# Equal runs, also interrupted ones, have equal weights, states and memory.
bytes_of() { tail -1 "$1/log.jsonl" | grep -oE '"(network|precond)_bytes": [0-9]+'; }
train 0 '' "${full[@]}" --epochs 1 --out parts
cp parts/checkpoint-8.safetensors first
train 0 '' --out parts --resume --epochs 2 --checkpoint-every 8 --quiet
for run in twin parts; do
  checkpoints_match whole $run || fail "$run: another checkpoint"
  "$helper" same {whole,$run}/average.safetensors || fail "$run: another mean"
  [[ $(bytes_of whole) == "$(bytes_of $run)" && -n $(bytes_of whole) ]] || fail "$run: other memory"
done

f=run/checkpoint-16.safetensors
# Missing files.
wrong 'run/config.json: is missing, but the checkpoint run/checkpoint-16.safetensors needs it' rm run/config.json
wrong 'run/log.jsonl: No such file or directory' rm run/log.jsonl
wrong 'run/log.jsonl: has the end of the run, but run has no checkpoint; *' rm $f
# Truncated files.
for size in 0 5 200 -4; do wrong "$f: *" truncate -s $size $f; done
wrong 'run/log.jsonl: has 100 bytes, the checkpoint was made when the log had *' truncate -s 100 run/log.jsonl
zero() { printf '\0abc' >>"$1"; }
wrong 'run/config.json: contains a zero byte, expected text' zero run/config.json
# Edited files: metadata, each tensor, settings, the log.
wrong "$f: its metadata is damaged or was edited: *" sed -i 's/"skipped":"0"/"skipped":"1"/' $f
for tensor in fc2.weight natgrad.average natgrad.mixup.images natgrad.mixup.targets; do
  wrong "$f: tensor '$tensor' is damaged (its checksum differs)" "$helper" hurt $f $tensor
done
wrong "$f: natgrad.state: tensor '*' is damaged (its checksum differs)" "$helper" hurt $f natgrad.state
wrong "$f: natgrad.state: *" sed -i 's/\\"steps\\":16/\\"steps\\":15/' $f
wrong "run/config.json: batch: is '4', but '8' in $f; *" sed -i 's/"batch": 8/"batch": 4/' run/config.json
wrong "run/config.json: data: is 'mnist:*" sed -i 's/"data": "synthetic/"data": "mnist/' run/config.json
wrong "run/log.jsonl: does not belong to $f, or was edited: *" sed -i '1s/"step": 2/"step": 3/' run/log.jsonl
# Files of another run or another step.
wrong "run/*: * $f*" cp other/checkpoint-16.safetensors run
wrong "run/config.json: seed: is '2', but '1' in $f; *" cp other/config.json run
wrong "run/log.jsonl: does not belong to $f, or was edited: *" cp other/log.jsonl run
wrong 'run/log.jsonl: * checkpoint*' cp long/checkpoint-24.safetensors run
wrong 'run/checkpoint-8.safetensors: has the content of step 16, not of the step in its name' mv $f run/checkpoint-8.safetensors
wrong 'run/checkpoint-99.safetensors: *' cp whole/log.jsonl run/checkpoint-99.safetensors
# Links are not followed; a pipe or a folder is not a file.
mkdir elsewhere
for part in checkpoint-16.safetensors config.json log.jsonl; do
  link() { cp -a "run/$part" elsewhere && ln -sf "$scratch/elsewhere/$part" "run/$part"; }
  pipe() { rm "run/$part" && mkfifo "run/$part"; }
  folder() { rm "run/$part" && mkdir "run/$part"; }
  wrong "run/$part: is a symbolic link, expected a regular file" link
  wrong "run/$part: is a pipe, expected a regular file" pipe
  wrong "run/$part: is a folder, expected a regular file" folder
  cmp "whole/$part" "elsewhere/$part" || fail "$part: a link was followed"
done
# Files of an earlier version.
older() { rm $f && mkdir run/checkpoint && echo '{"schema": 2}' >run/checkpoint/latest.json; }
wrong 'run/checkpoint: is a checkpoint of natgrad 0.2, unsupported by this version; *' older

# A new run does not overwrite another run.
for part in config.json log.jsonl; do
  again rm run/$part
  train 2 "natgrad: *run*" "${tiny[@]}" --out run
  diff before <(listing run) || fail "$part: a run began over another"
done
again rm run/config.json run/log.jsonl
train 2 'natgrad: run/*: is missing, *' "${tiny[@]}" --out run
again eval 'printf "one\ntwo\n" >>run/log.jsonl'
train 0 '*' --out run --resume
! grep -q '^two' run/log.jsonl || fail 'run/log.jsonl: keeps lines after the checkpoint'

# The files of a killed save are removed: a temporary file, a part, the replaced checkpoint.  Other files stay.
strangers=(run/checkpoint-{3,best}.safetensors run/checkpoint-7.safetensors.bak run/checkpoint-8 run/{config.json,log.jsonl}.part run/notes)
rm -rf run && cp -a parts run && cp first run/checkpoint-8.safetensors
touch run/checkpoint-18.safetensors.natgrad-part run/checkpoint-18.natgrad-state{,.01234567-1of2}
for file in "${strangers[@]}"; do echo mine >"$file"; done
train 0 '*' --out run --resume --epochs 3 --quiet
for file in "${strangers[@]}"; do [[ $(cat "$file") == mine ]] || fail "$file is gone"; done
rm "${strangers[@]}"
[[ $(cd run && echo *) == 'average.safetensors checkpoint-24.safetensors config.json log.jsonl' ]] || fail "left over: $(ls run)"
checkpoints_match run long || fail "going on past what a killed save left: another checkpoint"

# A resumed run replaces DIR/average.safetensors only if it is a regular file; a new run refuses it.
for what in link folder; do
  again rm run/average.safetensors
  [[ $what == link ]] && ln -s ../whole/average.safetensors run/average.safetensors
  [[ $what == folder ]] && mkdir run/average.safetensors
  listing run >before
  train 2 'natgrad: run/average.safetensors: *' --out run --resume --epochs 3 --quiet
  diff before <(listing run) || fail "average.safetensors, $what: something changed"
done
mkdir fresh && cp whole/average.safetensors fresh
train 2 'natgrad: fresh/average.safetensors: exists and does not belong to this run; *' "${full[@]}" --out fresh
expect 2 'natgrad: --csv: whole/average.safetensors is the name of a file of a run' "$natgrad" export whole --csv whole/average.safetensors
expect 2 'natgrad: --out: whole/checkpoint-99.safetensors is the name of a file of a run' "$natgrad" prune whole --sparsity 0.5 \
  --out whole/checkpoint-99.safetensors

# A comparison removes only files that its runs wrote.
pair=(--data synthetic:classes=3,features=6,train=64,test=16 --model logreg --batch 8 --epochs 1 --seeds 1 --methods sgd --quiet)
expect 0 '*' "$natgrad" compare "${pair[@]}" --out pair
r=pair/runs/sgd-seed1
[[ $(echo "$r"/*) == "$r/config.json $r/log.jsonl" ]] || fail "compare leaves $(echo "$r"/*)"
rm $r/log.jsonl && echo mine | tee $r/notes $r/old.json >/dev/null
expect 0 '*' "$natgrad" compare "${pair[@]}" --out pair --resume
[[ $(cat $r/notes $r/old.json) == $'mine\nmine' && -e $r/log.jsonl ]] || fail "compare removed what is not its own"

# The results of a comparison are the logs of its runs; each log must belong to the settings in its folder.
pair+=(--grid lr=0.1,0.5)
pair[11]=sgd,adamw
expect 0 '*' "$natgrad" compare "${pair[@]}" --out results
expect 0 '*' "$natgrad" compare "${pair[@]}" --label-smoothing 0.1 --out stranger
r=results/runs/sgd-seed1 o=results/runs/adamw-seed1 t=results/tuning/sgd-1
wrong_result() { # MESSAGE CHANGE...
  rm -rf results && cp -a kept results && "${@:2}"
  listing results >before
  expect 2 "natgrad: $1" "$natgrad" compare "${pair[@]}" --out results --resume
  diff before <(listing results) || fail "$1: refused, but changed"
}
swap() { rm -r $2 && cp -a $1 $2; }
link() { rm -rf elsewhere/moved && mv "$1" elsewhere/moved && ln -s "$scratch/elsewhere/moved" "$1"; }
cp -a results kept
wrong_result "$r/log.jsonl: does not belong to config.json beside it, or was edited" sed -i '1s/"lr": [0-9.e-]*/"lr": 7.5/' $r/log.jsonl
wrong_result "$r/log.jsonl: does not belong to config.json beside it, or was edited" cp $o/log.jsonl $r/log.jsonl
wrong_result "$r/log.jsonl: does not belong to config.json beside it, or was edited" sed -i 's/"batch": 8/"batch": 4/' $r/config.json
wrong_result "$t/log.jsonl: does not belong to config.json beside it, or was edited" sed -i 's/"skipped": 0/"skipped": 1/' $t/log.jsonl
wrong_result "$r/config.json: *: is '*', but '*' in this comparison; *" swap $o $r
wrong_result "$t/config.json: lr: is '0.1*', but '0.5' in this comparison; *" swap results/tuning/sgd-0 $t
wrong_result "$r/config.json: label*: is '0.1', but '0' in this comparison; *" swap stranger/runs/sgd-seed1 $r
wrong_result "$r/log.jsonl: is a symbolic link, expected a regular file" link $r/log.jsonl
wrong_result "$r: is a symbolic link, expected a folder" link $r

mkfifo pipe.json
expect 2 'natgrad: pipe.json: not a regular file' timeout $patience "$natgrad" train "${tiny[@]}" --config pipe.json
expect 2 'natgrad: pipe.json: skipped, not a recording: *' timeout $patience "$natgrad" replay pipe.json

# Non-finite weights do not replace a checkpoint; --resume finds the previous one.
grow=(--data synthetic:classes=3,features=8,train=64,test=32 --model logreg --batch 16 --method sgd
  --lr-schedule constant --quiet)
grow_to() { "$natgrad" train "${grow[@]}" "$@"; }
expect 0 '' grow_to --lr 1e6 --weight-decay 1000 --steps 1 --out grown
expect 1 '*natgrad: diverged after step *; the checkpoint of step 1 stays' "$natgrad" train --out grown --resume --steps 12 --quiet
finite=$(newest_checkpoint grown)
"$helper" finite "$finite" || fail "$finite holds numbers that are not finite"

# Weights that diverge but are still finite do not replace a checkpoint either: they grow 2.2 times in every step (z^2 +
# 2.6 z + 0.9, momentum 0.9).
far='the mean loss since the last checkpoint, *, is above 1000 times the first loss'
expect 1 "*natgrad: diverged after step *: $far; the checkpoint of step * stays" grow_to --lr 0.01 --weight-decay 450 --checkpoint-every 4 --steps 50 --out far
stays=$(sed -nE 's/.*the checkpoint of step ([0-9]+) stays.*/\1/p' "$scratch/err")
[[ $(cd far && echo checkpoint*) == "checkpoint-$stays.safetensors" ]] || fail "$stays: $(ls far)"
[[ $(tail -1 far/log.jsonl) == *'"why": "diverged"'* ]] || fail "far: $(tail -1 far/log.jsonl)"

# Another number of threads: one line, and the run continues.
again true
expect 0 '*natgrad: --resume: run: build or machine differ (threads *, now 3), so the last bits of results may differ*' env NG_THREADS=3 "$natgrad" train --out run --resume
finish
