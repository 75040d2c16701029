# Two commands for a newcomer: `make demo` and `make check`. Each installs what it needs: Hatch
# into .venv-tools, then the one environment everybody works in, .venv. Asks for make, python3
# (3.11 or newer, with venv) and pip, nothing else.
TOOLS := .venv-tools
HATCH := $(TOOLS)/bin/python -m hatch
SLOW_BUDGET_S ?= 2400

# Python 3.11 where there is one (what CI proves), else the machine's python3. Both environments
# are made with it: Hatch is told to use its own interpreter and never to fetch another.
ifndef PYTHON
PYTHON := $(shell for name in python3 python3.11; do \
	$$name -c 'import ensurepip, sys, venv; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null \
	&& echo $$name && break; done)
PYTHON := $(or $(PYTHON),python3)
endif
export HATCH_PYTHON := self

# Each engine is a process that imports torch: compiling its sources once, here, saves seconds of
# every start where Python may not keep what it compiles.
export UV_COMPILE_BYTECODE := 1

# uv reads neither pip's configuration nor its environment: hand on pip's find-links (where the
# pinned CPU build of torch may lie). Only where there is none choose uv's CPU build of torch.
# pip separates the list by spaces or line ends, uv by commas; `pip config get` reads one file
# only, `list` all that count.
empty :=
space := $(empty) $(empty)
comma := ,
links = $(subst $(space),$(comma),$(patsubst ~/%,$(HOME)/%,$(strip $(1))))
ifndef UV_FIND_LINKS
UV_FIND_LINKS := $(call links,$(PIP_FIND_LINKS))
endif
ifndef UV_FIND_LINKS
UV_FIND_LINKS := $(call links,$(shell for python in $(TOOLS)/bin/python $(PYTHON); do \
	$$python -m pip config list 2>/dev/null && break; done | sed -n \
	-e 's/\\n/ /g' -e "s/['\"]//g" -e 's/^install.find-links=/1 /p' -e 's/^global.find-links=/2 /p' \
	| sort | head -n 1 | cut -c 3-))
endif
export UV_FIND_LINKS
ifndef UV_FIND_LINKS
UV_TORCH_BACKEND ?= cpu
export UV_TORCH_BACKEND
endif

.PHONY: demo check check-slow test lint types format env bench clean find-links

demo: env
	@$(HATCH) run trnrt demo

check: env
	$(HATCH) run check

# The long proofs, as many as fit the budget; the ones that did not run are named.
check-slow: env
	$(HATCH) run slow --slow-budget $(SLOW_BUDGET_S)

lint types test format: env
	$(HATCH) run $@

bench: $(TOOLS)/.complete
	$(HATCH) run bench:model

# What uv is told, for those who call uv or Hatch themselves.
find-links:
	@echo "UV_FIND_LINKS=$(UV_FIND_LINKS)"
	@echo "UV_TORCH_BACKEND=$(UV_TORCH_BACKEND)"

# A stamp marks each environment that was finished, for this folder and by an interpreter that
# still runs: a half-made one is made again (Hatch would take its bare folder for finished).
$(TOOLS)/.complete:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON) must be Python 3.11 or newer"; exit 1; }
	@rm -rf $(TOOLS)
	@$(PYTHON) -m venv $(TOOLS) \
		|| { echo "$(PYTHON) lacks venv: on Debian and Ubuntu run 'apt install python3-venv'"; exit 1; }
	$(TOOLS)/bin/python -m pip install -q "hatch>=1.18,<2"
	@touch $@

env: $(TOOLS)/.complete
	@stamp=.venv/.complete; \
	[ "$$(cat $$stamp 2>/dev/null)" = "$(CURDIR)" ] && .venv/bin/python -c '' 2>/dev/null || rm -rf .venv; \
	if [ ! -e $$stamp ] || [ -n "$$(find pyproject.toml packages/*/pyproject.toml -newer $$stamp)" ]; then \
		echo "preparing .venv (the first time takes a minute or two)"; \
		$(HATCH) run sync && echo "$(CURDIR)" > $$stamp; \
	fi

clean:
	rm -rf .venv .venv-tools .venv-bench build dist
