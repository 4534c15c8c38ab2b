#!/usr/bin/env bash
# image_ranks.sh [RANKS]: damaged image files on several ranks: threads, or RANKS processes under mpirun. Each process
# reports and counts a damaged file once. If more than 1 % of the files are damaged, all ranks end with one line.
. "$(dirname "$0")/lib_ranks.sh"
cd "$scratch" || exit 1
"$NG_BUILD_DIR/cli_pictures" good 2 100
[[ $? == 77 ]] && echo "skipped: built without libjpeg-turbo or libpng" && exit 77
n=${processes:-3}

# make_damaged DIR NUMBER...: make a folder of 200 files; the files with these numbers are empty
make_damaged() {
  local to=$1 i
  cp -r good "$to"
  for i in "${@:2}"; do
    : >"$(find "$to" -name "image_$(printf %03d "$i").*" -path '*/class_00/*')"
  done
}
make_damaged two 10 60
make_damaged three 3 10 17
how=(--model logreg --method sgd --batch 21 --lr-schedule constant --quiet)

# Messages of the program, without messages of the launcher.
program_messages() { grep '^natgrad: ' "$scratch/said"; }

got=0
train_on "$n" --data images:two,size=16 "${how[@]}" --epochs 3 >/dev/null 2>"$scratch/said" || got=$?
[[ $got == 0 ]] || fail "two of 200: exit $got: $(program_messages)"
for file in 010 060; do
  times=$(program_messages | grep -c "two/class_00/image_$file.*: unreadable, left out ([12] of 200 files): ")
  ((times >= 1 && times <= ${processes:-1})) || fail "image_$file: $(program_messages)"
done

# A process counts the files that it reads: three ranks of one process read all files, a process may read fewer.
if [[ -z $processes ]]; then
  got=0
  train_on "$n" --data images:three,size=16 "${how[@]}" --epochs 3 >/dev/null 2>"$scratch/said" || got=$?
  [[ $got == 2 && $(program_messages | wc -l) == 3 && $(program_messages | grep -c 'unreadable, left out ([12] of 200 files): ') == 2 &&
    $(program_messages | grep -c '^natgrad: --data: images: 3 of 200 files are unreadable, more than 1 %; the last is three/class_00/image_0') == 1 ]] ||
    fail "three of 200: exit $got: $(program_messages)"
fi

# Other files are reported once.
touch two/class_00/notes.txt
train_on "$n" --data images:two,size=16 "${how[@]}" --steps 1 >/dev/null 2>"$scratch/said" || fail "a note: $(program_messages)"
[[ $(program_messages | grep -c '1 file is not named .jpg, .jpeg or .png, left out; the first is two/class_00/notes.txt') == 1 ]] ||
  fail "a note: $(program_messages)"
finish
