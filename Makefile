# `make` lists the targets: those with a description behind `##`. Each makes .venv when it is missing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

SHELL := /bin/bash
.SHELLFLAGS := -e -o pipefail -c
.DELETE_ON_ERROR:
ARGS ?=

# Compiled modules are kept, whatever the environment says: tests and Ray start many processes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo demo-video experiments gpu-check chaos test long lint types layers unit debian reference docs audit wheel clean

help:
	@sed -n -E 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 22

# pip says the name of each package that it fetches. The rest, warnings included, is in a log, which is shown if it fails.
INSTALL_LOG := $(VENV)/install.log
PROGRESS := sed -u -n -e 's/^Collecting \([A-Za-z0-9._-]*\).*/  \1/p' -e 's/^Installing collected packages.*/  unpacking .../p'
install = $(BIN)/python -m pip install --disable-pip-version-check --no-input --progress-bar off -e '.$(1)' 2>&1 \
  | tee $(INSTALL_LOG) | $(PROGRESS) || { tail -n 30 $(INSTALL_LOG) >&2; echo "The whole log: $(INSTALL_LOG)" >&2; exit 1; }

demo: $(VENV)/.installed ## run four rendered cameras for five windows (under 3 minutes)
	$(BIN)/ekya run

# Videos of others, which are no part of the project. The models are taken from DATA by their content, or fetched.
DATA ?= $(or $(EKYA_DATA),../shared/data)
VIDEO ?= $(addprefix $(DATA)/videos/,ahmetozlu_input_video.mp4 intel_one-by-one-person-detection.mp4)
demo-video: $(VENV)/.installed ## run recorded cameras for four windows (VIDEO="FILE ...", or DATA=FOLDER)
	if [ -d $(DATA)/weights ]; then $(BIN)/ekya models fetch --from $(DATA)/weights; fi
	$(BIN)/ekya run $(VIDEO:%=--video %) --windows 4

experiments: $(VENV)/.installed ## draw the papers' figures, quickly; ARGS=--full in the papers' size
	PYTHONUNBUFFERED=1 $(BIN)/python experiments/all.py $(ARGS)

# What Ekya does on this machine's GPU; ARGS=--rehearse tries the check on a CPU. Installs nothing: it takes the Python
# of .venv where there is one, and otherwise $(PYTHON), which must have Ekya's packages and torch with CUDA.
GPU_PYTHON ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
gpu-check: ## measure what Ekya does on this machine's GPU (under 8 minutes)
	@PYTHONPATH=.$${PYTHONPATH:+:$$PYTHONPATH} $(GPU_PYTHON) experiments/gpu_check.py $(ARGS)

# A service under random faults: what must hold meanwhile, and how soon it is back. ARGS="--minutes 30 --seed 3".
chaos: $(VENV)/.installed ## serve cameras, kill and stop what serves them, check the invariants (10 minutes)
	PYTHONUNBUFFERED=1 $(BIN)/python experiments/chaos.py $(ARGS)

test: lint types layers unit ## run all checks and tests (10 minutes)

# ruff knows the names of clocks in modules; what tests run as text, and the time of event loops, only their words tell.
CLOCKS := time\.(monotonic|perf_counter|process_time|thread_time|time)|datetime\.now|loop\.time|[a-z]\(\)\.time\(
lint: $(VENV)/.installed-test ## ruff check and ruff format; no test names a clock
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@! grep -rnE --include='*.py' --exclude=waiting.py '$(CLOCKS)' tests || { echo "No test may name a clock"; exit 1; }

types: $(VENV)/.installed-test ## mypy --strict
	$(BIN)/mypy --strict ekya

layers: $(VENV)/.installed-test ## import-linter: which package may import which
	$(BIN)/lint-imports

# One thread a process: torch on many threads is slower on small crops.
# Live tests have the machine to themselves, but for those on virtual time: these run beside others, three at a time,
# since much of the time is spent on waiting for processes and cameras. They come first, and their order is kept, lest a
# long one be left for the end. Collecting every file takes ten seconds, so only those with a live test are looked into
# for them. What is skipped is listed with its reason.
LIVE := $$(grep -rl --include='test_*.py' 'mark\.live' tests)
# A process that dies ends the run: pytest-xdist would give its files, also finished ones, to the others and wait forever.
ABREAST := -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
unit: $(VENV)/.installed-test debian ## pytest, live tests included, long ones not
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rs $(ABREAST) -m "(not live or virtual) and not long"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rs -m "live and not virtual and not long" $(LIVE)

# What takes minutes a test: resources after a thousand opens of every source, and the like.
long: $(VENV)/.installed-test debian ## the tests that take minutes each
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rs $(ABREAST) -m "long and (not live or virtual)"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rs -m "long and live and not virtual" $(LIVE)

# What tests talk to: GStreamer's RTSP server as a live camera, whose packages belong to Debian's own Python; the programs
# that watch a service; an MQTT broker; and a browser. They are installed here if permissions allow it; without them those tests are skipped.
DEBIAN_PACKAGES := gir1.2-gst-rtsp-server-1.0 gstreamer1.0-plugins-good python3-gi prometheus mosquitto chromium chromium-driver
DEBIAN_THERE := /usr/bin/python3 -c 'import gi; gi.require_version("GstRtspServer", "1.0"); from gi.repository import GstRtspServer' \
  && PATH="$$PATH:/usr/sbin" && for one in promtool mosquitto chromium chromedriver; do command -v $$one || exit 1; done
APT := env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::http::Timeout=20 -o Acquire::Retries=1

debian:
	@if ( $(DEBIAN_THERE) ) >/dev/null 2>&1; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ]; then as=; else as='sudo -n'; fi; \
	if command -v apt-get >/dev/null && $$as true 2>/dev/null; then \
	  echo "Installing $(DEBIAN_PACKAGES) for the tests of live cameras and services"; \
	  { $$as $(APT) update && $$as $(APT) install --no-install-recommends -y $(DEBIAN_PACKAGES); } >/dev/null 2>&1 && exit 0; \
	fi; \
	echo "Without $(DEBIAN_PACKAGES) the tests of RTSP cameras and of services are skipped in part"

# Parts of pages that are made from the code stand in the repository, where code hosts show them; a test compares.
reference: $(VENV)/.installed-test ## write the generated parts of docs/ anew
	$(BIN)/python docs/hooks/generated.py

# A link that leads nowhere is an error. The pages of reference are made from the code, so Ekya must be installed.
docs: $(VENV)/.installed-docs ## build the documentation in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "Open site/index.html; search needs a server: $(BIN)/python -m http.server --directory site"

# Asks a server for the known vulnerabilities of each installed package. One that the server does not know is an error
# here (--strict): it was not audited, and pip-audit would say that nothing was found.
audit: $(VENV)/.installed-audit ## pip-audit: known vulnerabilities of what is installed (needs the network)
	@$(BIN)/python -m pip freeze --exclude-editable > $(VENV)/installed.txt
	$(BIN)/python -m pip_audit --requirement $(VENV)/installed.txt --no-deps --disable-pip --strict --progress-spinner off $(ARGS)

wheel: $(VENV)/.made ## build a wheel in dist/
	$(BIN)/python -m pip wheel --disable-pip-version-check --no-deps --quiet --wheel-dir dist .

clean: ## remove .venv, dist/, site/ and caches
	rm -rf $(VENV) dist site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# Stamps: what was installed, and from which pyproject.toml.

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12), (3, 13)))' || \
	  { echo "Ekya needs Python 3.11, 3.12 or 3.13, and $(PYTHON) is another; try: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "Making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.made pyproject.toml
	@echo "Installing Ekya and what it needs (several GB with torch; a few minutes the first time)"
	@$(call install)
	@touch $@

$(VENV)/.installed-test: $(VENV)/.made pyproject.toml
	@echo "Installing Ekya, what it needs and its test tools (several GB with torch; a few minutes the first time)"
	@$(call install,[test])
	@touch $(VENV)/.installed $@

$(VENV)/.installed-docs: $(VENV)/.made pyproject.toml
	@echo "Installing Ekya, what it needs and what builds its documentation (several GB with torch; a few minutes the first time)"
	@$(call install,[docs])
	@touch $(VENV)/.installed $@

$(VENV)/.installed-audit: $(VENV)/.made pyproject.toml
	@echo "Installing Ekya, what it needs and what audits that (several GB with torch; a few minutes the first time)"
	@$(call install,[audit])
	@touch $(VENV)/.installed $@
