PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export OMP_NUM_THREADS ?= 2
export TOKENIZERS_PARALLELISM ?= false
export SOAK_MINUTES ?= 10
# The others need a run, a model or a suite; each says which.
BENCHMARKS := $(filter-out $(patsubst %,benchmarks/%.py,audit_prediction found gpu insecure_verifiers published_beside_trl),$(wildcard benchmarks/[a-z]*.py))

.PHONY: setup demo demo-lm test check unit bench prove clients gallery docs clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), f"Gradus needs Python 3.11 or newer, this is {sys.version.split()[0]}; set PYTHON=/path/to/python3.11"'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/gradus run rhythm

# A published model: fetched once, or the file that SMOLLM2=FILE.gguf names.
demo-lm: $(STAMP)
	$(BIN)/gradus run examples/published/sums.toml --model "$$($(BIN)/python examples/published/smollm2.py)"

test: check unit

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/pyright --warnings
	-$(BIN)/python -m tests.budget
	$(BIN)/python -m tests.advisories

unit: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 3 --dist worksteal -m 'not slow'

prove: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[quantized]'
	$(BIN)/pytest -m slow -n 0

# The table of clients in docs/agents.md, which prove checks.
clients: $(STAMP)
	$(BIN)/python tests/interop/clients/table.py --learn

bench: $(STAMP)
	for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

# Reports and audits of five runs, for the site; runs that are missing are made.
gallery: $(STAMP)
	$(BIN)/python docs/gallery.py

docs: $(STAMP)
	$(BIN)/python docs/build.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
