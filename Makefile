# Every verb makes .venv first, calls one thing, and ends in one line of summary and a true exit status.
PYTHON ?= $(or $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11,$(shell $p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $p))),$(error Python 3.11 or newer is needed))
BIN := .venv/bin
TIER ?= unit contract integration e2e stores
# More than there are processors: a test waits more than it computes, for processes, leases and disks.
JOBS ?= 3

# Where Python may not keep compiled modules, every process of a test compiles what it imports, and every run all tests.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: client demo serve test conformance fuzz mutants chaos stress races queues memory interop conversations docs docs-test examples image check fix generate lock bench clean help

# The lock is complete: a resolver would look past it for what another package asks for with an extra.
.venv/.ready: pyproject.toml requirements.lock
	@if command -v uv >/dev/null; then uv venv -q --allow-existing --python $(PYTHON) .venv && uv pip install -q --python $(BIN)/python --no-deps --require-hashes -r requirements.lock && uv pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e .; \
	else $(PYTHON) -m venv .venv && $(BIN)/pip install -q --disable-pip-version-check --no-deps --require-hashes -r requirements.lock && $(BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .; fi
	@touch $@

client demo serve test conformance fuzz mutants chaos stress races queues memory interop conversations docs docs-test examples image check fix generate lock bench: .venv/.ready

demo: ## run the whole demo on one machine and check it
	@$(BIN)/passerelle demo --once

serve: ## run gateway and sample agents in the foreground, until Ctrl-C
	@$(BIN)/passerelle demo

test: ## unit, contract, integration, e2e, stores; TIER=unit runs one, SEED=n repeats an order, COVER=1 measures
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(if $(SEED),--randomly-seed=$(SEED)) $(if $(COVER),--cov --cov-report=) $(addprefix tests/,$(TIER))
	@$(if $(COVER),$(BIN)/python -m tools.coverage)

conformance: ## a port of the official A2A conformance kit, and payloads byte for byte; KIT=<checkout> also runs the kit itself
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile tests/conformance tests/fidelity
	@$(if $(KIT),$(BIN)/python -m tests.conformance.kit $(KIT) && $(BIN)/python -m tests.conformance.kit --root $(KIT))

interop: ## foreign SDKs as callers and as agents, through a gateway, and compose files; creates their environments first, needs Node 20, podman and buildah
	@$(BIN)/python -m tests.interop.environments
	@$(BIN)/python -m pytest -n 2 --dist loadfile tests/interop

conversations: ## conversations with agents of all frameworks, directly and through a gateway; SHORT=1 runs each pair, not each triple
	@$(BIN)/python -m tests.interop.environments
	@$(BIN)/python -m tests.conversations $(if $(SHORT),,--whole)

docs: ## build the documents as a site with search, in build/site; fails on broken links
	@$(BIN)/python -m tools.site

docs-test: ## run the commands of README and the first tutorial as written, with nothing preinstalled; PAGES="…" runs others
	@$(BIN)/python -m tests.documents $(PAGES)

examples: ## run the pages of examples as written, with real processes; needs nginx, redis-server, Node 20 and Chromium
	@$(BIN)/python -m pytest -q -n 2 --dist load tests/examples

# An image for another processor is built but not run.
image: ## build the OCI image in build/image, without a daemon, and run a scene of the demo in it; ARCH=arm64, BASE=<image with Python 3.11>, FORMAT=docker; needs buildah and mmdebstrap, as root
	@$(BIN)/python -m tools.image --arch $(or $(ARCH),amd64) --format $(or $(FORMAT),oci) $(if $(BASE),--base $(BASE)) $(if $(PYTHON_THERE),--python $(PYTHON_THERE))
	@$(if $(filter arm64,$(ARCH)),,$(BIN)/python -m tools.image_smoke build/image/passerelle-*-$(or $(ARCH),amd64).tar)

client: ## types and vectors of the JavaScript client, in Node and in Chromium; needs Node 20
	@cd clients/js && npm ci --silent && npm run --silent check && npm test --silent >/dev/null
	@$(BIN)/python -m pytest -q -n 0 tests/browser && echo "client: passed"

fuzz: ## hostile requests on every edge, and hostile connections; SEED=n repeats a plan, SHORT=1 has 500 requests instead of 10,000
	@$(BIN)/python -m tests.fuzz $(if $(SEED),--seed $(SEED)) $(if $(SHORT),--short)

chaos: ## kills, cuts and restarts under delegated tasks, graphs, jobs, queues and schedules; SEED=n repeats a plan, SHORT=1 one round and 300 open runs
	@$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED)) $(if $(SHORT),--short) $(if $(ONLY),--$(ONLY))

mutants: ## remove essential checks, one at a time; each must fail a named test
	@$(BIN)/python -m tools.mutants

stress: ## channels under load and every fault; SEED=n repeats a plan, SHORT=1 has 40 devices and each fault once
	@$(BIN)/python -m tests.stress $(if $(SEED),--seed $(SEED)) $(if $(SHORT),--short)

races: ## many concurrent decisions at two gateways; SEED=n repeats a plan, SHORT=1 has 50 questions instead of 1,000
	@$(BIN)/python -m tests.races $(if $(SEED),--seed $(SEED)) $(if $(SHORT),--short)

queues: ## 10,000 turns of 100 callers wait for 5 agents, at one gateway and at two: equal shares, equal cost; SHORT=1 has 600 of 20 for 3
	@$(BIN)/python -m tests.queues $(if $(SHORT),--short)

memory: ## what callers and agents can make a gateway hold is bounded; ONLY=case plays one, SHORT=1 three of them
	@$(BIN)/python -m tests.memory $(if $(ONLY),--only "$(ONLY)") $(if $(SHORT),--short)

check: ## format, lint, types, layers, ledger, drift of generated files, links, Lua, packaging
	@$(BIN)/python -m tools.check

fix: ## format, and every fix that is safe
	@$(BIN)/ruff check --fix-only . && $(BIN)/ruff format .

generate: ## write the files that are drawn from code
	@$(BIN)/python -m tools.generate

lock: ## compile requirements.lock anew from pyproject.toml, a week behind the newest
	@command -v uv >/dev/null || $(BIN)/pip install -q --disable-pip-version-check uv
	@PATH="$$PATH:$(CURDIR)/$(BIN)" uv pip compile -q --upgrade --universal --python-version 3.11 --extra dev --generate-hashes --exclude-newer "7 days" --no-emit-index-url --no-annotate --no-header -o requirements.lock pyproject.toml
	@echo "lock: $$(grep -c == requirements.lock) packages"

bench: ## the ratios, side by side in one run; ONLY=part runs one, PEERS=all installs its other servers first, BASE=checkout is another tree
	@$(BIN)/python -m bench $(ONLY) $(if $(PEERS),--peers $(PEERS)) $(if $(BASE),--base $(BASE))

clean: ## remove what the verbs made
	@rm -rf .venv bench/peers/*/.venv dist build htmlcov .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache && find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "clean: removed the environment, caches and builds"

help: ## one line per verb
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "help: CONTRIBUTING.md says more"
