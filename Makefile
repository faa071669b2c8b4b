# A fresh machine needs Python >= 3.11, venv and make; everything else is installed into .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
RUN    ?= runs/demo
API    := .venv-api
DISTRIBUTED := .venv-distributed
TEST_TOOLS  := pytest pytest-xdist hypothesis httpx pandas pyarrow
COVERAGE := build/coverage
VERSION_TESTS := $(addprefix tests/,flows/test_command_line.py runs golden nn data/test_table.py data/test_parquet.py \
	data/test_dataset.py data/test_prepare.py training/test_train.py training/test_optimizer.py \
	serving/test_ranker.py serving/http/test_app.py) -k 'not bundle'

.PHONY: help demo serve-demo test test-fast test-browser test-api test-distributed test-versions test-readme torture mutants coverage check format docs audit release clean

help:            ## list the targets
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: $(VENV)/.core  ## train, evaluate and explain on the built-in click log
	@$(BIN)/crossrank demo --into $(RUN) --overwrite

serve-demo: $(VENV)/.serve  ## train on the built-in click log, and serve the model at http://127.0.0.1:8000
	@test -f $(RUN)/dcn-v2/run.json || $(BIN)/crossrank demo --into $(RUN) --overwrite
	@$(BIN)/crossrank serve $(RUN)/dcn-v2

test: $(VENV)/.dev  ## every test
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal --durations 30 --durations-min 5

test-fast: $(VENV)/.dev  ## what is not marked slow
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m "not slow"

test-browser: $(VENV)/.dev  ## the report in a real browser; installs Debian's Chromium where it is missing
	@command -v chromium > /dev/null || (apt-get update -qq && apt-get install -y -qq chromium)
	@$(PIP) -e '.[browser]'
	@$(BIN)/python -m pytest -q tests/reports tests/serving/http/test_page.py

test-api: $(VENV)/.dev  ## the server against its OpenAPI document; installs schemathesis into an environment of its own
	@test -x $(API)/bin/schemathesis || ($(PYTHON) -m venv $(API) && $(API)/bin/pip install --quiet schemathesis==4.32)
	@PATH="$(abspath $(API))/bin:$$PATH" $(BIN)/python -m pytest -q tests/serving/http/test_openapi.py

test-distributed: $(DISTRIBUTED)/.ready  ## several processes with TorchRec and Ray, in an environment of their own
	@OMP_NUM_THREADS=1 $(DISTRIBUTED)/bin/python -m pytest -q tests/distributed \
		tests/docs/test_guides.py -k 'not test_guides or several_processes'

# What a user may have: the lower bounds of pyproject.toml, and the newest of everything. What they warn of is not ours.
test-versions:   ## the lowest and the highest versions that are allowed, each in an environment of its own
	@mkdir -p build && grep -oE '"[a-z-]+>=[0-9.]+,' pyproject.toml | tr -d '",' | sed 's/>=/==/' > build/lowest.txt
	@for bound in lowest highest; do \
	  test -x build/$$bound/bin/python || $(PYTHON) -m venv build/$$bound; \
	  constraints=$$(test $$bound = highest || echo '-c build/lowest.txt'); \
	  build/$$bound/bin/python -m pip install -q --upgrade --upgrade-strategy eager $$constraints -e '.[serve]' $(TEST_TOOLS) \
	  && build/$$bound/bin/python -m pip list --format freeze | grep -E '^(numpy|polars|rich|safetensors|torch|typer|starlette|uvicorn)=' \
	  && OMP_NUM_THREADS=1 build/$$bound/bin/python -m pytest -q -n 2 -m "not slow" -W default $(VERSION_TESTS) || exit 1; done

test-readme:     ## the README as a stranger meets the last commit: an empty home, no cache, everything installed anew
	@rm -rf build/stranger && mkdir -p build/stranger/home build/stranger/copy
	@git archive HEAD | tar -x -C build/stranger/copy
	@cd build/stranger/copy && env -i HOME=$$PWD/../home PATH="$$PATH" PIP_NO_CACHE_DIR=1 $$(env | grep '^PIP_') \
		sh -c 'make demo && make .venv/.dev && .venv/bin/python -m pytest -q tests/docs/test_guides.py -k README'

torture: $(VENV)/.dev  ## kill every command at its file operations, and let the disk fail it, 2,000 times
	@$(BIN)/python tests/torture/torture.py --cases 2000 --jobs $$(nproc)

mutants: $(VENV)/.dev  ## change the mathematics at 200 places, one at a time, and list what no test notices
	@$(BIN)/python benchmarks/mutate.py --sample 200

# Beside the environment, so that nothing else is measured by accident; every process of the tests finds it by its path.
# Saved when tests end: a worker of xdist that takes long to leave is killed, and would take what it counted with it.
coverage: $(VENV)/.dev  ## lines and branches of src that the tests reach; of the slow ones, those of the server's processes
	@rm -f $(COVERAGE)/data*
	@test -d $(COVERAGE)/site/coverage || $(BIN)/python -m pip install -q --no-deps --target $(COVERAGE)/site coverage==7.17.2
	@echo 'import coverage; coverage.process_startup()' > $(COVERAGE)/site/sitecustomize.py
	@printf 'import coverage\n\ndef pytest_sessionfinish():\n    coverage.Coverage.current().save()\n' > $(COVERAGE)/site/save_coverage.py
	@COVERAGE_FILE=$(abspath $(COVERAGE))/data COVERAGE_PROCESS_START=$(abspath pyproject.toml) \
		COVERAGE_SOURCE=$(abspath src/crossrank) \
		PYTHONPATH=$(abspath $(COVERAGE))/site OMP_NUM_THREADS=1 sh -c \
		'$(BIN)/python -m pytest -q -n 2 -p save_coverage -m "not slow" && \
		$(BIN)/python -m pytest -q -p save_coverage tests/serving/http/test_server.py'
	@COVERAGE_FILE=$(COVERAGE)/data PYTHONPATH=$(COVERAGE)/site sh -c \
		'$(BIN)/python -m coverage combine -q && $(BIN)/python -m coverage report --skip-covered --sort cover'

check: $(VENV)/.dev  ## formatting, lint, types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

format: $(VENV)/.dev  ## rewrite the code in the one format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: $(VENV)/.docs  ## the documentation, as pages in site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "open site/index.html, or serve it: $(BIN)/python -m http.server -d site"

audit: $(VENV)/.dev  ## dependencies that do not fit, their licences, and known weaknesses, for which it must reach PyPI
	@$(BIN)/python -m pip check
	@$(BIN)/python benchmarks/licences.py
	@test -x build/audit/bin/pip-audit || ($(PYTHON) -m venv build/audit && build/audit/bin/python -m pip install -q pip-audit)
	@build/audit/bin/pip-audit --strict --progress-spinner off --no-deps --disable-pip -r constraints.txt

release:         ## wheel and sdist in dist/, built twice and equal, and tried in an empty environment
	@rm -rf dist build/again build/try
	@test -x build/tools/bin/hatchling || ($(PYTHON) -m venv build/tools && build/tools/bin/python -m pip install -q hatchling)
	@for folder in dist build/again; do \
	  SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) build/tools/bin/hatchling build -d $$folder > /dev/null || exit 1; done
	@for file in dist/*; do cmp $$file build/again/$$(basename $$file) || exit 1; done
	@$(PYTHON) -m venv build/try
	@build/try/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt dist/*.whl
	@cd build/try && PYTHONPATH= bin/crossrank --version && PYTHONPATH= bin/crossrank demo --rows 5000 --into demo
	@sha256sum dist/*

clean:           ## remove the environment, the pages and caches
	rm -rf $(VENV) $(API) $(DISTRIBUTED) site build dist .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing crossrank into $(VENV) (a few minutes the first time)" >&2
	@$(PIP) -e .
	@touch $@

$(VENV)/.serve: $(VENV)/.core
	@$(PIP) -e '.[serve]'
	@touch $@

$(VENV)/.docs: $(VENV)/.core
	@$(PIP) -e '.[docs]'
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	@$(PIP) -e '.[dev]'
	@touch $@

# TorchRec's own requirements name the CUDA build of fbgemm, half a gigabyte; on a processor it runs with the other one.
$(DISTRIBUTED)/.ready: pyproject.toml constraints.txt
	@echo "installing crossrank, TorchRec and Ray into $(DISTRIBUTED)" >&2
	@test -x $(DISTRIBUTED)/bin/python || $(PYTHON) -m venv $(DISTRIBUTED)
	@$(DISTRIBUTED)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[tune]' pytest fsspec
	@$(DISTRIBUTED)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
		torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0
	@$(DISTRIBUTED)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		tensordict==0.15.3 torchmetrics==1.9.0 pyre-extensions==0.0.32 tqdm 'ray[train]'
	@touch $@
