# Both targets do all their own set-up: a virtual environment, the package, PyTorch.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OLDEST_PYTEST := 8.4.0
# Pinned so that two people who test the same commit test the same thing.
CPU_TORCH := torch==2.13.0+cpu
CPU_INDEX := https://download.pytorch.org/whl/cpu
HAS_DRIVER := $(wildcard /proc/driver/nvidia/version)

# The tests whose outcome depends on pytest itself.
TOUCH_PYTEST := tests/integration/test_rehearsal.py tests/integration/test_ranks_pytest.py \
  tests/integration/test_cost.py \
  $(addprefix tests/unit/test_,options.py collection.py requirements.py merge.py ledger.py)

.PHONY: accept test lint test-newest test-oldest detection clean

## Judge this machine; on one without an NVIDIA driver, rehearse on CPU ranks.
accept: $(VENV)/.installed
	@mkdir -p build/accept
ifeq ($(HAS_DRIVER),)
	@echo "No NVIDIA driver here: rehearsing on CPU ranks. A rehearsal accepts nothing."
	cd build/accept && ../../$(BIN)/pytest --gpucluster --gpucluster-rehearse -c /dev/null
else
	cd build/accept && ../../$(BIN)/pytest --gpucluster -c /dev/null
endif
	@echo "Report: build/accept/gpucluster-report/report.html"

## Lint, types, the one-way arrows, and the tests on the newest and the oldest pytest.
test: lint test-newest test-oldest

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-newest: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-oldest: $(VENV)-oldest/.installed
	$(VENV)-oldest/bin/python -m pytest -n 2 --dist worksteal $(TOUCH_PYTEST)

## Prove that every check can fail: the table of faults, and build/detection.json.
detection: $(VENV)/.installed
	$(BIN)/python -m tests.detection

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
ifeq ($(HAS_DRIVER),)
	$(BIN)/python -m pip install --quiet "$(CPU_TORCH)" numpy \
	  || $(BIN)/python -m pip install --quiet "$(CPU_TORCH)" numpy --index-url $(CPU_INDEX)
endif
	$(BIN)/python -m pip install --quiet --editable ".[xdist,html,test]"
	@touch $@

# The oldest supported pytest, with everything else from the main environment.
$(VENV)-oldest/.installed: $(VENV)/.installed
	$(PYTHON) -m venv --without-pip $(VENV)-oldest
	site=$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))"); \
	oldest=$$($(VENV)-oldest/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))"); \
	echo "import site; site.addsitedir('$$site')" > "$$oldest/main.pth"
	$(BIN)/python -m pip --python $(VENV)-oldest/bin/python install --quiet --no-deps \
	  "pytest==$(OLDEST_PYTEST)"
	@touch $@

clean:
	rm -rf build dist $(VENV) $(VENV)-oldest
