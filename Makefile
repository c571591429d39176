# Two commands do everything: `make demo` (watch a model learn) and `make test` (prove that it works).
.PHONY: demo demo-agent test quick docs audit fuzz chaos soak test-gpu test-heavy test-mlx test-agents test-harnesses test-clients test-backends test-models test-ollama test-suites test-openclaw test-matrix test-platforms test-scale test-openwebui test-trl test-browser quick-starts setup lint bench bench-check bench-learn bench-relay bench-scaling bench-swap bench-train clean

PY := .venv/bin/python

setup:
	@scripts/setup

# Five minutes; FULL=1 takes fifteen, for two versions and 40 held-out prompts.
demo: setup
	@$(PY) -m scripts.demo $(if $(FULL),,--quick)

# An agent harness from PyPI (inspect_ai, in an environment of its own), a program's rewards, and a model that learns.
demo-agent: setup
	@$(PY) -m scripts.demo.agent

test: setup
	@scripts/test

# Under a minute: style, who imports whom, and tests that start no process and load no model. Run it before every commit.
quick: setup
	@scripts/quick

# Ten times the broken answers and requests of the fast suite: 10,000, a minute of one core. And each recorded stream,
# long ones too, a byte at a time. Then requests out of /openapi.json by schemathesis (from PyPI, an environment of its
# own; five minutes), and 100,000 to all routes, sound and broken, of which benchmarks/fuzz.json keeps the counts (half an
# hour). `make fuzz REQUESTS=10000` takes fewer of those. Last, every route with every role, in all spellings of its path.
fuzz: setup
	@RLPROXY_FUZZ=10 $(PY) -m pytest tests/test_fuzz.py tests/test_golden.py
	@$(PY) -m scripts.fuzz.schema --schemathesis "$$(scripts/setup_schemathesis)"
	@$(PY) -m scripts.fuzz.routes --requests $(or $(REQUESTS),100000) --json benchmarks/fuzz.json
	@$(PY) -m scripts.fuzz.roles --json benchmarks/role_fuzz.json

# 200 times kill -9 and 500 power cuts, under load: minutes (docs/lab/reliability.md). `make chaos KILLS=40 CUTS=100` is less.
chaos: setup
	@$(PY) -m scripts.chaos --kills $(or $(KILLS),200) --cuts $(or $(CUTS),500)
	@$(PY) -m scripts.docs.tables

# 50 clients, with ratings, runs and swaps, for half an hour: what leaks, and what grows. `make soak MINUTES=2` only shows that it works.
soak: setup
	@$(PY) -m scripts.chaos.soak --minutes $(or $(MINUTES),30)
	@$(PY) -m scripts.docs.tables

# Not part of `make test`: real processes that are killed, paused and started again, over and over: minutes.
test-heavy: setup
	@$(PY) -m pytest -m heavy -n 2 --dist loadfile --durations=10

# Not part of `make test`: it makes an environment of its own, with mlx in it.
test-mlx:
	@scripts/test_mlx

# Everything that only a GPU does, on one NVIDIA card, in under ten minutes; benchmarks/gpu.json has what it found.
test-gpu:
	@$(PY) -m scripts.bench.gpu

# Not part of `make test` either: it takes two agents of 800 MB from npm, and llm from PyPI.
test-agents:
	@scripts/test_agents

# Nor this: harnesses that give rewards (inspect-ai, reasoning-gym, mini-swe-agent, verifiers) and LangSmith's client, from PyPI.
test-harnesses: setup
	@scripts/harness_env inspect_ai > /dev/null
	@scripts/harness_env mini_swe_agent > /dev/null
	@scripts/harness_env verifiers > /dev/null
	@scripts/harness_env langsmith > /dev/null
	@scripts/harness_env trackers > /dev/null
	@$(PY) -m pytest -m harnesses tests/integrations

# Nor this: some thirty clients from PyPI and npm, 5 GB in ~/.cache/rlproxy/clients, half an hour of one core.
# `make test-clients NAMES="aider pi"` takes some of them.
test-clients: setup
	@$(PY) -m scripts.clients $(NAMES)
	@$(PY) -m scripts.docs.tables

# Nor this: it makes environments with llama.cpp's prebuilt server, mlx-lm's and vLLM for CPUs, and runs them on the small model.
test-backends:
	@scripts/test_backends

# Tiny models of each kind that people run, before a real llama-server: an hour of one core.
test-models:
	@scripts/test_models

# Nor this: suites that nobody here wrote (langchain-tests, strict SDKs, Open Responses), directly and through rlproxy,
# at the built-in server and a real llama-server: an hour of one core. `make test-suites SUITES=sdks` takes one of them.
test-suites: setup
	@$(PY) -m scripts.suites $(if $(SUITES),--suites $(SUITES)) $(if $(SERVERS),--servers $(SERVERS))

# Nor this: the Ollama on the PATH, or those of OLLAMA_BIN=A:B. It installs none, and skips where there is none.
test-ollama:
	@scripts/test_ollama

# Nor this: a Matrix homeserver (Synapse), which is killed while five people react in three rooms.
test-matrix: setup
	@scripts/test_matrix

# Nor this: the chat platforms' own packages (slack_bolt, python-telegram-bot, discord.py), which make and sign events.
test-platforms: setup
	@scripts/harness_env platforms > /dev/null
	@$(PY) -m pytest -m platforms -n 0 tests/integrations/test_platforms.py

# Nor this: runs that train over ssh (a real sshd on loopback, where there is one), as jobs of a real Ray from PyPI, in a
# fake Slurm, by several processes, and at a Tinker server with the real client; each fault of a cluster in a box, where
# root runs this; a real OpenTelemetry collector, and helm, kubeconform and compose on deploy/, where there is Go to build
# them: an hour the first time.
test-scale: setup
	@scripts/harness_env ray > /dev/null
	@if command -v go > /dev/null; then scripts/setup_otelcol > /dev/null; scripts/setup_deploy_tools > /dev/null; fi
	@$(PY) -m pytest -m scale -n 0 tests/trainer tests/proxy/telemetry tests/scripts/chaos tests/test_elsewhere.py tests/test_elsewhere_bucket.py tests/test_deploy_tools.py
	@"$$(scripts/setup_beside s3)" -m pytest -m scale -n 0 -p no:unraisableexception tests/trainer/places/test_bucket.py tests/trainer/places/test_bucket_jobs.py tests/test_sharing_bucket.py
	@"$$(scripts/setup_beside tinker)" -m pytest -m scale -n 0 -p no:unraisableexception tests/trainer/policy/test_tinker_policy.py tests/trainer/places/test_tinker_service.py tests/test_tinker.py

# Nor this: TRL from PyPI, with a torch of its own: 5 GB.
test-trl: setup
	@scripts/test_trl

# Nor this: OpenClaw from npm with the Node that it wants, 900 MB; it runs with our plugin in it.
test-openclaw: setup
	@scripts/test_openclaw

# Nor this: Open WebUI itself, 1.3 GB, with our function in it, driven with Debian's Chromium.
test-openwebui: setup
	@scripts/test_openwebui

# Nor this: it installs Debian's Chromium and drives the page with it.
test-browser: setup
	@scripts/test_browser

# Replays README.md and docs/start/quick-start.md, word for word, on a fresh clone with an empty home: half an hour of two cores.
# `make quick-starts NAMES="builtin llamacpp"` takes some of them. Real servers are those of `make test-backends`.
quick-starts: setup
	@$(PY) -m scripts.quickstart.replay $(NAMES)
	@$(PY) -m scripts.docs.tables

# Known vulnerabilities of what is locked; needs the network.
audit:
	@scripts/audit

lint: setup
	@scripts/lint

# The pages of docs/ as a site in build/docs; a link that leads nowhere is an error. Sphinx lives in an environment of its own.
docs:
	@scripts/build_docs

bench: setup
	@$(PY) -m scripts.bench.serve
	@$(PY) -m scripts.bench.feedback
	@$(PY) -m scripts.demo --json benchmarks/demo.json
	@$(PY) -m scripts.bench.learn
	@$(PY) -m scripts.docs.tables

# 20 minutes, and the other gateways from PyPI and npm the first time; QUICK=1 takes 50 s, without them. The store and the
# start after it: 15 minutes the first time, when a home with a million completions is made, else 3.
bench-relay: setup
	@$(PY) -m scripts.bench.relay $(if $(QUICK),--quick,--resume)
	@$(PY) -m scripts.bench.store.alone $(if $(QUICK),--quick)
	@$(PY) -m scripts.bench.start $(if $(QUICK),--quick,--home $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/rlproxy/bench/store-1000000)
	@$(PY) -m scripts.bench.workers $(if $(QUICK),--rounds 2,--json benchmarks/workers.json)
	@$(PY) -m scripts.docs.tables
	@$(PY) -m scripts.docs.plot_relay

# Two minutes; QUICK=1 takes half of one, and writes nothing. Fails where something takes more than its share of time.
bench-scaling: setup
	@$(PY) -m scripts.bench.scaling $(if $(QUICK),--quick --repeats 2)
	@$(PY) -m scripts.bench.patterns $(if $(QUICK),--quick --repeats 2)
	@$(PY) -m scripts.docs.tables

# The end of `make test`: half a minute, ratios only (rlproxy ÷ a bare relay in the same run), with bounds that only a regression meets.
bench-check: setup
	@$(PY) -m scripts.bench.relay --check

# 23 minutes a backend; QUICK=1 only shows that it works, and writes nothing. BACKEND=all takes them all, one after
# another; RESUME=1 leaves out what has been measured at this commit.
bench-swap: setup
	@$(PY) -m scripts.bench.swap --backend $(or $(BACKEND),builtin) $(if $(QUICK),--quick) $(if $(RESUME),--resume)

# Hours: every persona, three seeds. `make bench-learn PERSONA=concise` takes one of them.
bench-learn: setup
	@for p in $(or $(PERSONA),concise bullets asks_back lowercase no_apology); do \
	  $(PY) -m scripts.bench.learn --persona $$p --seeds 1,2,3 --rounds 4 || exit 1; done
	@$(PY) -m scripts.docs.plot_learning

bench-train: setup
	@$(PY) -m scripts.bench.train $(if $(QUICK),--quick)

clean:
	rm -rf .venv .demo adapters_out/demo build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
