# Short commands.  CMakeLists.txt has the build, CMakePresets.json its variants.
#
#   make                     configure and build (release)       make BUILD=/somewhere/else
#   make check               the quick tests, under 4 minutes    make check ONLY=linalg  (any tests, a regex)
#   make check-all           every test, with both PyTorches     make check-all TORCH=none  (without)
#   make demo                five methods on digits: a table, and curves in build/demo
#   make info, make bench    print the features of the build; run the benchmarks
#   make asan, make tsan     the tests under sanitizers          make torture  (a quarter of an hour)
#   make mutants             break one line at a time; list the lines that no test notices (an hour)
#   make same-bits REV=HEAD~1    compare results with another commit, bit for bit
#   make format, make tidy   clang-format; clang-tidy and cppcheck
#   make install PREFIX=/usr/local DESTDIR=                      make clean

BUILD ?= build
PREFIX ?= /usr/local
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
ONLY ?=
TORCH ?=
CONFIGURE ?=
REV ?= HEAD
COUNT ?= 300
SEED ?= 1
# Time limits are for what hangs: 1800 s a test and 600 s a wait in a test (NG_TEST_TIMEOUT), times the processes that share a
# core: JOBS tests, and those that run already (/proc/loadavg).  Sanitizers make tests five to fifteen times slower.
SHARING := $(shell awk -v jobs=$(JOBS) -v cores=$$(nproc) '{ n = int(($$1 + jobs) / cores); print (n > 1 ? n : 1) }' /proc/loadavg)
export NG_TEST_TIMEOUT ?= $(shell expr 600 \* $(SHARING))
limit = --timeout $(shell expr $(1) \* $(SHARING))
CTEST = ctest --output-on-failure --no-tests=error -j $(JOBS) $(call limit,1800)
# Tests to run: those that ONLY matches, else those of a tier.
select = $(if $(ONLY),-R '$(ONLY)',$(1)) -LE '^long$$'

.PHONY: all configure packages check check-all tests-built bench info asan tsan torture mutants same-bits demo format tidy install \
        clean

all: configure
	@cmake --build $(BUILD) -j $(JOBS)

# Ninja configures again by itself when a list of files changed; this is for the first time and for
# options given in CONFIGURE.
configure:
	@if [ ! -f $(BUILD)/build.ninja ] || [ -n '$(CONFIGURE)' ]; then \
	  cmake --preset release -B $(BUILD) $(CONFIGURE); fi

packages:
	@scripts/bootstrap.sh

# Installs missing packages and builds; fails if the build folder has no tests.
tests-built: packages all
	@test -f $(BUILD)/CTestTestfile.cmake || { echo "natgrad: $(BUILD) was configured without tests: \
	  make CONFIGURE=-DNATGRAD_TESTS=ON says what is missing" >&2; exit 1; }

check: tests-built
	@$(CTEST) --test-dir $(BUILD) $(call select,-L '^quick$$')
	@$(if $(ONLY),:,echo "make check: the quick tests; make check-all runs all of them")

check-all: tests-built
	@$(if $(filter none,$(TORCH)),:,scripts/torch.sh --tests)
	@$(CTEST) --test-dir $(BUILD) $(if $(ONLY),-R '$(ONLY)') -E '^(linalg_9216|python_manylinux)$$'

bench: all
	$(BUILD)/natgrad bench kfac --model resnet18 --batch 32

info: all
	@$(BUILD)/natgrad info

asan: packages
	@cmake --preset asan && cmake --build --preset asan -j $(JOBS)
	@ctest --preset asan --no-tests=error -j $(JOBS) $(call limit,5400) $(if $(ONLY),-R '$(ONLY)')

# Some kernels place memory where an older thread sanitizer does not expect it: run without address
# randomisation where that is allowed.
tsan: packages
	@cmake --preset tsan && cmake --build --preset tsan -j $(JOBS)
	@plain="setarch $$(uname -m) -R"; $$plain true 2>/dev/null || plain=; \
	  $$plain ctest --preset tsan --no-tests=error -j $(JOBS) $(call limit,5400) $(if $(ONLY),-R '$(ONLY)')

torture: packages all
	@BUILD=$(BUILD) scripts/torture.sh

# Lines are broken in copies of the tree; scripts/mutate.py --list prints those that no test noticed.
mutants: packages
	@test -x build-mutants/venv/bin/mutate || { python3 -m venv build-mutants/venv && \
	  build-mutants/venv/bin/pip install --quiet universalmutator; }
	@build-mutants/venv/bin/python scripts/mutate.py --count $(COUNT) --seed $(SEED) --jobs $(JOBS)

# Compare this tree, with its uncommitted changes, with the commit REV, or with the build in BASE=folder.
same-bits:
	@scripts/same_bits.sh $(if $(BASE),--base $(BASE),$(REV))

demo: packages all
	@rm -rf $(BUILD)/demo
	$(BUILD)/natgrad compare --data digits --model mlp --methods sgd,adamw,natgrad,kaisa,eva --seeds 3 \
	  --epochs 20 --grid lr=0.0001,0.0003,0.001,0.003,0.01,0.03,0.1,0.3,1,3 --grid-seeds 3 --validation 360 \
	  --out $(BUILD)/demo
	@echo "curves: $(BUILD)/demo/curves.png"

format:
	@scripts/bootstrap.sh --dev
	@git ls-files -co --exclude-standard '*.c' '*.cpp' '*.h' | xargs clang-format -i

tidy: packages
	@scripts/bootstrap.sh --dev
	@cmake --preset dev >/dev/null
	@git ls-files -co --exclude-standard 'base/*.c' 'src/*.c' 'io/*.c' 'cli/*.c' 'examples/*.c' | \
	  xargs -P $(JOBS) -n 1 clang-tidy --quiet -p build-dev --warnings-as-errors='*' 2>/dev/null
	@cppcheck --std=c11 --language=c -j $(JOBS) --quiet --error-exitcode=1 --inline-suppr \
	  --enable=warning,performance,portability \
	  -D_GNU_SOURCE -DNG_EXPERIMENTAL -DNG_HAVE_BLAS -Iinclude -Isrc -Ibase -Iio base src io cli examples/*.c

install:
	@test -f $(BUILD)/build.ninja || $(MAKE) all
	@cmake --install $(BUILD) --prefix $(PREFIX)

clean:
	@rm -rf build build-dev build-asan build-tsan build-fuzz build-bits build-wheel build-mutants
