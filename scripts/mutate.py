#!/usr/bin/env python3
"""Break one line of the sources at a time and check whether a test fails: `make mutants`.

  scripts/mutate.py [--count 300] [--seed 1] [--jobs 1] [--room build-mutants] [--only REGEX] [--tests REGEX]
  scripts/mutate.py --list        list the survivors, with the original and the changed line
  scripts/mutate.py --again FILE  run only the mutants of FILE, wherever their lines are now: the path of a
                                  source, then "- old line" and "+ new line", as in docs/mutants.txt

A mutant is the source with one changed line, in C (base/, io/, src/, cli/, cuda/) or in Python (python/natgrad/).
universalmutator and its rules for the language make the mutants.  A line is drawn with equal probability, then one mutant of
that line; the seed determines the draws.  Another draw replaces a mutant in three cases:
- The mutant does not compile.
- The object file (in Python: the syntax tree without docstrings) equals the one of the original or of an earlier mutant.
- This build does not compile the file.
--only selects files, --tests selects tests.

All work happens in copies of the tree under ROOM (the folder of --room).  One copy is built for gcov and runs every test once, to
record which tests execute which line of C; a line of Python is executed by every test of Python.  For each mutant, the tests
that execute its line run until one fails: quick tests, and tests that noticed other mutants of the file, run first.  The other
copies, one for each job, are built at -O1; a mutant costs one object file and the links of its tests.  A test's time limit is
20 s plus five times its duration in the gcov copy; after a timeout
it runs again with four times that limit, and a second timeout counts as noticed.  Lines that no test executes are reported
separately.  Tests of style and of installation do not run, nor cli_bench, which measures time.

Results are appended to ROOM/results.jsonl, one mutant a line; the same command continues a stopped run.
"""
import argparse
import ast
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time

LEFT_OUT = r"^(cli_bench|readme|house.*|rooms.*|exports|globals|header|install|linalg_9216|example_40_.*)$"
SLACK, TIMES = 20, 5
TOPS = ("base", "io", "src", "cli", "cuda", "python/natgrad")
RULES = {".c": ["universal.rules", "c_like.rules", "c.rules"], ".py": ["universal.rules", "python.rules"]}
JOBS = str(os.cpu_count() or 1)


def run_command(command, **keys):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **keys)
    return done.returncode, done.stdout


def run_or_exit(command, **keys):
    code, out = run_command(command, **keys)
    if code:
        sys.exit("mutate: this failed: %s\n%s" % (" ".join(command), out[-4000:]))
    return out


# ---- Trees ---------------------------------------------------------------------------------------


class TreeCopy:
    """A copy of the tracked files and its build folder."""

    def __init__(self, room, name, flags, chosen):
        self.source = os.path.join(room, name)
        self.build = os.path.join(room, name, "build")
        self.tmp = os.path.join(room, name + "-tmp")
        self.flags = flags
        self.chosen = chosen

    def copy_and_build(self, root):
        os.makedirs(self.source, exist_ok=True)
        for path in run_or_exit(["git", "-C", root, "ls-files", "-co", "--exclude-standard"]).split("\n"):
            there, here = os.path.join(root, path), os.path.join(self.source, path)
            if not path or not os.path.isfile(there):
                continue
            os.makedirs(os.path.dirname(here), exist_ok=True)
            if not os.path.exists(here) or open(here, "rb").read() != open(there, "rb").read():
                shutil.copy(there, here)
        run_or_exit(["cmake", "-G", "Ninja", "-S", self.source, "-B", self.build, "-DCMAKE_BUILD_TYPE=Release",
                     "-DNATGRAD_TESTS=ON", "-DCMAKE_C_FLAGS_RELEASE=" + self.flags])
        run_or_exit(["ninja", "-C", self.build, "-j", JOBS])
        self.known = set()
        for line in run_or_exit(["ninja", "-C", self.build, "-t", "targets", "all"]).split("\n"):
            self.known.add(line.split(":")[0])

    def list_tests(self):
        found = {}
        listed = json.loads(run_or_exit(["ctest", "--test-dir", self.build, "--show-only=json-v1"]))
        for t in listed["tests"]:
            if re.match(LEFT_OUT, t["name"]) or not re.search(self.chosen, t["name"]):
                continue
            p = {x["name"]: x["value"] for x in t["properties"]}
            found[t["name"]] = {"command": t["command"], "cwd": p["WORKING_DIRECTORY"],
                                "env": dict(e.split("=", 1) for e in p.get("ENVIRONMENT", []))}
        return found

    def programs_of_test(self, test):
        """Return the programs to link before the test runs."""
        near = [os.path.relpath(c, self.build) for c in test["command"] if c.startswith(self.build)]
        near = [t for t in near if t in self.known]
        if test["command"][0].endswith(".sh"):
            near += [t for t in ("natgrad", "cli_helper", "cli_fake_openblas", "cli_try_each") if t in self.known]
        return near

    def run_test(self, test, limit, umask=0o022):
        """Return (exit status, seconds, output); the status is 'late' after a timeout."""
        shutil.rmtree(self.tmp, ignore_errors=True)
        os.makedirs(self.tmp)

        def limit_child_process():
            os.setsid()
            os.umask(umask)
            resource.setrlimit(resource.RLIMIT_AS, (76 << 30, 76 << 30))  # tests/late_memory.c reserves 64 GiB
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        log = open(os.path.join(self.tmp, "out"), "w+b")
        began = time.monotonic()
        p = subprocess.Popen(test["command"], cwd=test["cwd"], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                             env={**os.environ, "TMPDIR": self.tmp, "OPENBLAS_NUM_THREADS": "1", **test["env"]},
                             preexec_fn=limit_child_process)
        try:
            code = p.wait(limit)
        except subprocess.TimeoutExpired:
            code = "late"
        took = time.monotonic() - began
        try:
            os.killpg(p.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        p.wait()
        log.seek(max(0, log.seek(0, 2) - 2000))
        return code, took, log.read().decode(errors="replace")


# ---- Which test executes which line --------------------------------------------------------------


def checksum_of_sources(tree):
    """Return a checksum of the sources; coverage is measured again if it changes."""
    h = hashlib.sha256()
    for top in TOPS:
        for folder, _, files in sorted(os.walk(os.path.join(tree.source, top))):
            for f in sorted(files):
                h.update(f.encode() + open(os.path.join(folder, f), "rb").read())
    return h.hexdigest()


def read_line_counts(tree):
    """Yield (path, line, executed) of each line, by the counters that gcov wrote since they were deleted."""
    data = [os.path.join(folder, f) for folder, _, files in os.walk(tree.build) for f in files
            if f.endswith(".gcda") and re.search(r"/(%s)/" % "|".join(TOPS), os.path.join(folder, f))]
    if not data:
        return
    said = subprocess.run(["gcov", "--stdout", "--json-format"] + data, cwd=tree.tmp, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True, check=True).stdout
    for part in said.split("\n"):
        for f in json.loads(part)["files"] if part.startswith("{") else []:
            path = os.path.relpath(os.path.join(tree.source, f["file"]), tree.source)  # -ffile-prefix-map
            for x in f["lines"]:
                yield path, str(x["line_number"]), x["count"] > 0


def measure_coverage(room, tree):
    """Return {file: {line: [tests]}} and {test: seconds}.  The file coverage.json stores them; only new tests are run."""
    kept = os.path.join(room, "coverage.json")
    k = json.load(open(kept)) if os.path.exists(kept) else {}
    if k.get("of") != checksum_of_sources(tree):
        k = {"of": checksum_of_sources(tree), "lines": {}, "seconds": {}}
    tests = tree.list_tests()
    left = sorted(set(tests) - set(k["seconds"]))
    for i, name in enumerate(left):
        for folder, _, files in os.walk(tree.build):
            os.chmod(folder, 0o777)  # a test may continue as another user
            for f in files:
                if f.endswith(".gcda"):
                    os.unlink(os.path.join(folder, f))
        code, took, out = tree.run_test(tests[name], 1200, umask=0)
        print("coverage %d/%d %s: %s, %.1f s" % (i + 1, len(left), name, code, took), flush=True)
        if code not in (0, 77):
            print(out + "(the test fails in the gcov copy, so it is not used)", flush=True)
        if code != 0:
            continue
        k["seconds"][name] = took
        for path, line, ran in read_line_counts(tree):
            by = k["lines"].setdefault(path, {}).setdefault(line, [])
            if ran and name not in by:
                by.append(name)
        with open(kept + ".part", "w") as f:
            json.dump(k, f)
        os.rename(kept + ".part", kept)
    return k["lines"], k["seconds"]


def tests_of_line(lines, seconds, path, line):
    """Return the tests that execute a line.  For a line without machine code: the tests of the nearest lines before and after
    it; for a table outside functions: all tests."""
    of = lines.get(path, {})
    if path.endswith(".py"):
        return {n for n in seconds if n.startswith("python_")}
    if str(line) in of:
        return set(of[str(line)])
    numbers = sorted(int(n) for n in of)
    before = [n for n in numbers if n < line][-1:]
    after = [n for n in numbers if n > line][:1]
    if not before or line - before[0] > 4:
        return set(seconds)
    return set(of[str(before[0])]) | (set(of[str(after[0])]) if after else set())


# ---- Mutants -------------------------------------------------------------------------------------


def make_mutants(tree):
    """Return [(path, line, [(new text, rule)])] of all lines that have mutants."""
    try:
        from universalmutator import mutator
    except ImportError:
        sys.exit("mutate: no universalmutator; `make mutants` installs it in build-mutants/venv, or pip does")
    found = []
    said, sys.stdout = sys.stdout, open(os.devnull, "w")
    try:
        for top in TOPS:
            for folder, _, files in sorted(os.walk(os.path.join(tree.source, top))):
                for f in sorted(files):
                    kind = os.path.splitext(f)[1]
                    if kind not in RULES:
                        continue
                    path = os.path.relpath(os.path.join(folder, f), tree.source)
                    text = open(os.path.join(folder, f)).readlines()
                    by = {}
                    for m in mutator.mutants_regexp(text, RULES[kind], ignorePatterns=[], ignoreStringOnly=True):
                        if m[1].split() != text[m[0] - 1].split():
                            by.setdefault(m[0], []).append((m[1], m[2][0]))
                    found += [(path, n, sorted(set(by[n]))) for n in sorted(by)]
    finally:
        sys.stdout = said
    return found


def mutant_key(path, line, new):
    return hashlib.sha256(("%s:%d:%s" % (path, line, new)).encode()).hexdigest()[:12]


def draw_mutants(found, seed):
    """Yield mutants until none is left: draw a line, then one of its mutants that was not drawn before."""
    dice = random.Random(seed)
    left = [(p, n, list(ms)) for p, n, ms in found]
    while left:
        i = dice.randrange(len(left))
        path, line, ms = left[i]
        new, rule = ms.pop(dice.randrange(len(ms)))
        if not ms:
            left[i] = left[-1]
            left.pop()
        yield {"key": mutant_key(path, line, new), "path": path, "line": line, "new": new, "rule": rule}


def compiled_checksum(tree, objects, path):
    """Compile a source.  Return a checksum of the object file, or of the syntax tree; None after an error."""
    if path.endswith(".py"):
        try:
            text = open(os.path.join(tree.source, path)).read()
            compile(text, path, "exec")
            tree = ast.parse(text)
            for node in ast.walk(tree):  # a docstring does nothing
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
                    node.body[0].value.value = ""
            return hashlib.sha256(ast.dump(tree).encode()).hexdigest()
        except SyntaxError:
            return None
    code = path not in objects or run_command(["ninja", "-C", tree.build, objects[path]])[0]
    return None if code else hashlib.sha256(open(os.path.join(tree.build, objects[path]), "rb").read()).hexdigest()


class MutantRunner:
    def __init__(self, room, count, lines, seconds, found):
        self.lock = threading.Lock()
        self.found = found
        self.lines, self.seconds, self.count = lines, seconds, count
        self.results = os.path.join(room, "results.jsonl")
        self.seen = {}
        self.noticed = {}
        self.objects = {}
        if os.path.exists(self.results):
            for text in open(self.results):
                r = json.loads(text)
                self.seen[r["key"]] = r
                self.count_noticing_test(r)
        self.busy = 0

    def count_judged(self):
        return sum(1 for r in self.seen.values() if r["verdict"] in ("killed", "survived", "not covered"))

    def count_noticing_test(self, r):
        if r["verdict"] == "killed":
            for k in (r["path"], None):
                self.noticed[k, r["by"]] = self.noticed.get((k, r["by"]), 0) + 1

    def record_result(self, r):
        with self.lock:
            self.seen[r["key"]] = r
            self.count_noticing_test(r)
            with open(self.results, "a") as f:
                f.write(json.dumps(r) + "\n")
            if r["verdict"] in ("killed", "survived", "not covered"):
                print("%4d %s %s:%d %s%s  %s" % (self.count_judged(), r["key"], r["path"], r["line"], r["verdict"],
                      " by " + r["by"] if r.get("by") else "", " ".join(r["new"].split())), flush=True)

    def sort_by_cost(self, path, names):
        def expected_cost(n):
            return self.seconds[n] / (1 + 20 * self.noticed.get((path, n), 0) + self.noticed.get((None, n), 0))
        return sorted(names, key=expected_cost)

    def run_mutant(self, tree, tests, objects, m):
        """Apply the mutant, run the tests of its line until one fails, restore the source.  Return the verdict."""
        path = os.path.join(tree.source, m["path"])
        good = open(path).read()
        bad = good.split("\n")
        old = bad[m["line"] - 1]
        bad[m["line"] - 1] = m["new"].rstrip("\n")
        r = dict(m, old=old)
        try:
            with open(path, "w") as f:
                f.write("\n".join(bad))
            same = compiled_checksum(tree, objects, m["path"])
            if same is None:
                return dict(r, verdict="does not compile")
            with self.lock:
                first = self.objects.setdefault((m["path"], same), m["key"])
            if first != m["key"]:
                return dict(r, verdict="same object as " + first)
            names = tests_of_line(self.lines, self.seconds, m["path"], m["line"]) & set(tests)
            if not names:
                return dict(r, verdict="not covered")
            began = time.monotonic()
            ran = 0
            while names:
                with self.lock:
                    name = self.sort_by_cost(m["path"], names)[0]
                names.discard(name)
                code, out = run_command(["ninja", "-C", tree.build] + tree.programs_of_test(tests[name]))
                if code:
                    return dict(r, verdict="does not link", said=out[-1000:])
                limit = SLACK + TIMES * self.seconds[name]
                code, took, out = tree.run_test(tests[name], limit)
                if code == "late":  # another program may have slowed the machine
                    code, took, out = tree.run_test(tests[name], 4 * limit)
                ran += 1
                if code not in (0, 77):
                    return dict(r, verdict="killed", by=name, code=code, took=round(time.monotonic() - began, 1), ran=ran)
            return dict(r, verdict="survived", took=round(time.monotonic() - began, 1), ran=ran)
        finally:
            with open(path, "w") as f:
                f.write(good)

    def run_until_done(self, tree, draw):
        tests = tree.list_tests()
        objects = {}
        for c in json.load(open(os.path.join(tree.build, "compile_commands.json"))):
            obj = re.search(r" -o (\S+)", c["command"]).group(1)
            objects.setdefault(os.path.relpath(c["file"], tree.source), obj)
        for path in {m[0] for m in self.found}:
            with self.lock:
                self.objects.setdefault((path, compiled_checksum(tree, objects, path)), "the source")
        while True:
            with self.lock:
                if self.count and self.count_judged() + self.busy >= self.count:
                    return
                m = next(draw, None)
                if m is None:
                    return
                if m["key"] in self.seen:
                    continue
                self.busy += 1
            try:
                r = self.run_mutant(tree, tests, objects, m)
            finally:
                with self.lock:
                    self.busy -= 1
            self.record_result(r)


def print_summary(judge):
    by = {}
    for r in judge.seen.values():
        room = os.path.dirname(r["path"])
        v = r["verdict"] if r["verdict"] in ("killed", "survived", "not covered") else "dropped"
        by.setdefault(room, {}).setdefault(v, []).append(r)
    for room in sorted(by):
        print("%-14s %s" % (room, ", ".join("%d %s" % (len(by[room][v]), v) for v in sorted(by[room]))))
    for v in ("killed", "survived", "not covered"):
        print("%s: %d" % (v, sum(len(b.get(v, [])) for b in by.values())))
    print("dropped (do not compile, same object file): %d" % sum(len(b.get("dropped", [])) for b in by.values()))


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--count", type=int, default=300)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--jobs", type=int, default=1)
    a.add_argument("--room", default="build-mutants")
    a.add_argument("--only", default=".")
    a.add_argument("--tests", default=".")
    a.add_argument("--list", action="store_true")
    a.add_argument("--again")
    o = a.parse_args()
    root = run_or_exit(["git", "rev-parse", "--show-toplevel"]).strip()
    room = os.path.abspath(os.path.join(root, o.room))
    os.makedirs(room, exist_ok=True)
    if o.list:
        judge = MutantRunner(room, 0, {}, {}, [])
        for r in sorted(judge.seen.values(), key=lambda r: (r["path"], r["line"])):
            if r["verdict"] in ("survived", "not covered"):
                print("%s %s:%d %s\n  - %s\n  + %s" % (r["key"], r["path"], r["line"], r["verdict"], r["old"].strip(),
                                                      " ".join(r["new"].split())))
        print_summary(judge)
        return
    gcov = TreeCopy(room, "gcov", "-O1 --coverage", o.tests)
    gcov.copy_and_build(root)
    lines, seconds = measure_coverage(room, gcov)
    trees = [TreeCopy(room, "tree%d" % j, "-O1", o.tests) for j in range(o.jobs)]
    for t in trees:
        t.copy_and_build(root)
    found = [f for f in make_mutants(trees[0]) if re.search(o.only, f[0])]
    print("%d mutants of %d lines" % (sum(len(f[2]) for f in found), len(found)), flush=True)
    judge = MutantRunner(room, o.count, lines, seconds, found)
    draw = draw_mutants(found, o.seed)
    if o.again:
        asked = re.findall(r"^(\S+\.(?:c|py))$\n +- (.*)\n +\+ (.*)$", open(o.again).read(), re.M)
        draw = ({"key": mutant_key(p, n, new), "path": p, "line": n, "new": new, "rule": "asked"}
                for p, old, new in asked for n, line in enumerate(open(os.path.join(trees[0].source, p)), 1)
                if line.split() == old.split())
    workers = [threading.Thread(target=judge.run_until_done, args=(t, draw)) for t in trees]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    print_summary(judge)


if __name__ == "__main__":
    main()
