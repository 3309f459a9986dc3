# The commands of the project. Each makes the virtual environment that it needs when it is not there.

VENV ?= .venv
PYTHON ?= python3.11
export PYTHON

.DEFAULT_GOAL := help
.PHONY: help serve test lint soak bench clean

help: ## say what can be made
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## /make \1|/' | column -t -s '|'

# setpriv: the launcher also stops when make itself is killed outright.
serve: ## run everything on this machine (STRATA_PORT, STRATA_HOME, STRATA_MODELS)
	@$(PYTHON) -m deploy.local.preflight
	@deploy/local/environment $(VENV) requirements.txt
	@exec setpriv --pdeathsig TERM $(VENV)/bin/python -m deploy.local

test: dev ## run the tests, against a real Triton (ARGS="-k name")
	@tests/postgresql
	@tests/chromium
	@$(VENV)/bin/python -m pytest $(ARGS)

lint: dev ## check style and types, and that the rendered Triton entries match the catalog
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python -m model_repository.render --check

soak: dev ## mixed traffic for MINUTES (30) while a model comes and goes
	@$(VENV)/bin/python -m tests.soak --minutes $(or $(MINUTES),30)

bench: dev ## measure Strata against vllm serve
	@$(VENV)/bin/python -m tests.benchmarks.tokens
	@$(VENV)/bin/python -m tests.benchmarks.pages
	@$(VENV)/bin/python -m tests.benchmarks.jobs
	@$(VENV)/bin/python -m tests.benchmarks.endpoints
	@$(VENV)/bin/python -m tests.benchmarks

clean: ## remove caches, the data in STRATA_HOME's default place and the virtual environment
	rm -rf .strata $(VENV) $(VENV).lock .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: dev
dev:
	@deploy/local/environment $(VENV) requirements-dev.txt
