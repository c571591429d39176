# Two commands do everything: `make demo` (watch a model learn) and `make test` (prove that it works).
.PHONY: demo test setup lint bench bench-train clean

PY := .venv/bin/python

setup:
	@scripts/setup

demo: setup
	@$(PY) scripts/demo.py $(if $(QUICK),--quick)

test: setup
	@scripts/test

lint: setup
	@scripts/lint

bench: setup
	@$(PY) scripts/bench_serve.py
	@$(PY) scripts/demo.py --json benchmarks/demo.json
	@$(PY) scripts/learn_concise.py
	@$(PY) scripts/tables.py

bench-train: setup
	@$(PY) scripts/bench_train.py $(if $(QUICK),--quick)

clean:
	rm -rf .venv .demo adapters_out/demo build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
