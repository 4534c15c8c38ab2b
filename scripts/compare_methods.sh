#!/bin/bash
# compare_methods.sh DATA TEXT OUT: the comparisons of nine methods in docs/reproduce.md: a small GPT over the characters of the
# file TEXT, and ResNet-20 on the folder DATA of CIFAR-10. A second call resumes. NATGRAD: the program (build/natgrad).
set -eu
[ $# = 3 ] || { sed -n 's/^# //p' "$0" | head -2; exit 2; }
program=${NATGRAD:-build/natgrad}
export NG_THREADS=1 OPENBLAS_NUM_THREADS=1
methods=sgd,adamw,natgrad,kfac-adam,ekfac:damping=0.1,eva-natgrad,muon,soap,shampoo:solve-period=10,grafting=adam,damping=1e-6

# compare NAME OPTIONS: one comparison in OUT/NAME
compare() {
  local resume=
  [ -d "$out/$1" ] && resume=--resume
  "$program" compare --methods "$methods" --grid lr=0.003,0.01,0.03,0.1 --quiet --out "$out/$1" $resume "${@:2}"
}

out=$3
mkdir -p "$out"
compare gpt --data "text:$2,context=64" --model gpt-char-64-2-4 --batch 16 --steps 150 --seeds 2
compare resnet20 --data "cifar10:$1" --model resnet20 --batch 64 --steps 120 --grid-epochs 0.36 --seeds 1
