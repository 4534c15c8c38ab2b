#!/usr/bin/env bash
# natgrad compare: invalid input; a small comparison from the grid to the files; the comparison again; interrupted and
# resumed.
. "$(dirname "$0")/lib.sh"
cd "$scratch" || exit 1
bad() { expect 2 "natgrad: $1" "$natgrad" compare "${@:2}"; }

bad 'compare: --methods is missing'
bad "compare: unexpected argument 'digits'" digits --methods sgd
bad 'compare: --method: expected --methods with a list' --method sgd
bad 'compare: unknown option --sedes; the nearest is --seeds' --sedes 3 --methods sgd
bad "--methods: unknown method 'natgard'; the nearest is natgrad" --methods sgd,natgard
bad "--methods: natgrad: dampnig: unknown setting; the nearest is damping" --methods natgrad:dampnig=1
bad '--methods: sgd: damping has no effect' --methods sgd:damping=0.1
bad '--methods: sgd: seed is the same for all methods' --methods sgd:seed=2
bad '--methods: more than 64 methods' --methods "$(printf 'sgd,%.0s' {1..64})adamw"
bad "--seeds: '0' is no whole number from 1 to 1000" --methods sgd --seeds 0
bad "--seeds: 'two' is no whole number from 1 to 1000" --methods sgd --seeds two
bad "--target: '-1' is no number from 0 to 1e+30" --methods sgd --target -1
bad '--target: 98, expected an accuracy from 0 to 1' --methods sgd --target 98
bad '--methods: adamw: lr is given twice' --methods sgd,adamw:lr=1,momentum=0.5,lr=2
bad '--methods: efcp: window-store is given twice' --methods sgd,efcp:store=topk,window-store=dense
bad '--grid: window_store is given twice' --methods sgd,efcp --grid store=topk --grid window_store=dense
bad "--grid: 'lr', expected option=a,b,c" --methods sgd --grid lr
bad "--grid: lr: 'x' is no number from 0 to 1e+06" --methods sgd --grid lr=1,x
bad "--grid: lr has '1' twice" --methods sgd --grid lr=1,1
bad '--grid: seed is the same for all runs' --methods sgd --grid seed=1,2
bad '--grid: momentum is given twice' --methods sgd --grid momentum=0,0.9 --grid momentum=0.5
bad '--grid: more than 4096 points' --methods sgd --grid lr="$(seq -s, 1 60)" --grid momentum="$(seq -s, 0.01 0.01 0.6)" --grid warm-up="$(seq -s, 1 3)"
bad '--validation: needs --grid' --methods sgd --validation 3
bad '--grid-epochs: needs --grid' --methods sgd --grid-epochs 3
bad "--grid-epochs: '0' is no number from 1e-06 to 1e+06" --methods sgd --grid lr=1 --grid-epochs 0
bad '--grid-seeds: needs --grid' --methods sgd --grid-seeds 3
bad "--grid-seeds: '0' is no whole number from 1 to 100" --methods sgd --grid lr=1 --grid-seeds 0
bad '--validation: 1437 samples, but digits has 1437 to train on' --methods sgd --grid lr=1,2 --validation 1437
bad "*lenett*lenet*" --methods sgd --model lenett
bad '--batch: 2000 samples, but digits has 1437 to train on' --methods sgd --batch 2000 --out batch
bad '--batch: 1400 samples, but digits has 1294 to train on' --methods sgd,adamw:batch=1400 --grid lr=1,2 --out batch
bad '--resume: absent has no comparison to continue' --methods sgd --out absent --resume
mkdir full && touch full/file
bad '--out: full is not empty, expected a new folder' --methods sgd --out full
bad '--out: full/file: Not a directory' --methods sgd --out full/file
bad '--methods: natgrad: kl_clip has no effect unless clip = kl' --methods natgrad:clip=none,kl-clip=0.01 --out idle
[[ $(ls) == $'err\nfull\nout' ]] || fail "bad input left something: $(ls)"

# Two methods, two seeds, a grid; lr 1e6 diverges or is the worst.
tiny=(--data synthetic:classes=3,features=6,train=240,test=60,seed=5 --model logreg --batch 20 --epochs 3
  --seeds 2 --methods sgd,natgrad:clip=none --grid lr=0.05,1e-4 --grid damping=0.1,1 --momentum 0.5)
"$natgrad" compare "${tiny[@]}" --out one >one.txt 2>one.err || fail "compare fails: $(tail -3 one.err)"
diff one.txt one/table.txt || fail "stdout is not table.txt"
for file in curves.csv plot.gp runs/natgrad-seed2/{config.json,log.jsonl}; do
  [[ -s one/$file ]] || fail "$file is missing"
done
[[ -z $(newest_checkpoint one/runs/sgd-seed1) ]] || fail "a checkpoint was left"
[[ $(ls one/tuning | wc -l) == 6 ]] || fail "not 2 + 4 tuning runs"
[[ $(grep -c '^tuning ' one.err) == 6 && $(grep -cE '^[1-4]/4 (sgd|natgrad) seed [12]: best accuracy' one.err) == 4 ]] ||
  fail "lines of progress: $(cat one.err)"
for want in 'sgd: damping of the grid is left out: it has no effect' \
  'sgd: lr 0.05 is the largest of the grid; a wider grid may do better'; do
  grep -qxF "$want" one.txt || fail "no note '$want'"
done
# The times of the stations and "other" add up to the time of a step; curves have the names of the methods.
awk '/^method  *ms a step/ { n = 0; for (i = 1; i <= NF; i++) if ($i == "other") n = i - 2; next }
  n && ($1 == "sgd" || $1 ~ /^natgrad/) { sum = 0; for (i = 3; i <= n; i++) sum += $i
    if (sum - $2 > 0.0005 * n || $2 - sum > 0.0005 * n) exit 1; seen++ }
  END { exit seen != 2 }' one.txt || fail "times of stations do not add up: $(grep -A3 'ms a step' one.txt)"
grep -q "= 'sgd'" one/plot.gp && grep -q "= 'natgrad'" one/plot.gp || fail "curves: $(grep label one/plot.gp)"
if command -v gnuplot >/dev/null; then
  [[ $(head -c 8 one/curves.png | od -An -c | tr -d ' \n') == '211PNG\r\n032\n' ]] || fail "no PNG"
  grep -q '</svg>' one/curves.svg || fail "no SVG"
fi

# The tables agree with curves.csv: recompute the target, the best accuracies and the differences.
[[ $(head -1 one/curves.csv) == method,seed,epoch,seconds,train_loss,test_loss,test_accuracy ]] || fail "head of curves.csv"
[[ $(wc -l <one/curves.csv) == 13 ]] || fail "curves.csv has not 2 x 2 x 3 lines"
if command -v python3 >/dev/null; then
  python3 - <<'END' || fail "table.txt does not follow from curves.csv"
import csv, re, statistics
text = open("one/table.txt").read()
runs = {}
for row in csv.DictReader(open("one/curves.csv")):
    runs.setdefault((row["method"], int(row["seed"])), []).append(row)
accuracy = {run: [float(r["test_accuracy"]) for r in rows] for run, rows in runs.items()}
target = min(max(statistics.mean(a) for a in zip(accuracy[m, 1], accuracy[m, 2])) for m in ("sgd", "natgrad"))
assert "target: test accuracy %.2f %%, reached by the mean of every method\n" % (100 * target) in text
for m, settings in ("sgd", "lr 0.05"), ("natgrad", "clip none, lr .*, damping .*"):
    best = [100 * max(accuracy[m, s]) for s in (1, 2)]
    first = [next((e + 1 for e, a in enumerate(accuracy[m, s]) if a >= target), None) for s in (1, 2)]
    reached = [e for e in first if e is not None]
    epochs = re.escape("%.1f" % statistics.mean(reached)) if reached else "-"
    assert re.search("^%s +2 +%s.* %s +%s  .* %s$" % (m, epochs, re.escape("%.2f ± %.2f" % (
        statistics.mean(best), statistics.stdev(best))), re.escape("%.2f..%.2f" % (min(best), max(best))), settings),
        text, re.M), (m, epochs, best)
# natgrad minus sgd for each seed; the interval of two differences is t(1) times half of their distance
x = [100 * (max(accuracy["natgrad", s]) - max(accuracy["sgd", s])) for s in (1, 2)]
half = 12.706204736174707 * abs(x[0] - x[1]) / 2
mean = statistics.mean(x)
assert re.search(r"^natgrad +2 .* %s$" % re.escape("%+.2f [%+.2f, %+.2f]" % (mean, mean - half, mean + half)), text, re.M), x
END
fi

# Each run equals a run of natgrad train: on all training data, or, for tuning, with the seed before the first seed and
# a tenth of the data held out.
epochs_of() { sed '/"event": "\(step\|end\)"/d' "$1" | grep -oE '"t(rain|est)_(loss|accuracy)": [^,}]*'; }
same_as_train() { # RUN SETTINGS...
  rm -rf alone
  "$natgrad" train "${tiny[@]:0:8}" --momentum 0.5 --method sgd --lr 0.05 --quiet --out alone "${@:2}" 2>err || fail "train: $(cat err)"
  [[ -n $(epochs_of "$1/log.jsonl") && $(epochs_of "$1/log.jsonl") == "$(epochs_of alone/log.jsonl)" ]] || fail "$1 is not what train gives"
}
same_as_train one/tuning/sgd-0 --seed 0 --validation 24
same_as_train one/runs/sgd-seed1 --seed 1
same_as_train one/runs/sgd-seed2 --seed 2

# Several tuning seeds: each point runs with each seed, on a split of its own, and the mean decides.  Only seeds 0 and
# 1002 are compared with runs of natgrad train; t_compare tests the choice.
many=("${tiny[@]:0:8}" --seeds 2 --methods sgd --grid lr=0.05,1e-4 --momentum 0.5)
"$natgrad" compare "${many[@]}" --grid-seeds 2 --out many >many.txt 2>many.err ||
  fail "--grid-seeds fails: $(tail -3 many.err)"
[[ $(ls many/tuning) == $'sgd-0\nsgd-0-seed1002\nsgd-1\nsgd-1-seed1002' ]] || fail "tuning: $(ls many/tuning)"
[[ $(grep -c '^tuning sgd lr=[0-9.e-]*, seed \(0\|1002\): best accuracy' many.err) == 4 ]] || fail "tuning: $(cat many.err)"
same_as_train many/tuning/sgd-0 --seed 0 --validation 24
same_as_train many/tuning/sgd-0-seed1002 --seed 1002 --validation 24

# A setting for all methods is omitted for a method that ignores it, unless a grid decides whether the method needs it.
short=("${tiny[@]:0:6}" --steps 2 --seeds 1 --quiet)
"$natgrad" compare "${short[@]}" --methods natgrad,adasgd,natgrad:clip=none --kl-clip 0.01 --grid stat-decay=0.9,0.95 --out shared >shared.txt 2>err ||
  fail "a shared option: $(cat err)"
for want in 'adasgd: kl_clip has no effect' 'natgrad-2: kl_clip has no effect' 'adasgd: stat-decay of the grid is left out: it has no effect'; do
  grep -qxF "$want" shared.txt || fail "no note '$want': $(cat shared.txt)"
done
[[ $(grep -c 'has no effect' shared.txt) == 3 ]] || fail "notes: $(cat shared.txt)"
"$natgrad" compare "${short[@]}" --methods natgrad --clip-bound 1 --grid clip=none,kl,norm --grid kl-clip=0.001,0.01 --out decided >shared.txt 2>err ||
  fail "a grid of clips: $(cat err)"
[[ $(ls decided/tuning | wc -l) == 6 ]] && ! grep -q 'has no effect' shared.txt || fail "a grid of clips: $(ls decided/tuning; cat shared.txt)"

losses() { cut -d, -f1-3,5- "$1/curves.csv"; } # all but the seconds

# Both methods have the same first samples and weights, so the same first loss.
first_loss() { grep -o '"step": 1, .*"train_loss": [^,]*' "$1/log.jsonl" | sed 's/.*: //'; }
"$natgrad" compare "${tiny[@]:0:6}" --steps 2 --log-every 1 --seeds 2 --methods sgd,natgrad --quiet --out order >/dev/null 2>err ||
  fail "steps: $(cat err)"
for seed in 1 2; do
  a=$(first_loss order/runs/sgd-seed$seed) b=$(first_loss order/runs/natgrad-seed$seed)
  [[ -n $a && $a == "$b" ]] || fail "seed $seed begins with loss '$a' and '$b'"
done
[[ $(first_loss order/runs/sgd-seed1) != "$(first_loss order/runs/sgd-seed2)" ]] || fail "both seeds begin alike"
[[ ! -s err ]] || fail "--quiet says: $(cat err)"

# Compare again: results come from the disk; one run and one tuning run are lost; a killed run left files; more seeds.
"$natgrad" compare "${tiny[@]}" --out two >/dev/null 2>&1 || fail "the second time fails"
diff <(losses one) <(losses two) || fail "a repeat differs"
bad '--out: one has a comparison; --resume continues it' "${tiny[@]}" --out one
"$natgrad" compare "${tiny[@]}" --out one --resume >again.txt 2>again.err || fail "--resume fails"
diff again.txt one.txt && [[ ! -s again.err ]] || fail "--resume of a finished one ran something"
# The table of one seed.
"$natgrad" compare "${tiny[@]}" --seeds 1 --out one --resume >again.txt 2>again.err && grep -qx 'difference to sgd of the same seed: mean' again.txt ||
  fail "one seed: $(cat again.txt again.err)"
rm one/runs/natgrad-seed1/log.jsonl one/tuning/sgd-1/config.json
"$natgrad" compare "${tiny[@]}" --out one --resume >/dev/null 2>again.err || fail "--resume fails: $(cat again.err)"
[[ $(wc -l <again.err) == 2 ]] || fail "not two runs again: $(cat again.err)"
diff <(losses one) <(losses two) || fail "going on differs"
"$natgrad" compare "${tiny[@]}" --seeds 3 --out two --resume >/dev/null 2>again.err || fail "more seeds"
[[ $(wc -l <again.err) == 2 ]] || fail "a third seed is not two runs: $(cat again.err)"

expect 2 'natgrad: --out: another natgrad compare is running in one' flock one "$natgrad" compare "${tiny[@]}" --out one --resume
bad "one/tuning/sgd-0/config.json: momentum: is '0.5', but '0.9' in this comparison; *" "${tiny[@]}" --momentum 0.9 --out one --resume
bad "one/tuning/natgrad-1/config.json: damping: is '1', but '2' in this comparison; *" "${tiny[@]:0:14}" --grid damping=0.1,2 --momentum 0.5 --out one --resume
sed -i '1s/"lr": 0/"lr": 1/' one/runs/sgd-seed1/log.jsonl
bad 'one/runs/sgd-seed1/log.jsonl: does not belong to config.json beside it, or was edited' "${tiny[@]}" --out one --resume

# Interrupted in a long run: finished steps count, and the losses equal an undisturbed run.
long=(--data synthetic:classes=4,features=40,train=4000,test=200,seed=5 --model mlp --batch 20 --epochs 4
  --seeds 1 --methods sgd,natgrad)
"$natgrad" compare "${long[@]}" --out whole >/dev/null 2>&1 || fail "the long one fails"
over() { grep -q '"why": "done"' "$1/log.jsonl"; }
interrupt() { # SIGNAL DIR FILE [--checkpoint-every N]: when natgrad's run has FILE; once more if that was over by then
  local child got try
  for ((try = 0; try < 20; try++)); do
    rm -rf "$2"
    "$natgrad" compare "${long[@]}" --out "$2" "${@:4}" >cut.txt 2>cut.err &
    child=$! got=0
    wait_until $child "$2: $3" compgen -G "$2/runs/natgrad-seed1/$3"
    kill "-$1" $child 2>/dev/null
    wait $child 2>/dev/null || got=$?
    over "$2/runs/natgrad-seed1" || break
  done
  return $got
}
interrupt INT stopped log.jsonl
[[ $? == 1 && ! -s cut.txt ]] || fail "SIGINT: exit code or a table: $(cat cut.txt)"
grep -q '^natgrad: stopped after 1 of 2 runs; continue with the same command and --out stopped --resume$' cut.err ||
  fail "SIGINT: $(cat cut.err)"
interrupt KILL killed 'checkpoint-*.safetensors' --checkpoint-every 50
for dir in stopped killed; do
  over $dir/runs/sgd-seed1 && ! over $dir/runs/natgrad-seed1 || fail "$dir: not in the middle"
  touch $dir/runs/natgrad-seed1/mark # a run that begins afresh would clear its folder
  "$natgrad" compare "${long[@]}" --out $dir --resume >/dev/null 2>cut.err || fail "$dir: --resume fails: $(cat cut.err)"
  grep -q '^2/2 natgrad' cut.err && ! grep -q '^1/2' cut.err || fail "$dir: ran again: $(cat cut.err)"
  [[ -e $dir/runs/natgrad-seed1/mark ]] || fail "$dir: the run began afresh"
  diff <(losses whole) <(losses $dir) || fail "$dir: going on gives other losses"
  [[ -z $(find $dir -name 'checkpoint*') ]] || fail "$dir: a checkpoint stays: $(find $dir -name 'checkpoint*')"
done

# The table counts and shows a diverged method; with squared error the table has losses.
"$natgrad" compare "${tiny[@]:0:8}" --methods sgd,sgd:lr=1e6 --model mlp --seeds 2 --quiet --out lost >lost.txt 2>&1 || fail "divergence"
grep -qE '^sgd-2 +2, 2 diverged ' lost.txt || fail "not shown: $(cat lost.txt)"
grep -qE '^sgd-2: 2 of 2 runs diverged \(seed 1 after step [0-9]+, 2 after step [0-9]+\); all runs diverged$' lost.txt ||
  fail "no note: $(cat lost.txt)"
expect 0 '*target: test accuracy 50.00 %'$'\n''*epochs to 50.00 %*' \
  "$natgrad" compare "${tiny[@]:0:8}" --methods sgd --seeds 1 --target 0.5 --quiet --out given

# Without gnuplot the program prints one line, and writes the script and the data.
mkdir empty
PATH=$scratch/empty "$natgrad" compare "${tiny[@]:0:8}" --methods sgd --seeds 1 --quiet --out bare >/dev/null 2>err ||
  fail "fails without gnuplot"
[[ $(cat err) == 'natgrad: no pictures, as gnuplot is not installed; gnuplot makes them from bare/plot.gp' ]] || fail "no gnuplot: $(cat err)"
[[ -s bare/plot.gp && -s bare/curves.csv && ! -e bare/curves.png && ! -e bare/plot.log ]] || fail "without gnuplot: $(ls bare)"

expect 0 '*' "$natgrad" compare "${tiny[@]:0:8}" --methods sgd --seeds 1 --quiet
[[ -s compare-synthetic-logreg/table.txt ]] || fail "no folder of its own"

# Settings that no run accepts are refused before the folder is made.
expect 0 '*target: test loss *best test loss*' "$natgrad" compare --data synthetic:classes=2,image=4x4x1,train=16,test=8 \
  --model autoencoder --methods sgd --seeds 1 --epochs 1 --batch 8 --out auto
expect 0 '*synthetic, logreg, batch 8, 3 steps, *' "$natgrad" compare --data synthetic:classes=2,features=6,train=32,test=8 \
  --model logreg --methods sgd --seeds 1 --steps 3 --batch 8 --out steps
bad '--label-smoothing: model autoencoder has no labels' --data digits --model autoencoder --methods sgd --label-smoothing 0.1 --out refused
bad '--augment: crop needs images, *' --data synthetic:classes=2,features=6,train=64,test=16 --model logreg --methods sgd --augment crop --out refused
bad '--dropout: mlp has no dropout; *' --data digits --model mlp --methods sgd --grid dropout=0.1,0.2 --out refused
[[ ! -e refused ]] || fail "a refused comparison left a folder"

# A folder of a run that is a link is refused; nothing behind the link changes.
cp -a lost linked && rm -r linked/runs/sgd-seed1 && mkdir elsewhere && echo keep >elsewhere/log.jsonl && ln -s "$PWD/elsewhere" linked/runs/sgd-seed1
"$natgrad" compare "${tiny[@]:0:8}" --methods sgd,sgd:lr=1e6 --model mlp --seeds 2 --quiet --out linked --resume >link.txt 2>&1 && fail "a link was followed"
grep -q 'linked/runs/sgd-seed1: is a symbolic link, expected a folder' link.txt || fail "link: $(cat link.txt)"
[[ $(cat elsewhere/log.jsonl) == keep ]] || fail "a file behind a link was removed"

# All runs diverge: the table says so, without a picture and without advice.
"$natgrad" compare --data synthetic:classes=3,features=8,train=64,test=32 --model logreg --batch 16 --steps 12 --seeds 2 \
  --methods sgd --grid lr=1e6,1e5 --weight-decay 1000 --lr-schedule constant --quiet --out gone >lost.txt 2>lost.err ||
  fail "lost: $(cat lost.err)"
grep -q 'sgd: 2 of 2 runs diverged (seed 1 after step [0-9]*, 2 after step [0-9]*); all runs diverged' lost.txt || fail "lost: $(cat lost.txt)"
grep -q 'wider one' lost.txt && fail "lost, but advised: $(cat lost.txt)"
[[ ! -e gone/curves.png ]] && ! grep -vE 'natgrad: NG_(SKIPPED|RESCUED): ' lost.err || fail "lost, but drawn: $(cat lost.err)"
finish
