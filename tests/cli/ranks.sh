#!/usr/bin/env bash
# ranks.sh [RANKS]: `natgrad train` on several ranks, with uneven shards, has the losses of one rank with the whole batch.
# A run is killed or stopped, and resumes on another number of ranks.  Ranks are threads, or RANKS processes under
# mpirun.
. "$(dirname "$0")/lib_ranks.sh"

# follows NAME RANKS STEPS OPTIONS...: compare the losses with one rank, in batches of $batch
batch=61
follows() {
  local name=$1 ranks=$2 steps=$3 n
  shift 3
  local how=(--data "$data" --batch $batch --steps "$steps" --seed 3 --log-every 1 --quiet "$@")
  expect 0 '' train_on 1 "${how[@]}" --out "$scratch/$name.1"
  for n in $ranks; do
    expect 0 '' train_on "$n" "${how[@]}" --out "$scratch/$name.$n"
    must_be_near "$name on $n ranks" "$scratch/$name.1" "$scratch/$name.$n" 3
    [[ $(losses "$scratch/$name.$n" | wc -l) == "$steps" ]] || fail "$name: not $steps steps"
  done
}

# be N: print N as four bytes in big-endian order, as escapes
be() { printf '\\0%03o\\0%03o\\0%03o\\0%03o' 0 0 $(($1 / 256)) $(($1 % 256)); }
mnist() { # FOLDER: 300 images of 28 x 28, a bar where the label says, and noise
  mkdir "$1"
  for split in train t10k; do
    { printf '%b%b%b%b' '\0000\0000\0010\0003' "$(be 300)" "$(be 28)" "$(be 28)"
      LC_ALL=C awk 'BEGIN { srand(7); for (i = 0; i < 300; i++) for (j = 0; j < 784; j++)
        printf "%c", int(j / 28 / 2.8) == i % 10 ? 200 + int(50 * rand()) : 1 + int(60 * rand()) }'; } >"$1/$split-images-idx3-ubyte"
    { printf '%b%b' '\0000\0000\0010\0001' "$(be 300)"
      for ((i = 0; i < 300; i++)); do printf '%b' "\\00$((i % 10 / 8))$((i % 10 % 8))"; done; } >"$1/$split-labels-idx1-ubyte"
  done
}

mlp="--model mlp --method"
data=digits
if [[ -n $processes ]]; then
  counts=$processes
  mnist "$scratch/mnist"
  data=mnist:$scratch/mnist
else
  counts="2 3"
fi
for method in natgrad spngd eva-natgrad eva kaisa mfac; do
  follows $method "$counts" 50 $mlp $method
done
# With own batches, as in the published programs, losses depend on the number of ranks: more than `must_be_near` allows.
own() { # NAME METHOD...
  local name=$1
  shift
  expect 0 '' train_on "${counts##* }" --data "$data" --batch 61 --steps 30 --seed 3 --log-every 1 --quiet $mlp "$@" --own-batches --out "$scratch/own.$name"
  paste <(losses "$scratch/$name.1") <(losses "$scratch/own.$name") | awk 'NF == 2 { d = $1 - $2; if (d < 0) d = -d; if (d > 1e-4) far = 1 } END { exit !far }' ||
    fail "--own-batches: $name has the losses of one rank on ${counts##* } ranks"
}
own eva eva
data=digits
if [[ -z $processes ]]; then
  # damping_leak adds the damping to the average: all of it, as on one rank; with own batches a share, as published.
  leak="--solver cholesky --eigen-floor 0 --damping-split pi --damping-leak owner"
  follows eva-kfac "$counts" 30 $mlp eva-kfac
  follows mpd-inverse "$counts" 30 $mlp mpd-kfac $leak
  own mpd-inverse mpd-kfac $leak
  follows mpd-kfac 3 20 $mlp mpd-kfac --damping 0.03
  # dp-kfac uses statistics of the owner's samples, so losses differ; on four ranks one rank owns none of three layers.
  expect 0 '' train_on 4 --data "$data" $mlp dp-kfac --damping 0.03 --batch 61 --seed 3 --steps 10 --quiet --out "$scratch/local"
  # Random numbers of a sample depend on its place in the whole batch; micro-batches; a convolution.
  data=synthetic:classes=4,image=16x16x1,train=300,test=30
  follows drawn 3 10 --model lenet --method natgrad --fisher sampled --acc-iters 2 --augment crop+flip --erase-rate 0.5
  data=digits
  follows squares 3 10 --model autoencoder --method natgrad --fisher sampled
  follows rows "2 4" 10 $mlp natgrad --grad-worker-fraction 0
  follows adamw 3 20 $mlp adamw
fi
# With fewer samples than ranks, some ranks have no samples, in every micro-batch.
batch=1
for method in natgrad spngd eva kaisa mfac adamw; do
  follows none.$method "${counts##* }" 10 $mlp $method --acc-iters 2
done

# The number of messages that send the gradients changes no bit.
n=${counts##* }
for mb in 0 1000; do
  expect 0 '' train_on "$n" --data digits $mlp natgrad --batch 61 --seed 3 --steps 10 --quiet --bucket-mb $mb --out "$scratch/cut.$mb"
done
checkpoints_match "$scratch"/cut.{0,1000} || fail "--bucket-mb changes weights"

# The times and bytes of each rank are in a table and in the log; bytes are equal on all ranks.
expect 0 "*a step * ms * most * waits * idle, most * kB * messages*reduce *$n ranks: messages take * ms a step, * % during other work*" \
  train_on "$n" --data digits $mlp natgrad --batch 61 --seed 3 --steps 10 --stat-bucket-mb 0 --out "$scratch/told"
tail -n 1 "$scratch/told/log.jsonl" >"$scratch/end"
[[ $(grep -o '"hidden_ms"' "$scratch/end" | wc -l) == "$n" ]] || fail "the log tells of other ranks than $n"
[[ $(grep -o '"statistics": {[^}]*' "$scratch/end" | sed 's/.*"bytes"/"bytes"/' | sort -u | wc -l) == 1 ]] ||
  fail "ranks sent other sums: $(grep -o '"statistics": {[^}]*' "$scratch/end")"

# A checkpoint fits any number of ranks: half of a run on n ranks, the rest on one, and vice versa.
how=(--data digits --model mlp --method natgrad --batch 61 --seed 3 --log-every 1 --quiet --lr-schedule constant)
expect 0 '' train_on 1 "${how[@]}" --steps 40 --out "$scratch/whole"
for first in 1 "$n"; do
  rest=$((n + 1 - first))
  expect 0 '' train_on "$first" "${how[@]}" --steps 20 --out "$scratch/half$first"
  expect 0 '*' train_on "$rest" "${how[@]}" --steps 40 --out "$scratch/half$first" --resume
  must_be_near "20 steps on $first, 20 on $rest" "$scratch/whole" "$scratch/half$first" 3
  [[ $(losses "$scratch/half$first" | wc -l) == 40 ]] || fail "resumed: not 40 steps"
done

has_checkpoint() { [[ -n $(newest_checkpoint "$1") ]]; }
if [[ -n $processes ]]; then
  # A killed rank ends the job; the checkpoint is complete, and the run resumes on fewer ranks.
  (train_on "$n" "${how[@]}" --steps 1000000 --checkpoint-every 50 --out "$scratch/killed" >/dev/null 2>&1; echo $? >"$scratch/rc") &
  wait_until $! "a checkpoint of $n ranks" has_checkpoint "$scratch/killed"
  victim=$(rank_process "$scratch/killed" 1)
  if [[ -z $victim ]]; then
    fail "rank 1 is not to be found"
    victim=$(pgrep -f -- "train .*--out $scratch/killed" | head -n 1)
  fi
  kill -9 "$victim"
  wait
  wait_until $$ "ranks that the launcher left behind end" run_is_gone "$scratch/killed"
  [[ $(cat "$scratch/rc") != 0 ]] || fail "a job without rank 1 ended well"
  step=$(checkpoint_step "$scratch/killed")
  expect 0 '*' train_on $((n - 1)) "${how[@]}" --steps $((step + 100)) --out "$scratch/killed" --resume
else
  # The same with threads, which end with their process.
  "$natgrad" train --ranks "$n" "${how[@]}" --steps 1000000 --checkpoint-every 50 --out "$scratch/killed" &
  wait_until $! "a checkpoint of $n ranks as threads" has_checkpoint "$scratch/killed"
  kill -9 $!
  wait $! 2>/dev/null && fail "a run that was killed ended well"
  step=$(checkpoint_step "$scratch/killed")
  expect 0 '*' train_on $((n - 1)) "${how[@]}" --steps $((step + 100)) --out "$scratch/killed" --resume
  expect 2 "*--ranks: 'two', expected auto, mpi or a number of threads*" "$natgrad" train --ranks two
  expect 2 "*--batch: model resnet20 normalises over a batch on each rank, expected at least 3" "$natgrad" train --batch 2 --ranks 3 \
    --data synthetic:classes=4,image=32x32x3,train=30,test=3 --model resnet20
fi
finish
