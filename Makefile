# Two commands on a fresh machine: `make parity` runs the harness on the real engines, `make test` runs the tests.

FOUND := $(shell for p in python3 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null && { echo $$p; break; }; done)
PYTHON ?= $(FOUND)
VENV := .venv
READY := $(VENV)/.ready
HARNESS := $(VENV)/bin/harness
# The tests start hundreds of interpreters. Where a container's image forbids bytecode, each would compile torch again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help parity test gpu docs test-frameworks faults unit lint install engines frameworks python clean

help: ## say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' Makefile

parity: engines ## install everything and run the built-in scenario on vLLM and SGLang
	@$(HARNESS) parity vllm sglang

# The site and the linters have one process each: beside the fast tests they take what the second core leaves.
test: engines ## the fast tests, the site, linters, types, import contracts, then the slow tests; benchmarks alone
	@$(MAKE) --no-print-directory -j 2 --output-sync=target unit docs lint
	@$(VENV)/bin/python -m pytest -n 5 --dist loadfile --no-loadscope-reorder -m slow tests/integration tests/unit tests/contract tests/golden
	@$(VENV)/bin/python -m pytest tests/benchmarks

test-frameworks: frameworks ## real jobs of verl, OpenRLHF and TRL, recorded and judged; ONLY=trl for those of one
	@$(VENV)/bin/python -m pytest $(if $(ONLY),$(wildcard tests/frameworks/test_$(ONLY)*.py),tests/frameworks)

faults: engines ## every planted hang, every planted difference in float32 and in bfloat16, kept in runs/; most of a night
	@rm -rf runs/planted-hangs runs/planted-differences runs/planted-differences-bfloat16
	@$(HARNESS) faults run --suite hang --engines --conditions --out runs/planted-hangs
	@$(HARNESS) faults run --suite parity --out runs/planted-differences
	@$(HARNESS) faults run --suite parity --dtype bfloat16 --out runs/planted-differences-bfloat16

unit: $(READY) ## the fast tests in two processes, without engines
	@$(VENV)/bin/python tests/support/in_parts.py 2 -m "not slow" tests/unit tests/contract

gpu: $(READY) ## what only a CUDA device shows: waits that spin, NCCL's dumps, rounding, coupled draws, the cost of probes
	@$(VENV)/bin/python -m pytest --confcutdir tests/gpu tests/gpu

lint: $(READY) ## ruff, mypy, import contracts
	@$(VENV)/bin/ruff check harness probes scenarios reports tests docs/generate.py
	@$(VENV)/bin/ruff format --check --quiet harness probes scenarios reports tests docs/generate.py
	@$(VENV)/bin/mypy
	@PYTHONPATH=. $(VENV)/bin/lint-imports

docs: $(READY) ## the documentation as a site, in build/site; works without network
	@$(VENV)/bin/python -m mkdocs build --strict --quiet

install: $(READY) ## the project's own environment in .venv

engines: $(READY) ## one environment for each rollout engine
	@$(HARNESS) env create vllm
	@$(HARNESS) env create sglang

STACKS_trl := trl
STACKS_verl := vllm sglang
STACKS_openrlhf := openrlhf openrlhf-before
frameworks: $(READY) ## the environments of those jobs, with pinned versions
	@$(VENV)/bin/python tests/frameworks/environments.py $(STACKS_$(ONLY))

# A Python that was named is looked at always, also where .venv is ready.
$(READY): pyproject.toml constraints.txt | $(if $(filter command environment,$(origin PYTHON)),python)
	@test -n "$(PYTHON)" || { echo "Python 3.11 or 3.12 is needed; fix: make install PYTHON=/path/to/python3.12" >&2; exit 2; }
	@# -m imports from the current folder, which is this checkout: the code that is to run. Nothing is installed yet.
	@$(PYTHON) -m harness.envs.bootstrap $(VENV)
	@touch $(READY)

python: # refuse one that the project cannot run in, in a sentence
	@version=$$($(PYTHON) -c 'import sys; print("Python %d.%d" % sys.version_info[:2])' 2>/dev/null) || version="no Python that runs"; \
	case "$$version" in "Python 3.11"|"Python 3.12") ;; \
	*) echo "PYTHON=$(PYTHON) is $$version, and Python 3.11 or 3.12 is needed; fix: make install PYTHON=$(or $(FOUND),/path/to/python3.12)" >&2; exit 2;; esac

clean: ## remove .venv, caches and recorded runs (engine environments stay: harness env remove NAME)
	@rm -rf $(VENV) runs build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find harness probes scenarios reports tests -name __pycache__ -type d -prune -exec rm -rf {} +
