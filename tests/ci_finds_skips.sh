#!/usr/bin/env bash
# .ci/run fails if a test was skipped without a reason in tests/skips.txt, did not run or failed, or if no test ran.  A
# tree of three files has a `make check-all` that prints given lines.
set -u -o pipefail
root=$NG_TEST_SOURCE_DIR
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/tree/.ci" "$work/tree/tests"
cp "$root/.ci/run" "$work/tree/.ci/run"
printf '# sharp  no\nknown  a reason\nt_some:known_case  another\nbare\npart_*_of  a third\n' >"$work/tree/tests/skips.txt"
cat >"$work/tree/Makefile" <<'END'
check-all:
	@cat said
	@mkdir -p build/Testing/Temporary && cat log >build/Testing/Temporary/LastTest.log
	@exit $$(cat code)
END
failures=0
# ci WANT CODE LOG SAID...: WANT: the expected exit code; CODE: the exit code of make check-all; LOG: the log of ctest;
# SAID: lines of ctest
ci() {
  local want=$1 got=0
  echo "$2" >"$work/tree/code"
  printf "$3" >"$work/tree/log"
  printf '%s\n' "${@:4}" >"$work/tree/said"
  TMPDIR=$work "$work/tree/.ci/run" >"$work/out" 2>&1 || got=$?
  [[ $want == 0 && $got == 0 || $want != 0 && $got != 0 ]] && return
  echo "exit $got instead of $want: $*"
  cat "$work/out"
  failures=$((failures + 1))
}
all='100% tests passed, 0 tests failed out of 5'
ci 0 0 '' "$all"
ci 0 0 '' "$all" '	 12 - known (Skipped)'
ci 1 0 '' "$all" '	 12 - unknown (Skipped)'
ci 1 0 '' "$all" '	 12 - knowns (Skipped)'
ci 1 0 '' "$all" '	 12 - bare (Skipped)'
ci 1 0 '' "$all" '	 12 - known (Skipped)' '	 13 - unknown (Not Run)'
ci 1 0 '' "$all" '	 13 - unknown (Disabled)'
ci 0 0 '3/5 Test: t_some\n[  SKIPPED ] known_case\n' "$all"
ci 1 0 '3/5 Test: t_some\n[  SKIPPED ] other_case\n' "$all"
ci 1 0 '3/5 Test: t_other\n[  SKIPPED ] known_case\n' "$all"
ci 0 0 '' "$all" '	 12 - part_one_of (Skipped)'
ci 1 0 '' "$all" '	 12 - part_one_off (Skipped)'
ci 1 0 '' "$all" '	 12 - sharp (Skipped)'
ci 1 2 '' '80% tests passed, 1 tests failed out of 5'
ci 1 0 '' 'nothing to be done'
exit $((failures > 0))
