# Each target works on a fresh machine with Python 3.11 or newer; `make install` comes first by itself.
# ARGS reaches the tool behind a target: make reference ARGS="api/nodes.json --messages"

BIN := .venv/bin
STAMP := .venv/.installed
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
PINNED := install --require-hashes --no-deps -r
PYTHON ?= python3 python3.11 python3.12 python3.13
ARGS ?=
# The suite starts our command hundreds of times: without bytecode each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := test
.PHONY: install demo test test-all check coverage bench soak mutants reference docs pictures

install: $(STAMP) ## .venv with the package and everything needed to develop and test it

demo: install ## a control plane, a gang that fits, one that does not, and why
	@$(BIN)/python examples/demo.py $(ARGS)

# mypy gives its workers three seconds to start, too few on a busy machine (exit code 2): then it runs without them.
check: install ## format, lint, types, layers
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary --num-workers=2 > .venv/mypy.log 2>&1 \
	  || { [ $$? -ne 2 ] && cat .venv/mypy.log && exit 1; } || $(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports > .venv/lint-imports.log || { cat .venv/lint-imports.log; exit 1; }

# Three workers on two cores: many tests wait for a process that they have started. Long tests are next
# to each other in their file, so that an idle worker can take some of them over (worksteal).
PYTEST := -m pytest --quiet -n 3 --dist worksteal

test: check ## the checks and the quick tests: six minutes on two idle cores
	@$(BIN)/python $(PYTEST) $(ARGS)

test-all: install ## the slow tests, then the coverage of the quick ones: half an hour
	@$(BIN)/python $(PYTEST) -m slow $(ARGS)
	@$(MAKE) --no-print-directory coverage

coverage: install ## branch coverage of the quick tests by package, against its floors
	@rm -rf .coverage && mkdir .coverage
	@$(BIN)/coverage run $(PYTEST) $(ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage json --quiet -o .coverage/report.json
	@$(BIN)/python -m tools.coverage_floors .coverage/report.json

soak: install ## the long fault programme and every property with many more examples
	@$(BIN)/python -m pytest --verbose -n 2 -m soak --timeout=0 --hypothesis-profile=soak $(ARGS)

mutants: install ## bugs planted one at a time, each of which the fault programme or the suite finds
	@$(BIN)/python -m tools.mutants $(ARGS)

bench: install ## benchmarks; writes benchmarks/results/latest.json
	@$(BIN)/python -m benchmarks.run $(ARGS)

docs: install ## the documents as a site, in build/site; a broken link is an error
	@$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --jobs 2 \
	  --conf-dir docs/site --doctree-dir build/doctrees . build/site $(ARGS)
	@echo build/site/docs/site/index.html

pictures: install ## the pictures of the page in docs/images; needs Chromium, and pngquant for small files
	@PHALANX_PICTURES=docs/images $(BIN)/python -m pytest --quiet -m slow tests/ui/test_pictures.py $(ARGS)
	@if command -v pngquant > /dev/null; then pngquant --force --ext .png --skip-if-larger docs/images/page-*.png; fi

reference: install ## the recorded answers of Kubernetes against ours; nothing that passed may fail
	@$(BIN)/python -m tools.reference $(ARGS)

# The stamp is younger than what it was made from, so a second call has nothing to do.
# uv installs in seconds what takes pip a minute, but does not read pip's configuration: pip is there for when it fails.
$(STAMP): requirements.lock requirements.uv.lock pyproject.toml
	@for python in $(PYTHON); do \
	  "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; \
	  python=; \
	done; \
	[ -n "$$python" ] || { echo "phalanx needs Python 3.11 or newer: install it, or name one with make PYTHON=/path/to/python" >&2; exit 1; }; \
	echo "installing into .venv with $$("$$python" --version)"; \
	"$$python" -m venv .venv
	@{ $(PIP) $(PINNED) requirements.uv.lock && VIRTUAL_ENV=.venv $(BIN)/uv pip -q $(PINNED) requirements.lock; } \
	  || { echo "uv does not reach the packages; pip takes a minute"; $(PIP) $(PINNED) requirements.lock; }
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@
