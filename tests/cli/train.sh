#!/usr/bin/env bash
# natgrad train: invalid requests, a run that learns, the log of a run, a signal.
. "$(dirname "$0")/lib.sh"
cd "$scratch" || exit 1
train() { expect "$1" "natgrad: $2" "$natgrad" train "${@:3}"; }

# Options of the command, settings, and settings against each other.
train 2 'train: unknown option --epohcs; the nearest is --epochs' --epohcs 3
train 2 'train: unknown option --dampnig; the nearest is --damping' --dampnig 3
train 2 'train: option --lr needs a value' --lr
train 2 "train: unexpected argument 'digits'" digits
train 2 "--batch: '0' is no whole number from 1 to 1048576" --batch 0
train 2 "--lr: '-1' is no number from 0 to 1e+06" --lr -1
train 2 "--epochs: 'many' is no number from 0 to 1e+06" --epochs many
train 2 '--epochs: expected more than 0' --epochs 0
train 2 '--steps: expected at least 1' --steps 0
train 2 '--steps: give it or --epochs, not both' --steps 3 --epochs 1
train 2 "--optimizer: 'adam' is none of sgd|adamw" --optimizer adam
train 2 "--method: unknown method 'kasia'; the nearest is kaisa" --method kasia
train 2 "--lr-schedule: 'cosin', expected constant, step:E1,E2,...*" --lr-schedule cosin
train 2 "--lr-schedule: 'step:4,2', expected step:E1,E2,...* ascend *" --lr-schedule step:4,2
train 2 "--damping: '0' is out of range, expected 0 < damping *" --damping 0
train 2 '--update: the trainer sets this option; use optimizer' --update gradient
train 2 '--damping: method sgd has no curvature' --method sgd --damping 0.1
train 2 '--clip_bound: has no effect with method natgrad unless clip = norm, ratio, rms or value' --clip-bound 0.1
train 2 '--kl_clip: has no effect with method natgrad unless clip = kl' --clip none --kl-clip 0.01
train 2 '--stat_decay: has no effect with method adasgd unless sides = both or input' --method adasgd --stat-decay 0.9
train 2 '--positions: has no effect, model mlp has no convolutions' --model mlp --positions reduce
train 2 '--norm_block: has no effect, model lenet has no norm layers' --model lenet --norm-block none
train 2 '--damping: has no effect with method topk-sgd unless window_function = mfac, mfac-filled, ggt, adam or adagrad' --method topk-sgd --damping 0.1
train 2 '--damping-rule: method topk-sgd has no damping' --method topk-sgd --damping-rule keep-ratio
train 2 '--nesterov: needs a momentum above 0' --nesterov --momentum 0
train 2 '--resume: needs --out' --resume
train 2 '--checkpoint-every: needs --out' --checkpoint-every 3
expect 2 "natgrad: NG_THREADS is 'two', expected a whole number from 1 to 1024" env NG_THREADS=two "$natgrad" train
expect 2 "natgrad: *damping*" env NG_DAMPING=-1 "$natgrad" train

# Data and model.
train 2 '--data: nowhere: no file train-images-idx3-ubyte *' --data mnist:nowhere
train 2 "*digit*" --data digit
train 2 "*lenett*lenet*" --model lenett
train 2 '*skip_layers = "^fc|conv": regular expressions are not supported; write "fc\*,\*conv\*"' --skip-layers '^fc|conv'
train 2 '--batch: 4096 samples, but digits has 1437 to train on' --batch 4096
train 2 '--validation: 1437 samples, but digits has 1437 to train on' --validation 1437
train 2 '--augment: crop needs images, synthetic has none' --augment crop \
  --data synthetic:classes=2,features=6,train=64,test=10

# A file of settings.
bad_file() { # TEXT MESSAGE
  echo "$1" >bad.json
  train 2 "bad.json: $2" --config bad.json
}
bad_file '{"batch": 3' 'no JSON: line *'
bad_file '[]' 'expected a JSON object of settings'
bad_file '{"bacth": 3}' 'bacth: unknown setting; the nearest is batch'
bad_file '{"batch": "3.5"}' "batch: '3.5' is no whole number *"
bad_file '{"nesterov": 2}' "nesterov: '2' is neither true nor false"
bad_file '{"model": []}' 'model: expected a text, a number, true or false'
bad_file '{"lr": -1}' "lr: '-1' is no number from 0 to 1e+06"
bad_file '{"damping": 0}' "damping: '0' is out of range, expected 0 < damping *"
train 2 'absent.json: No such file or directory' --config absent.json
train 2 '.: not a regular file' --config .

# A file of settings and the environment may serve several methods and networks.
tiny=(--data synthetic:classes=2,features=6,train=64,test=16 --model logreg --batch 8 --epochs 1)
echo '{"kl_clip": 0.01}' >shared.json
expect 0 'epoch 1/1 *' "$natgrad" train "${tiny[@]}" --config shared.json --clip none
expect 0 'epoch 1/1 *' env NG_SKIP_LAYERS=conv NG_KL_CLIP=0.01 "$natgrad" train "${tiny[@]}" --clip none
expect 0 'epoch 1/1 *' "$natgrad" train "${tiny[@]}" --skip-layers 'fc*,linear/2'

# Folders.
touch file
train 2 'file: the folder cannot be created: Not a directory' "${tiny[@]}" --out file
train 2 'file/deeper: the folder cannot be created: Not a directory' "${tiny[@]}" --out file/deeper
train 2 '/proc/nowhere: the folder cannot be created: *' "${tiny[@]}" --out /proc/nowhere
train 2 '--resume: fresh has no run' "${tiny[@]}" --out fresh --resume
expect 0 'epoch 1/1  step 8  *' "$natgrad" train "${tiny[@]}" --out one
train 2 '--out: one already has a run; --resume continues it' "${tiny[@]}" --out one
if [[ -w /dev/full ]]; then
  "$natgrad" train "${tiny[@]}" >/dev/full 2>err
  [[ $? == 2 && $(cat err) == 'natgrad: standard output could not be written' ]] || fail "full stdout: $(cat err)"
fi
# A file size limit of 4 KiB simulates a full disk: the log does not fit.
(
  ulimit -f 4
  exec "$natgrad" train "${tiny[@]}" --epochs 40 --log-every 1 --quiet --out small
) >out 2>err
[[ $? == 2 && $(cat err) == 'natgrad: small/log.jsonl: cannot be written: File too large' ]] || fail "full disk: $(cat err)"

# A run that learns, and the files of the run.
expect 0 '*epoch 1/5  step 22  *epoch 5/5  step 110  lr *  loss *  accuracy * %  test loss *  test accuracy * %  * samples/s  * s*run: log.jsonl, weights in checkpoint-110.safetensors' \
  "$natgrad" train --data digits --model mlp --method natgrad --epochs 5 --lr 0.03 \
  --lr-schedule linear --out run --checkpoint-every 50 --log-every 5 # eight seeds: 91.9 to 93.6 %
cp "$scratch/out" learnt
expect 0 'run: has all its 110 steps; use a larger --epochs or --steps to continue' "$natgrad" train --out run --resume
cp learnt "$scratch/out"
accuracy=$(sed -nE 's/.*test accuracy ([0-9.]+) %.*/\1/p' "$scratch/out" | tail -1)
awk "BEGIN { exit !($accuracy >= 90) }" || fail "digits: test accuracy is only $accuracy %"
"$helper" json train_loss:n schema:n event step:n epoch:n ms <run/log.jsonl || fail "log.jsonl"
[[ $(grep -c '"event": "step"' run/log.jsonl) == 22 ]] || fail "not 22 step lines"
[[ $(grep -c '"event": "epoch"' run/log.jsonl) == 5 ]] || fail "not 5 epoch lines"
[[ $(tail -1 run/log.jsonl) == *'"event": "end", "step": 110, "epoch": 5, "why": "done"'* ]] || fail "no end"
grep '"event": "epoch"' run/log.jsonl | "$helper" json test_accuracy:n test_loss:n train_accuracy:n lr:n seconds:n || fail "epoch lines"
for station in data forward backward observe check statistics solve measure agree emit; do
  [[ $(grep -c "\"$station\": [0-9]" run/log.jsonl) == 28 ]] || fail "no station $station"
done
tr -d '\n' <run/config.json | "$helper" json schema:n natgrad data model method damping:n lr:n || fail "config.json"
[[ $(cd run && echo *) == 'checkpoint-110.safetensors config.json log.jsonl' ]] || fail "a run has $(ls run)"
expect 0 '' "$natgrad" train "${tiny[@]}" --quiet

# The same settings from a file give the same bits; the command line overrides the file.
expect 0 '*' "$natgrad" train --config run/config.json --out again
checkpoints_match run again || fail "config.json does not repeat the run"
expect 0 '*epoch 1/1  step 2  *' "$natgrad" train --config run/config.json --steps 2 --out short

# A run resumes only with the settings of its start.
train 2 "--batch: is '32', but '64' in run/checkpoint-110.safetensors; a resumed run keeps its settings" --out run --resume --batch 32
train 2 "--damping: is '0.5', but '0.*' in run/checkpoint-110.safetensors; a resumed run keeps its settings" --out run --resume --damping 0.5
train 2 '--epochs: the run in run has taken 110 steps, expected at least as many, not 88' --out run --resume --epochs 4
expect 0 '*epoch 6/6  step 132 *natgrad: --epochs: another length of the run changes the schedule linear: after step 110 lr is 0.005 instead of 0' \
  "$natgrad" train --out run --resume --epochs 6
[[ $(grep -c '"event": "end"' run/log.jsonl) == 1 ]] || fail "two ends in one log"
[[ $(grep -c '"event": "epoch"' run/log.jsonl) == 6 ]] || fail "an epoch is missing after going on"

# A signal: the program finishes the step, saves a checkpoint and exits with 1.  Meanwhile no other run may use the folder.
"$natgrad" train --data digits --model mlp --method sgd --epochs 100000 --out stopped >ran 2>ran.err &
pid=$!
wait_until $pid "a first epoch" test -s ran
train 2 '--out: another natgrad train is running in stopped' --out stopped --resume
kill -TERM $pid
wait $pid
got=$?
step=$(sed -nE 's/^natgrad: stopped after step ([0-9]+); .*/\1/p' ran.err)
[[ $got == 1 && -n $step && -e stopped/checkpoint-$step.safetensors ]] || fail "SIGTERM: exit $got, $(cat ran.err)"
[[ $(tail -1 stopped/log.jsonl) == *'"why": "stopped"'* ]] || fail "SIGTERM: $(tail -1 stopped/log.jsonl)"
"$natgrad" train --data digits --model mlp --method sgd --epochs 100000 --quiet >out 2>err &
pid=$!
wait_until $pid "its handlers" has_handler $pid 10
kill -INT $pid
wait $pid
[[ $? == 1 && $(cat err) == 'natgrad: stopping after this step; repeat the signal to end at once'*'natgrad: stopped after step '*'; without --out nothing was saved' ]] || fail "SIGINT: $(cat err)"

# A loss that is not finite ends the run without a checkpoint.
expect 1 '*natgrad: diverged after step *: the loss is not finite' "$natgrad" train --data digits --model mlp --method sgd \
  --lr 1 --weight-decay 1000 --epochs 20 --out lost --quiet # weights grow by 999 a step
[[ $(tail -1 lost/log.jsonl) == *'"why": "diverged"'* ]] || fail "lost: $(tail -1 lost/log.jsonl)"
[[ -z $(newest_checkpoint lost) ]] || fail "a lost run is kept"
# The loss before the last step is finite; the test loss shows that this step made the weights non-finite.
expect 1 '*natgrad: diverged after step 2: the loss is not finite' "$natgrad" train --steps 2 --batch 16 --method sgd --lr 1e6 \
  --data synthetic:classes=3,features=8,train=64,test=32 --weight-decay 1000 --lr-schedule constant --quiet --out last
[[ $(tail -1 last/log.jsonl) == *'"test_accuracy": null'*'"why": "diverged"'* || $(tail -1 last/log.jsonl) == *'"why": "diverged"'*'"test_accuracy": null'* ]] ||
  fail "last: $(tail -1 last/log.jsonl)"
[[ -z $(newest_checkpoint last) ]] || fail "weights that are lost are kept"

# A run that was killed before its first checkpoint starts again; a damaged run is refused.
"$natgrad" train "${tiny[@]}" --out never --quiet || fail "never"
mkdir early && cp never/config.json early
printf '{"schema": 1, "event": "step", "st' >early/log.jsonl
expect 0 'epoch 1/1  step 8  *natgrad: --resume: early has no checkpoint yet, the run begins again' "$natgrad" train --out early --resume
checkpoints_match never early || fail "a run that begins again has other weights"
numbers() { sed -E 's/"(ms|seconds|crc32)": *(\{[^}]*\}|[^,}]*)//g' "$1"; }
diff <(numbers never/log.jsonl) <(numbers early/log.jsonl) >/dev/null || fail "a run that begins again is another"
train 2 "--method: is 'sgd', but 'natgrad' in one/config.json; a resumed run keeps its settings" --out one --resume --method sgd

# Settings without a meaning are refused, in messages of one line.
train 2 '--optimizer: has no effect with method sgd and the sgd update' --method sgd --optimizer adamw
train 2 '--beta1: has no effect with method natgrad and the sgd update' --beta1 0.5
train 2 '--momentum: has no effect with method adamw and the adamw update' --method adamw --momentum 0
train 2 '--momentum: has no effect with method kfac-adam and the sgd update' --method kfac-adam --momentum 0.5
train 2 '--dropout: vgg16 has dropout only for images of at least 64 pixels, the data has 32' --model vgg16 --dropout 0.5 \
  --data synthetic:classes=3,image=32x32x3,train=16,test=8 --batch 4
train 2 '--batch: model wrn-10-1 normalises over a batch of single pixels, expected at least 2' --model wrn-10-1 \
  --data synthetic:classes=3,image=4x4x3,train=16,test=8 --batch 1
train 2 '--model: lenet does not fit data of 9x9x1: *smaller than the kernel*' --model lenet \
  --data synthetic:classes=3,image=9x9x1,train=16,test=8 --batch 4
train 2 "--model: unknown model 'mlp-5'; expected mlp-W-D with numbers from 1 to 99999, as mlp-512-2" --model mlp-5
train 2 '--validation: 1430 samples leave 7 of digits to train on, less than a batch of 64' --validation 1430
train 2 "--weight-decay: 'x' is no number *" --weight_decay x
train 2 "--beta1: '1' is no number from 0 to below 1" --beta1 1
train 2 "--model: unknown model 'x?y'; *" --model $'x\ny'
bad_file '{"schema": 99}' 'schema: expected 1'
# A configuration that the program has, by name.
expect 0 '*test accuracy*' "$natgrad" train --config mnist-mlp --data digits --batch 16 --steps 2
expect 0 '*test accuracy*' "$natgrad" train --config mnist-mlp.json --data digits --batch 16 --steps 2
expect 2 'natgrad: mnist-nothing: *' "$natgrad" train --config mnist-nothing
finish
