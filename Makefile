# Two commands from a bare clone: `make compare` runs the main job, `make test` the tests. Both set up .venv first.
PYTHON ?= python3

.PHONY: compare test check compatibility

compare: .venv/ready
	.venv/bin/skipkv compare --baselines h2o rkv

test: .venv/ready
	.venv/bin/pytest

check: .venv/ready
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

# The oldest and the newest transformers that are supported, each in a virtual environment of its own, and with them
# the tools that `make test` does without: kvpress (which wants a transformers below 5.3), lm-evaluation-harness.
compatibility: build/transformers-4.57.6/passed build/transformers-5/passed

build/transformers-4.57.6/passed: EXTRA = kvpress
build/transformers-5/passed: EXTRA = harness

build/transformers-%/passed: pyproject.toml constraints.txt $(wildcard skipkv/*.py skipkv/policies/*.py patches/*.py evaluation/*.py)
	$(PYTHON) -m venv build/transformers-$*
	grep '^torch==' constraints.txt > build/constraints-$*.txt
	build/transformers-$*/bin/pip install --quiet --constraint build/constraints-$*.txt --editable ".[dev,$(EXTRA)]" "transformers==$*.*"
	build/transformers-$*/bin/skipkv doctor
	build/transformers-$*/bin/pytest tests/test_exactness.py tests/test_generate.py tests/test_$(EXTRA).py
	touch $@

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch .venv/ready
