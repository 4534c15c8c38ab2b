#!/usr/bin/env bash
# Damaged, incomplete or inconsistent recordings: one line that names the entry, exit code 2.  A larger error than the
# tolerance: exit code 1.
. "$(dirname "$0")/lib.sh"
file=$golden/kaisa-eigen-0.safetensors
bad=$scratch/bad.safetensors

# changed FROM TO: the file with a text in its header replaced by one of the same length.
changed() {
  [[ ${#1} == "${#2}" ]] || fail "'$1' and '$2' differ in length"
  sed "s/$1/$2/" "$file" >"$bad"
  ! cmp -s "$file" "$bad" || fail "'$1' is not in the header"
}

expect 2 "*$scratch/none: *" "$natgrad" replay "$scratch/none"
expect 2 "*$scratch: *" "$natgrad" replay "$scratch"
expect 2 "*natgrad: $golden/window-mfac-momentum.safetensors: window = 65536: exceeds *" "$natgrad" replay "$golden/window-mfac-momentum.safetensors" --window 65536
: >"$bad"
expect 2 "*$bad*" "$natgrad" replay "$bad"

size=$(stat -c %s "$file")
for n in 1 7 8 9 1000 $((size / 2)) $((size - 1)); do
  head -c "$n" "$file" >"$bad"
  expect 2 "*$bad*" "$natgrad" replay "$bad"
done
{ cat "$file"; echo; } >"$bad"
expect 2 "*$bad*" "$natgrad" replay "$bad"

changed 'case.json' 'case.jsom'; expect 2 "*$bad: skipped, not a recording: expected case.json*" "$natgrad" replay "$bad"
changed '\\"config\\": {' '\\"config\\": ['; expect 2 "*$bad: case.json: no JSON: line *" "$natgrad" replay "$bad"
changed '\\"config\\"' '\\"confog\\"'; expect 2 '*case.json: config is not an object' "$natgrad" replay "$bad"
changed '\\"KAISA\\"' '\\"KAISB\\"'; expect 2 "*case.json: *KAISB*" "$natgrad" replay "$bad"
changed '\\"KAISA\\"' '\\"spngd\\"'; expect 2 "*case.json: *spngd*" "$natgrad" replay "$bad"
changed '\\"eigen\\"' '\\"eigem\\"'; expect 2 '*case.json: *eigem*' "$natgrad" replay "$bad"
changed '\\"damping\\"' '\\"dampimg\\"'; expect 2 "*case.json: config: *dampimg*damping*" "$natgrad" replay "$bad"
changed '\\"damping\\": 0.003' '\\"damping\\": -.003'; expect 2 "*case.json*" "$natgrad" replay "$bad"
changed '\\"damping\\": 0.003' '\\"damping\\": [0.3]'; expect 2 '*case.json: config: damping: expected a text, a number, a flag, null or a list of texts' "$natgrad" replay "$bad"
changed '\\"steps\\": 4' '\\"steps\\": 5'; expect 2 '*array s4.conv1.a is missing' "$natgrad" replay "$bad"
changed '\\"steps\\": 4' '\\"steps\\": 0'; expect 2 '*case.json: steps is not a whole number from 1*' "$natgrad" replay "$bad"
changed '\\"batch\\": 6' '\\"ranks\\": 6'; expect 2 '*case.json: batch is not a whole number*' "$natgrad" replay "$bad"
changed '\\"micro_batches\\": 1' '\\"micro_batches\\": 2'; expect 2 '*case.json: steps, ranks and micro_batches need at least 96 arrays, expected at most 80' "$natgrad" replay "$bad"
changed 'conv2d' 'conv3d'; expect 2 "*case.json: layer conv1: kind 'conv3d' is not supported, expected*" "$natgrad" replay "$bad"
changed '\\"in_channels\\": 3' '\\"in_channels\\": 4'; expect 2 '*array s0.conv1.a is \[6,3,8,8\], expected \[-1,4,-1,-1\]' "$natgrad" replay "$bad"
changed '\\"out_channels\\": 7' '\\"out_channels\\": 6'; expect 2 '*array s0.conv2.g is \[6,7,4,4\], expected \[6,6,4,4\]' "$natgrad" replay "$bad"
changed '\\"in_features\\": 112' '\\"in_features\\": 113'; expect 2 '*array s0.fc1.a is \[6,112\], expected *' "$natgrad" replay "$bad"
changed '\\"bias\\": false' '\\"bias\\":  true'; expect 2 '*array s0.conv2.bias.grad is missing' "$natgrad" replay "$bad"
changed '"s2.fc2.g"' '"s2.fc2.x"'; expect 2 '*array s2.fc2.g is missing' "$natgrad" replay "$bad"
changed '"s3.fc2.weight.out"' '"s3.fc2.weight.oot"'; expect 2 '*array s3.fc2.weight.out is missing' "$natgrad" replay "$bad"

# Edit the JSON text and the arrays of a recording: unpack the file into a folder, change the folder, pack it again.
folder=$scratch/kaisa-eigen-0
mkdir "$folder"
"$helper" unpack "$file" "$folder" || fail "unpack"
cp -r "$folder" "$scratch/f2"
replayed() { "$helper" pack "$scratch/f2" "$scratch/f2.safetensors" && "$natgrad" replay "$scratch/f2.safetensors" "$@"; }
expect 0 'f2: KAISA eigen, row kaisa, 4 layers, 4 steps, 1 rank*: ok' replayed
rm "$scratch/f2/s1.conv2.g.npy"
expect 2 '*array s1.conv2.g is missing' replayed
echo '{"config": ' >"$scratch/f2/case.json"
expect 2 '*case.json: no JSON: line *' replayed

# Two lists of texts: no dangling pointer to the first (address sanitizer).
cp "$folder"/*.npy "$scratch/f2"
edited() { # SED-EXPRESSION
  sed "$1" "$folder/case.json" >"$scratch/f2/case.json"
  ! cmp -s "$folder/case.json" "$scratch/f2/case.json" || fail "'$1' changes nothing in case.json"
}
edited 's/"config": {/&"skip_layers": ["nothing", "no layer"], "grad_scaler": ["none"], /'
expect 0 '*: ok' replayed
edited 's/"config": {/&"skip_layers": ["((((a{9}){9}){9}){9}){9}", "x"], /'
expect 2 "*config: skip_layers: '((((a{9}*', expected texts*" replayed

# Counts larger than the file allows: an immediate error without allocation.
edited 's/"order": \[/&"conv1", /'; expect 2 '*case.json: order has conv1 twice' replayed
edited 's/"steps": 4/"steps": 100000/; s/"micro_batches": 1/"micro_batches": 1000/; s/"batch"/"ranks": 64, "batch"/'
expect 2 '*case.json: steps, ranks and micro_batches need at least *' replayed

# chainerkfac flattens positions of linear layers: samples are rows.
folder=$scratch/positions
mkdir "$folder"
rm -r "$scratch/f2"
"$helper" unpack "$golden/spngd-0.safetensors" "$folder" || fail "unpack"
shaped() { # FROM TO, which is two bytes longer: of what fc1 and fc2 saw
  rm -rf "$scratch/f2" && cp -r "$folder" "$scratch/f2"
  sed -i "s/'shape': ($1\([0-9]*,\)), }  /'shape': ($2\1), }/" "$scratch"/f2/s?.fc[12].[ag].npy
}
shaped 8, 4,2,
cmp -s "$folder/s0.fc1.a.npy" "$scratch/f2/s0.fc1.a.npy" && fail "s0.fc1.a.npy is as it was"
expect 0 '*: ok' replayed
shaped 8, 8,2,
for array in "$folder"/s?.fc[12].[ag].npy; do # twice as many rows
  tail -c $(($(stat -c %s "$array") - 128)) "$array" >>"$scratch/f2/$(basename "$array")"
done
expect 1 '*: exceeded' replayed # read, and of another recording

# Recordings with weights and momentum after each step.
folder=$scratch/updates
mkdir "$folder"
rm -r "$scratch/f2"
"$helper" unpack "$golden/spngd-adjust.safetensors" "$folder" || fail "unpack"
cp -r "$folder" "$scratch/f2"
expect 0 '*weights and momentum after each step: largest *: ok' replayed
edited 's/"momentum": 0.9/"momentum": 0.8/'; expect 1 '*weights and momentum *: exceeded' replayed
edited 's/"adjust_momentum": true/"adjust_momentum": false/'; expect 1 '*: exceeded' replayed
edited 's/"lr_steps"/"lr_stops"/'; expect 2 '*case.json: lr_steps: the value for step 0 is neither 0 nor *' replayed
edited 's/^  0.06,$/  -0.06,/'; expect 2 '*case.json: lr_steps: the value for step 1 is neither 0 nor *' replayed
edited 's/^  0.06,$/  1e-31,/'; expect 2 '*case.json: lr_steps: the value for step 1 is neither 0 nor *' replayed
edited 's/"momentum": 0.9/"momentum": "much"/'; expect 2 '*case.json: config: momentum *' replayed
cp "$folder/case.json" "$scratch/f2/"
edited '/"momentum": 0.9/d'; expect 0 '*: ok' replayed # the published default
cp "$folder/case.json" "$scratch/f2/"
cp "$folder/s2.fc1.weight.v.npy" "$scratch/f2/s3.fc1.weight.v.npy"
expect 1 '*weights and momentum after each step: largest * (step 3, fc1)*: exceeded' replayed
rm "$scratch/f2/s3.fc1.weight.v.npy"
expect 2 '*array s3.fc1.weight.v is missing' replayed

# Learning rates of 0: a schedule at its end, a first step of a warm-up.  v <- m v - lr PD, w <- w + v in double,
# with the recorded PD.
rates() { # ADJUST RATE...
  cp "$folder"/*.npy "$folder/case.json" "$scratch/f2/"
  python3 - "$scratch/f2" "$@" <<'END'
import array, glob, json, os, re, sys
at, adjust, lr = sys.argv[1], sys.argv[2] == "adjust", [float(x) for x in sys.argv[3:]]
case = json.load(open(at + "/case.json"))
pre = [lr[0]] + lr[:-1]
case.update(lr_steps=lr, lr_pre_steps=pre)
case["config"]["adjust_momentum"] = adjust
json.dump(case, open(at + "/case.json", "w"))
def read(name):
    raw = open(f"{at}/{name}.npy", "rb").read()
    head = 10 + int.from_bytes(raw[8:10], "little")
    return raw[:head], array.array("f", raw[head:])
def write(name, head, x):
    open(f"{at}/{name}.npy", "wb").write(head + array.array("f", x).tobytes())
for out in glob.glob(at + "/s0.*.out.npy"):
    p = re.fullmatch(r"s0\.(.*)\.out\.npy", os.path.basename(out)).group(1)
    head, w = read(f"s0.{p}.before")
    v = [0.0] * len(w)
    for s in range(len(lr)):
        m = case["config"]["momentum"] * (lr[s] / pre[s] if adjust and lr[s] < pre[s] else 1)
        v = [m * a - lr[s] * b for a, b in zip(v, read(f"s{s}.{p}.out")[1])]
        write(f"s{s}.{p}.before", head, w)
        w = [a + b for a, b in zip(w, v)]
        write(f"s{s}.{p}.after", head, w)
        write(f"s{s}.{p}.v", head, v)
END
}

# scaled VERSION: a loss scale beside weight decay: the factor of loss and gradients, and Chainer's rate for this factor.
scaled() { # VERSION
  python3 - "$decay" "$scratch/f2" "$1" <<'END'
import array, glob, json, os, sys
at, to, version = sys.argv[1:]
case = json.load(open(at + "/case.json"))
case["chainer"] = version
case["config"]["loss_scale"] = 8.0
case["config"]["weight_decay"] *= 8 if int(version.split(".")[0]) < 7 else 1
json.dump(case, open(to + "/case.json", "w"))
for path in glob.glob(at + "/*.npy"):
    raw = open(path, "rb").read()
    if path.endswith((".g.npy", ".grad.npy")):
        head = 10 + int.from_bytes(raw[8:10], "little")
        raw = raw[:head] + array.array("f", [8 * x for x in array.array("f", raw[head:])]).tobytes()
    open(to + "/" + os.path.basename(path), "wb").write(raw)
END
}
if command -v python3 >/dev/null; then # not in a bare Debian
  decay=$scratch/decay
  mkdir "$decay"
  "$helper" unpack "$golden/spngd-decay.safetensors" "$decay" || fail "unpack"
  for version in 5.4.0 6.0.0 7.8.1; do
    scaled $version || fail "scaled $version"
    expect 0 '*: ok' replayed --tolerance 3e-5
  done
  sed -i 's/7.8.1/6.7.0/' "$scratch/f2/case.json"
  expect 1 '*: exceeded' replayed --tolerance 3e-5
  rm -r "$scratch/f2"
  cp -r "$folder" "$scratch/f2"
  for adjust in adjust keep; do
    for lr in "0.1 0.06 0.08 0.02" "0.1 0 0.08 0" "0 0 0.1 0" "0.1 0 0 0.02" "0 0 0 0"; do
      # shellcheck disable=SC2086
      rates $adjust $lr || fail "rates $lr"
      expect 0 '*weights and momentum after each step: largest *: ok' replayed
    done
  done
  # Twice the rows, each with half the gradient: n doubles, A and G stay equal, whatever samples the other ranks have.
  rates keep 0.1 0.1 0.1 0.1
  python3 - "$scratch"/f2/s?.fc?.[ag].npy <<'END' || fail "sequences"
import array, sys
for path in sys.argv[1:]:
    raw = open(path, "rb").read()
    head = raw[:128].replace(b"'shape': (8,", b"'shape': (8,2,", 1).replace(b"  \n", b"\n", 1)
    if len(head) != 128 or head == raw[:128]:
        sys.exit(path)
    x = array.array("f", raw[128:])
    x = array.array("f", [a / 2 for a in x]) if path.endswith(".g.npy") else x
    open(path, "wb").write(head + x.tobytes() * 2)
END
  expect 0 '*: ok' replayed
  rates adjust 0.1 0 0.08 0.02
  cp "$folder/s1.fc1.weight.v.npy" "$scratch/f2/s2.fc1.weight.v.npy"
  expect 1 '*weights and momentum after each step: largest * (step 2, fc1)*: exceeded' replayed
else
  echo "python3 is missing: no learning rates of 0"
fi
cp "$folder"/*.npy "$folder/case.json" "$scratch/f2/"

# The same for a program that uses gradients only.
folder=$scratch/window
mkdir "$folder"
rm -r "$scratch/f2"
"$helper" unpack "$golden/window-mfac-momentum.safetensors" "$folder" || fail "unpack"
cp -r "$folder" "$scratch/f2"
expect 0 '*: ok' replayed --tolerance 2e-4
edited 's/"bn1.bias"/"bn1.weight"/'; expect 2 '*case.json: parameters has bn1.weight twice' replayed
edited 's/^ *3$/null/'; expect 2 '*case.json: parameter *: a length is not a whole number from 1 to 1048576' replayed
edited 's/"fc1.weight"/"fc3.weight"/'; expect 2 '*array s0.fc3.weight.grad is missing' replayed
edited 's/^ *80$/81/'; expect 2 '*array s0.fc1.weight.grad has 720 elements, but its parameter 729' replayed
edited 's/^ *80$/1048576, 1048576, 1048576/'
expect 2 '*case.json: parameter fc1.weight has more than 1073741824 elements' replayed
edited 's/"steps": [0-9]*/"steps": 100000/'
expect 2 '*case.json: steps, ranks and micro_batches need at least *' replayed

# An exceeded tolerance exits 1; one bad recording among good ones exits 2, and the others are replayed.
expect 1 '*tolerance 1e-12: exceeded' "$natgrad" replay "$file" --tolerance 1e-12
expect 1 '*: exceeded' "$natgrad" replay "$file" --damping 0.004
expect 1 '*: exceeded' "$natgrad" replay "$file" --stat_decay=0.9
"$natgrad" replay "$file" "$scratch/none" "$golden/kaisa-inverse-0.safetensors" >"$scratch/out" 2>&1
[[ $? == 2 && $(grep -c ': ok$' "$scratch/out") == 2 ]] || fail "one bad among three: $(cat "$scratch/out")"

# One changed number or NaN is reported.  (The last four bytes of
# the file are those of the last tensor, a result; the first after the header are conv1's input.)
overwrite() { # OFFSET BYTES
  printf '%b' "$2" | dd of="$bad" bs=1 seek="$1" conv=notrunc status=none
}
for case in kaisa-eigen-0 ranks2-eigen_dp; do
  for number in '\xff\xff\x7f\x7f' '\x00\x00\xc0\x7f'; do
    cp "$golden/$case.safetensors" "$bad"
    overwrite $(($(stat -c %s "$bad") - 4)) "$number"
    expect 1 '*: exceeded' "$natgrad" replay "$bad"
  done
done
cp "$file" "$bad"
overwrite $((8 + $(od -An -tu8 -N8 "$file"))) '\x00\x00\xc0\x7f'
expect 2 "*$bad: step 0: *conv1*" "$natgrad" replay "$bad"
cp "$golden/ranks2-eigen.safetensors" "$bad" # the other rank must not wait for the one that failed
overwrite $((8 + $(od -An -tu8 -N8 "$bad"))) '\x00\x00\xc0\x7f'
expect 2 "*$bad: rank 0: step 0: *conv1*" timeout $patience "$natgrad" replay "$bad"
finish
