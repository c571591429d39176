# Two commands do everything: `make demo` (watch a model learn) and `make test` (prove that it works).
.PHONY: demo test test-mlx setup lint bench clean

PY := .venv/bin/python

setup:
	@scripts/setup

demo: setup
	@$(PY) scripts/demo.py $(if $(QUICK),--quick)

test: setup
	@scripts/test

# Not part of `make test`: it makes an environment of its own, with mlx in it.
test-mlx:
	@scripts/test_mlx

lint: setup
	@scripts/lint

bench: setup
	@$(PY) scripts/bench_serve.py
	@$(PY) scripts/demo.py --json benchmarks/demo.json
	@$(PY) scripts/learn_concise.py
	@$(PY) scripts/tables.py

clean:
	rm -rf .venv .demo adapters_out/demo build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
