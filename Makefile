# `make demo` and `make test` each work alone in a fresh clone: they set up .venv and touch nothing outside it.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# Kept bytecode: the tests start hundreds of processes, and each would compile the package once more.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint bench torture notebooks docs screenshots showcase dist extras clean

# Installed once, and again when the dependencies change. constraints.txt pins torch to the release whose CPU build is
# small; without it pip would fetch gigabytes of CUDA.
$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(PIP) -e '.[test]'
	touch $@

demo: $(VENV)/installed
	$(BIN)/dst-analyze dst_analyze/examples/demo.py --out reports/demo --force

test: $(VENV)/installed-test lint
	$(BIN)/python -m pytest -n 3 --dist worksteal

lint: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(VENV)/installed-test
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/masked_step.py
	$(BIN)/python benchmarks/sweep_cost.py
	$(BIN)/python benchmarks/report_speed.py

# Ten minutes of a disk that fails, kills, flips and cuts; each kind is counted.
torture: $(VENV)/installed-test
	OMP_NUM_THREADS=1 $(BIN)/python tests/support/torture.py --minutes 10

# The outputs that the notebooks keep, made anew.
notebooks: $(VENV)/installed-test
	$(BIN)/python notebooks/execute.py

# The site, in build/site; a broken link or reference is an error.
docs: $(VENV)/installed-test
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Pictures of the report for five models, into docs/screenshots/made, and README's docs/report.png.
screenshots: $(VENV)/installed-test
	OMP_NUM_THREADS=1 $(BIN)/python docs/screenshots/take.py

# The runs of reports/ and their README, by the plain command with its proof: hours on two cores.
showcase: $(VENV)/installed-test
	$(BIN)/python experiments/showcase.py

# Wheel and sdist: built, looked into; the wheel is installed into an environment of its own, and run there.
dist: $(VENV)/installed
	$(PIP) build twine
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/python .ci/check_dist.py dist/*.tar.gz dist/*.whl

# Each extra installed alone from that wheel, and used; half an hour, with uv on the path minutes.
extras: dist
	$(BIN)/python .ci/check_extras.py dist/*.whl

clean:
	rm -rf $(VENV) dist build *.egg-info
