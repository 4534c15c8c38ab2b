#!/usr/bin/env bash
# A checkpoint is one unit: what is mixed, edited, renamed or missing is refused by name and left as it is;
# nothing of somebody else's is followed, waited for, replaced or removed.
. "$(dirname "$0")/lib.sh"
cd "$scratch" || exit 1
tiny=(--data synthetic:classes=3,features=6,train=64,test=16 --model mlp --batch 8 --epochs 2 --log-every 2
  --lr-schedule constant --quiet)
train() { expect "$1" "$2" "$natgrad" train "${@:3}"; }
refused() { train 2 "natgrad: $1" --out run --resume --epochs 3 --quiet; }
listing() { (cd "$1" && find . -printf '%p %y %l\n' | sort && find . -type f -exec cksum {} + | sort -k 3); }
# again CHANGE...: a fresh copy of `whole`, changed; what is refused afterwards must not change it
again() {
  rm -rf run && cp -a whole run
  "$@"
  listing run >before
}
untouched() { diff before <(listing run) || fail "$1: refused, but changed"; }

train 0 '' "${tiny[@]}" --checkpoint-every 6 --out whole
train 0 '' "${tiny[@]}" --checkpoint-every 6 --out twin
train 0 '' "${tiny[@]}" --checkpoint-every 6 --out other --seed 2
c=run/checkpoint
[[ $(cd whole/checkpoint && echo *) == 'latest.json model-16.safetensors precond-16.safetensors' ]] || fail "$(ls whole/checkpoint)"

# The same run twice, the same weights: no times, no places in them.
for file in model precond; do
  cmp {whole,twin}/checkpoint/$file-16.safetensors || fail "$file differs between equal runs"
done
bytes_of() { tail -1 "$1/log.jsonl" | grep -oE '"(network|precond)_bytes": [0-9]+'; }
[[ $(bytes_of whole) == "$(bytes_of twin)" && -n $(bytes_of whole) ]] || fail "memory differs between equal runs"
train 0 '' "${tiny[@]}" --epochs 1 --out parts
train 0 '' --out parts --resume --epochs 2 --quiet
train 0 '' "${tiny[@]}" --out once
cmp {parts,once}/checkpoint/model-16.safetensors || fail "going on gives other weights"
[[ $(bytes_of parts) == "$(bytes_of once)" ]] || fail "memory depends on interruptions: $(bytes_of parts) $(bytes_of once)"

# Missing.
for file in model-16.safetensors precond-16.safetensors; do
  again rm $c/$file && refused "$c/$file: is missing, and belongs to the checkpoint of step 16" && untouched $file
done
again rm $c/latest.json && refused "$c/latest.json: is missing, but $c/* is there; put latest.json back, or *" && untouched latest
again rm run/config.json && refused 'run/config.json: is missing, and belongs to the checkpoint' && untouched config
again rm run/log.jsonl && refused 'run/log.jsonl: cannot be read: No such file or directory' && untouched log
again rm -r $c && refused '--resume: run/log.jsonl tells the end of the run, but run/checkpoint holds none; *' && untouched checkpoint

# In the way of the next checkpoint: said before the training.
for way in model.natgrad-next precond.natgrad-next.natgrad-part latest.json.natgrad-part; do
  again mkfifo $c/$way && refused "$c/$way: is a pipe, expected a regular file"
done

# Cut, empty, edited; a byte of the metadata of each.
zero() { printf '\0abc' >>"$1"; }
again zero run/config.json && refused 'run/config.json: holds a byte of value 0, expected text'
again zero $c/latest.json && refused "$c/latest.json: holds a byte of value 0, expected text"
shorten() { truncate -s "$2" "$1"; }
again shorten $c/latest.json 0 && refused "$c/latest.json: is empty; *" && untouched latest
again shorten $c/latest.json 200 && refused "$c/latest.json: expected a checkpoint's list of files, *" && untouched latest
again sed -i 's/"step": 16/"step": 17/' $c/latest.json && refused "$c/latest.json: is damaged or was edited: *" && untouched latest
again sed -i 's/"seconds": "0x1/"seconds": "0x2/' $c/latest.json && refused "$c/latest.json: is damaged or was edited: *" && untouched latest
again sed -i 's/"before": {/"before" : {/' $c/latest.json && refused "$c/latest.json: is damaged or was edited: *" && untouched latest
again sed -i 's/"epochs": 2/"epochs": 4/' run/config.json && refused 'run/config.json: does not belong to checkpoint/latest.json, or was edited: *' && untouched config
again sed -i 's/"data": "synthetic/"data": "mnist/' run/config.json && refused 'run/config.json: does not belong to *' && untouched config
again sed -i '1s/"step": 2/"step": 3/' run/log.jsonl && refused 'run/log.jsonl: does not belong to checkpoint/latest.json, or was edited: *' && untouched log
again shorten run/log.jsonl 100 && refused 'run/log.jsonl: has 100 bytes, the checkpoint was made when there were *' && untouched log
# What others added to the log of a run that has ended goes, and not without a word.
again eval 'printf "one\ntwo\n" >>run/log.jsonl'
train 0 '*run/log.jsonl: 2 lines after the checkpoint are no records of a run, and are cut off*' "${tiny[@]}" --out run --resume
! grep -q '^two' run/log.jsonl || fail 'run/log.jsonl: keeps lines of others'

again sed -i 's/"skipped":"0"/"skipped":"1"/' $c/model-16.safetensors && refused "$c/model-16.safetensors: does not belong to latest.json, or was edited: *" && untouched model
again sed -i 's/\\"steps\\":16/\\"steps\\":15/' $c/precond-16.safetensors && refused "$c/precond-16.safetensors: does not belong to latest.json, *" && untouched precond
for file in model precond; do
  again shorten $c/$file-16.safetensors -4 && refused "$c/$file-16.safetensors: does not belong to latest.json, *" && untouched $file
  again shorten $c/$file-16.safetensors 5 && refused "$c/$file-16.safetensors: cannot be read: no safetensors file, or cut short" && untouched $file
  flip() { printf '\x7f\x7f\x7f\x7f' | dd of=$1 bs=1 seek=$(($(stat -c %s "$1") - 8)) conv=notrunc 2>/dev/null; }
  again flip $c/$file-16.safetensors && refused "$c/$file-16.safetensors: *" && untouched $file
done

# Mixed: a part of another run; of another step of this run.
for part in checkpoint/model-16.safetensors checkpoint/precond-16.safetensors config.json log.jsonl checkpoint/latest.json; do
  again cp other/$part run/$part && refused 'run/*: does not belong to *latest.json, or was edited: *' && untouched $part
done
train 0 '' "${tiny[@]}" --checkpoint-every 6 --out long
train 0 '' --out long --resume --epochs 3 --quiet
again cp long/checkpoint/latest.json $c && refused "$c/model-24.safetensors: is missing, *" && untouched latest
again cp long/checkpoint/model-24.safetensors $c && refused "$c/model-24.safetensors: is newer than latest.json, which is of step 16; *" && untouched newer
again cp long/checkpoint/precond-24.safetensors $c/precond-16.safetensors && refused "$c/precond-16.safetensors: does not belong to *" && untouched renamed
again mv $c/model-16.safetensors $c/model-8.safetensors && refused "$c/model-16.safetensors: is missing, *" && untouched renamed

# A run that begins does not write over a checkpoint either.
again rm run/config.json run/log.jsonl && train 2 "natgrad: run/config.json: is missing, *" "${tiny[@]}" --out run && untouched begins
rm $c/latest.json && listing run >before && train 2 "natgrad: $c/latest.json: is missing, but *" "${tiny[@]}" --out run && untouched begins

# Killed between latest.json and the names: the names are given.
again mv $c/model-16.safetensors $c/model.natgrad-next && mv $c/precond-16.safetensors $c/precond.natgrad-next
train 0 'run: had its 16 steps already; *' --out run --resume
cmp {whole,run}/checkpoint/model-16.safetensors && cmp {whole,run}/checkpoint/precond-16.safetensors || fail "not named"
[[ ! -e $c/model.natgrad-next && ! -e $c/precond.natgrad-next ]] || fail "left over: $(ls $c)"
# ... or before the pair that was replaced was removed, and with a save that came to nothing.
again cp long/checkpoint/model-24.safetensors $c/model.natgrad-next && touch $c/{model.natgrad-next.natgrad-part,precond.natgrad-next,latest.json.natgrad-part}
train 0 'run: had its 16 steps already; *' --out run --resume
[[ $(cd $c && echo *) == 'latest.json model-16.safetensors precond-16.safetensors' ]] || fail "left over: $(ls $c)"

# What is somebody else's stays, whatever its name; a name that is taken is not taken over.
again mkdir $c/model-3.safetensors.d && echo mine | tee $c/{model-3,precond-4,model-best,model-7.safetensors.bak}.safetensors >run/notes
train 0 '*' --out run --resume --epochs 3 --quiet
for file in $c/{model-3,precond-4,model-best,model-7.safetensors.bak}.safetensors run/notes; do
  [[ $(cat "$file") == mine ]] || fail "$file is gone"
done
[[ ! -e $c/model-16.safetensors && -e $c/model-24.safetensors ]] || fail "the pair before stays: $(ls $c)"

# With averaged weights their mean is a part, too.
average=("${tiny[@]}" --average-weights 0.25 --average-every 3)
train 0 '' "${average[@]}" --checkpoint-every 6 --out mean
a=mean/checkpoint/average-16.safetensors
[[ $(cd mean/checkpoint && echo *) == 'average-16.safetensors latest.json model-16.safetensors precond-16.safetensors' ]] || fail "$(ls mean/checkpoint)"
[[ -f mean/average.safetensors ]] || fail "no mean of the weights: $(ls mean)"
train 0 '' "${average[@]}" --ranks 2 --epochs 1 --out pair
train 0 '' --out pair --ranks 2 --resume --epochs 2 --quiet
train 0 '' "${average[@]}" --ranks 2 --out both
cmp {pair,both}/average.safetensors || fail "going on with two ranks gives another mean"
# What stands in the place of DIR/average.safetensors is replaced if it is such a mean, else kept and told of.
cp -a mean kept && cp kept/average.safetensors good && cp good linked
for what in mine other link folder; do
  rm -rf kept/average.safetensors
  [[ $what == mine ]] && echo mine >kept/average.safetensors
  [[ $what == other ]] && cp kept/checkpoint/model-16.safetensors kept/average.safetensors
  [[ $what == link ]] && ln -s ../linked kept/average.safetensors
  [[ $what == folder ]] && mkdir kept/average.safetensors
  find kept linked -type f -exec cksum {} + 2>/dev/null | sort >before
  train 2 'natgrad: kept/average.safetensors: is *' --out kept --resume --epochs 3 --quiet
  find kept linked -type f -exec cksum {} + 2>/dev/null | sort | diff before - || fail "$what: something changed"
done
rm -rf kept/average.safetensors && cp good kept/average.safetensors
mkdir fresh && cp good fresh/average.safetensors
train 2 'natgrad: fresh/average.safetensors: is there already and is none of this run*' "${average[@]}" --out fresh
[[ $(ls fresh) == average.safetensors ]] || fail "fresh: $(ls fresh)"
expect 2 'natgrad: --csv: kept/average.safetensors is a part of the run itself' "$natgrad" export kept --csv kept/average.safetensors
expect 2 "natgrad: --out: kept/checkpoint/model-99.safetensors is among the run's checkpoints" "$natgrad" prune kept --sparsity 0.5 \
  --out kept/checkpoint/model-99.safetensors
train 0 '' --out kept --resume --epochs 3 --quiet
cmp -s good kept/average.safetensors && fail "the mean of three epochs is that of two"
mv $a gone && train 2 "natgrad: $a: is missing, and belongs to the checkpoint of step 16" --out mean --resume
mv gone $a && flip $a && train 2 "natgrad: $a: tensor 'mean' is damaged (its checksum differs)" --out mean --resume
rm -rf mean pair both fresh good linked before kept

# With mixup the batch before is a part, too: three files, each as above.
mv whole plain && rm -rf other long once parts
mixup=("${tiny[@]}" --mixup-alpha 1 --running-mixup)
train 0 '' "${mixup[@]}" --checkpoint-every 6 --out whole
train 0 '' "${mixup[@]}" --out other --seed 2
[[ $(cd whole/checkpoint && echo *) == 'latest.json mixup-16.safetensors model-16.safetensors precond-16.safetensors' ]] || fail "$(ls whole/checkpoint)"
train 0 '' "${mixup[@]}" --epochs 1 --out parts
train 0 '' --out parts --resume --epochs 2 --quiet
for file in model precond mixup; do
  cmp {whole,parts}/checkpoint/$file-16.safetensors || fail "going on with mixup gives another $file"
done
cp -a whole long && train 0 '' --out long --resume --epochs 3 --quiet
[[ $(cd long/checkpoint && echo *) == 'latest.json mixup-24.safetensors model-24.safetensors precond-24.safetensors' ]] || fail "left over: $(ls long/checkpoint)"
m=$c/mixup-16.safetensors
again rm $m && refused "$m: is missing, and belongs to the checkpoint of step 16" && untouched mixup
again shorten $m -4 && refused "$m: does not belong to latest.json, or was edited: *" && untouched mixup
again shorten $m 5 && refused "$m: cannot be read: no safetensors file, or cut short" && untouched mixup
again sed -i 's/"crc32 images":"./"crc32 images":"x/' $m && refused "$m: does not belong to latest.json, or was edited: *" && untouched mixup
again flip $m && refused "$m: tensor 'targets' is damaged (its checksum differs)" && untouched mixup
again cp other/checkpoint/mixup-16.safetensors $m && refused "$m: does not belong to latest.json, or was edited: *" && untouched mixup
again cp long/checkpoint/mixup-24.safetensors $m && refused "$m: does not belong to latest.json, or was edited: *" && untouched mixup
again cp long/checkpoint/mixup-24.safetensors $c && refused "$c/mixup-24.safetensors: is newer than latest.json, which is of step 16; *" && untouched mixup
again mv $m $c/mixup-8.safetensors && refused "$m: is missing, *" && untouched mixup
echo mine >notes
again ln -sf "$scratch/notes" $m && refused "$m: is a symbolic link, expected a regular file" && untouched mixup
again ln -s "$scratch/notes" $c/mixup.natgrad-next && refused "$c/mixup.natgrad-next: is a symbolic link, expected a regular file"
again cp plain/checkpoint/latest.json $c && refused "$c/*-16.safetensors: does not belong to latest.json, *" && untouched mixup
# Left out of latest.json by somebody who knows its checksum.
forge() {
  sed '/^ "mixup": {/,/^ },/d' $c/latest.json | head -n -2 | head -c -2 >forged
  printf '%s,\n "crc32": "%s"\n}\n' "$(cat forged)" "$(gzip -c forged | tail -c 8 | od -An -t x4 -N 4 | tr -d ' ')" >$c/latest.json
}
again forge && refused "$c/latest.json: is without mixup, this run with it" && untouched forged
# Killed before the names, or in a save that came to nothing; not named mixup by us.
again mv $m $c/mixup.natgrad-next
train 0 'run: had its 16 steps already; *' --out run --resume
cmp {whole,run}/checkpoint/mixup-16.safetensors || fail "mixup.natgrad-next was not named"
again touch $c/mixup.natgrad-next $c/mixup.natgrad-next.natgrad-part && echo mine >$c/mixup-4.safetensors
train 0 'run: had its 16 steps already; *' --out run --resume
[[ $(cd $c && echo *) == 'latest.json mixup-16.safetensors mixup-4.safetensors model-16.safetensors precond-16.safetensors' ]] || fail "left over: $(ls $c)"
rm -rf whole && mv plain whole

# A comparison removes no more than its runs wrote.
pair=(--data synthetic:classes=3,features=6,train=64,test=16 --model logreg --batch 8 --epochs 1 --seeds 1 --methods sgd --quiet)
expect 0 '*' "$natgrad" compare "${pair[@]}" --out pair
r=pair/runs/sgd-seed1
[[ $(echo "$r"/*) == "$r/config.json $r/log.jsonl $r/result.json" ]] || fail "compare leaves $(echo "$r"/*)"
rm $r/result.json && mkdir $r/checkpoint && echo mine | tee $r/notes $r/old.json $r/checkpoint/weights >/dev/null
expect 0 '*' "$natgrad" compare "${pair[@]}" --out pair --resume
[[ $(cat $r/notes $r/old.json $r/checkpoint/weights) == $'mine\nmine\nmine' && -e $r/result.json ]] || fail "compare removed what is not its own"
rm $r/result.json && touch $r/checkpoint/model-8.safetensors
expect 2 "natgrad: $r/checkpoint/latest.json: is missing, but $r/checkpoint/model-8.safetensors is there; *" "$natgrad" compare "${pair[@]}" --out pair --resume

# Files of others may have any name but those.
cp -a whole run2
notes=(run2/checkpoint/{model.next,model.next.part,precond.next,precond.next.part,mixup.next,latest.json.part,latest.json.tmp}
  run2/{config.json.part,log.jsonl.part})
for note in "${notes[@]}"; do echo "mine: $note" >"$note"; done
train 0 '*' --out run2 --resume --epochs 3 --quiet
for note in "${notes[@]}"; do [[ $(cat "$note") == "mine: $note" ]] || fail "$note is not what it was"; done
echo mine >y.csv.part && expect 0 '' "$natgrad" export run2 --csv y.csv
[[ $(cat y.csv.part) == mine && -s y.csv ]] || fail "y.csv.part is not what it was"

# Its results belong to it, each to its run, and to the log and the settings beside it.
pair+=(--grid lr=0.1,0.5)
pair[11]=sgd,adamw
expect 0 '*' "$natgrad" compare "${pair[@]}" --out results
expect 0 '*' "$natgrad" compare "${pair[@]}" --label-smoothing 0.1 --out stranger
r=results/runs/sgd-seed1 o=results/runs/adamw-seed1
wrong() { # MESSAGE CHANGE...
  rm -rf results && cp -a kept results && "${@:2}"
  listing results >before
  expect 2 "natgrad: $1" "$natgrad" compare "${pair[@]}" --out results --resume
  diff before <(listing results) || fail "$1: refused, but changed"
}
cp -a results kept
wrong "$r/result.json: is damaged or was edited: *" sed -i 's/"test_accuracy": 0/"test_accuracy": 1/' $r/result.json
wrong "$r/result.json: is damaged or was edited: *" sed -i 's/"steps": /"steps": 1/' $r/result.json
wrong "$r/result.json: expected an object with \"schema\": 2; schema 1, *" sed -i 's/"schema": 2/"schema": 1/' $r/result.json
wrong "$r/result.json: is the result 'runs/adamw-seed1/result.json', *" cp $o/result.json $r/result.json
wrong "$r/result.json: belongs to another comparison *" cp stranger/runs/sgd-seed1/result.json $r/result.json
wrong "$r/log.jsonl: does not belong to result.json beside it, or was edited" sed -i '1s/"lr": [0-9.e-]*/"lr": 7.5/' $r/log.jsonl
wrong "$r/log.jsonl: does not belong to result.json beside it, or was edited" cp $o/log.jsonl $r/log.jsonl
wrong "$r/log.jsonl: cannot be read: No such file or directory" rm $r/log.jsonl
wrong "$r/config.json: does not belong to result.json beside it, or was edited" sed -i 's/"batch": 8/"batch": 4/' $r/config.json
wrong "results/tuning/sgd-1.json: is damaged or was edited: *" sed -i 's/"steps": /"steps": 1/' results/tuning/sgd-1.json
wrong "results/tuning/sgd-1.json: is the result 'tuning/sgd-0.json', *" cp results/tuning/sgd-0.json results/tuning/sgd-1.json
wrong "results/tuning/sgd-1.json: belongs to another comparison *" cp stranger/tuning/sgd-1.json results/tuning/sgd-1.json
wrong 'results/compare.json: is damaged or was edited: *' sed -i 's/"sgd.lr": "/&1/' results/compare.json
link() { mv $r/result.json elsewhere.json && ln -s "$scratch/elsewhere.json" $r/result.json; }
wrong "$r/result.json: is a symbolic link, expected a regular file" link

# Links are not followed, and nothing but files is opened.
mkdir elsewhere
for part in checkpoint/latest.json checkpoint/model-16.safetensors checkpoint/precond-16.safetensors config.json log.jsonl; do
  link() { mv "run/$part" "elsewhere/$(basename "$part")" && ln -s "$scratch/elsewhere/$(basename "$part")" "run/$part"; }
  again link && listing elsewhere >elsewhere.before
  refused "run/$part: is a symbolic link, expected a regular file" && untouched "$part"
  diff elsewhere.before <(listing elsewhere) || fail "$part: a link was followed"
  pipe() { rm "run/$part" && mkfifo "run/$part"; }
  again pipe && expect 2 "natgrad: run/$part: is a pipe, expected a regular file" timeout $patience "$natgrad" train --out run --resume --quiet && untouched "$part"
  folder() { rm "run/$part" && mkdir "run/$part"; }
  again folder && refused "run/$part: is a folder, expected a regular file" && untouched "$part"
done
for name in model.natgrad-next precond.natgrad-next latest.json.natgrad-part config.json.natgrad-part; do
  where=$c/$name
  [[ $name == config* ]] && where=run/$name
  echo mine >notes
  again ln -s "$scratch/notes" "$where"
  refused "$where: is a symbolic link, expected a regular file"
  [[ $(cat notes) == mine && -L $where && -e $c/model-16.safetensors ]] || fail "$name: a link was followed"
done
again ln -s "$scratch/notes" $c/model.natgrad-next.natgrad-part
refused "$c/model.natgrad-next.natgrad-part: is a symbolic link, expected a regular file"
[[ $(cat notes) == mine && -e $c/model-16.safetensors ]] || fail "model.natgrad-next.natgrad-part: a link was followed"
away() { mv $c elsewhere/checkpoint && ln -s "$scratch/elsewhere/checkpoint" $c; }
again away && refused "$c: is a symbolic link, expected a folder" && untouched checkpoint
mkfifo pipe.json
expect 2 'natgrad: pipe.json: cannot be read: not a regular file' timeout $patience "$natgrad" train "${tiny[@]}" --config pipe.json
expect 2 'natgrad: pipe.json: not a regular file' timeout $patience "$natgrad" replay pipe.json
mkdir odd && mkfifo odd/case.json
expect 2 'natgrad: odd/case.json: not a regular file' timeout $patience "$natgrad" replay odd
mkdir unpacked && "$helper" unpack "$golden/kaisa-eigen-0.safetensors" unpacked || fail "unpack"
expect 2 'natgrad: pipe.json: is there and is not a regular file' timeout $patience "$natgrad" pack unpacked pipe.json
array=$(echo unpacked/*.npy | cut -d ' ' -f 1)
rm "$array" && mkfifo "$array"
expect 2 "natgrad: $array: not a regular file" timeout $patience "$natgrad" replay unpacked

# Weights that are lost do not replace a checkpoint; --resume finds the one before.
grow=(--data synthetic:classes=3,features=8,train=64,test=32 --model logreg --batch 16 --method sgd
  --lr-schedule constant --quiet)
grow_to() { "$natgrad" train "${grow[@]}" "$@"; }
expect 0 '' grow_to --lr 1e6 --weight-decay 1000 --steps 1 --out grown
expect 1 '*natgrad: diverged: all that the last 4 steps would write after step * is not finite; the checkpoint of step 1 stays' "$natgrad" train --out grown --resume --steps 12 --quiet
finite=$(ls grown/checkpoint/model-*.safetensors)
"$helper" finite "$finite" || fail "$finite holds numbers that are not finite"

# Nor do weights that are finite and worth nothing: they grow 2.2 times in every step (z^2 + 2.6 z + 0.9, momentum 0.9).
far='the mean loss since the last checkpoint is * after step *, more than 1000 times that of the first step'
expect 1 "*natgrad: diverged: $far; the checkpoint of step * stays" grow_to --lr 0.01 --weight-decay 450 --checkpoint-every 4 --steps 50 --out far
stays=$(sed -nE 's/.*the checkpoint of step ([0-9]+) stays.*/\1/p' "$scratch/err")
[[ $(cd far/checkpoint && echo model-*) == "model-$stays.safetensors" ]] || fail "$stays: $(ls far/checkpoint)"
[[ $(tail -1 far/log.jsonl) == *'"why": "diverged"'* ]] || fail "far: $(tail -1 far/log.jsonl)"

# Other threads: one line, and the run goes on.
rm -rf run && cp -a whole run
expect 0 '*natgrad: --resume: run was left by threads *, now 3; the last bits may differ*' env NG_THREADS=3 "$natgrad" train --out run --resume
finish
