# Two commands for a newcomer: `make demo` and `make check`. Each installs what it needs:
# Hatch into .venv-tools, then the one environment everybody works in, .venv.
SHELL := /bin/bash
TOOLS := .venv-tools
HATCH := $(TOOLS)/bin/hatch

# uv reads neither pip's configuration nor its environment: hand on pip's find-links (where the
# pinned CPU build of torch may lie); only where there is none choose uv's own CPU index.
PIP_LINKS = $(shell for key in :env:.find-links install.find-links global.find-links user.find-links site.find-links; do \
	python3 -m pip config get $$key 2>/dev/null && break; done | tr -s ' \n' ',' | sed 's/,$$//')
ifndef UV_FIND_LINKS
export UV_FIND_LINKS := $(PIP_LINKS)
endif
ifeq ($(UV_FIND_LINKS),)
export UV_TORCH_BACKEND ?= cpu
endif

.PHONY: demo check check-slow test lint types env bench clean

$(HATCH):
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "python3 must be 3.11 or newer"; exit 1; }
	@python3 -m venv $(TOOLS) || { echo "python3 lacks venv: on Debian and Ubuntu run 'apt install python3-venv'"; exit 1; }
	$(TOOLS)/bin/pip install -q "hatch>=1.18,<2"

# A creation that failed leaves its folder behind, and Hatch would then skip it: the stamp tells.
.venv/.complete: $(HATCH) pyproject.toml $(wildcard packages/*/pyproject.toml)
	@test -e $@ || rm -rf .venv
	$(HATCH) run python -c 'import torch; print("environment ready: torch", torch.__version__)'
	@touch $@

env: .venv/.complete

demo: env
	$(HATCH) run trnrt demo

lint types test: env
	$(HATCH) run $@

check: env
	$(HATCH) run check

check-slow: env
	$(HATCH) run slow

bench: $(HATCH)
	$(HATCH) run bench:model

clean:
	rm -rf .venv .venv-tools .venv-bench build dist
