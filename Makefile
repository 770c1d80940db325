# Two commands from a bare clone: `make compare` runs the main job, `make test` the tests. Both set up .venv first.
PYTHON ?= python3

.PHONY: compare test check

compare: .venv/ready
	.venv/bin/skipkv compare --baselines h2o rkv

test: .venv/ready
	.venv/bin/pytest

check: .venv/ready
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch .venv/ready
