"""Measure constrained answers of the built-in server: are they valid, what do they cost, does a run train on them?

    python -m scripts.suites.constrained [--suite FOLDER] [--only schemas,speed,run] [--json FILE]

FOLDER is `json/tests/draft2020-12` of jsonschema's source distribution; that part needs jsonschema installed. Part
`schemas` asks a server in a process of its own, `run` a real `rlproxy serve`, `speed` an engine in this process.
All have the small model. Writes benchmarks/constrained.json, keeping the parts that were not measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import aiohttp
import numpy as np

from scripts.harness.circumstances import circumstances
from scripts.harness.serving import Serving
from scripts.suites.schema_libraries import groups
from trainer.formats.weights import resolve
from trainer.lessons.samples import forced_tokens

ROOT: Final = Path(__file__).resolve().parents[2]
SCHEMAS, SEED = 200, 50
SCHEMA_TOKENS: Final = 48  # of an answer by one of them: most are short
PETS: Final = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "name": {"type": "string", "maxLength": 20}},
    "required": ["kind", "name"],
    "additionalProperties": False,
}
LIST: Final = {"type": "array", "items": {"type": "string", "minLength": 8, "maxLength": 60}, "minItems": 64}


def by_schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


# --- valid or refused -----------------------------------------------------------------------------------------------


async def measure_schemas(suite: Path, weights: Path) -> dict[str, Any]:
    """Ask for an answer by each of 200 schemas drawn from the suite."""
    import jsonschema

    chosen = random.Random(SEED).sample([*groups(suite)], SCHEMAS)
    command = [sys.executable, "-P", "-m", "trainer.serve", "--weights", str(weights), "--threads", "1"]
    server = await asyncio.create_subprocess_exec(
        *command, "--watch-stdin", cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert server.stdin is not None and server.stdout is not None
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    wrong: list[dict[str, str]] = []
    try:
        url = json.loads(await server.stdout.readline())["url"]
        async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout()) as http:
            limit = asyncio.Semaphore(16)

            async def ask(title: str, schema: Any) -> None:
                question = f"Answer with one short JSON value that satisfies this schema: {json.dumps(schema)[:200]}"
                body = {"messages": [{"role": "user", "content": question}], "max_tokens": SCHEMA_TOKENS,
                        "temperature": 0.7, "seed": SEED, "response_format": by_schema(schema)}  # fmt: skip
                async with limit, http.post("/v1/chat/completions", json=body) as response:
                    answer = await response.json()
                if response.status == 400:
                    counts["refused"] += 1
                    reasons[answer["error"]["message"].split("keep to it: ")[-1][:60]] += 1
                    return
                assert response.status == 200, answer
                (choice,) = answer["choices"]
                text = choice["message"]["content"]
                if choice["finish_reason"] == "length":
                    counts["cut"] += 1
                elif _is_valid(jsonschema.Draft202012Validator(schema), text):
                    counts["valid"] += 1
                else:
                    counts["invalid"] += 1
                    wrong.append({"schema": title, "text": text})

            await asyncio.gather(*(ask(title, group["schema"]) for title, group in chosen))
    finally:
        server.stdin.close()
        await server.wait()
    return {"schemas": SCHEMAS, **counts, "reasons": dict(reasons.most_common()), "wrong": wrong}


def _is_valid(validator: Any, text: str) -> bool:
    try:
        return bool(validator.is_valid(json.loads(text)))
    except ValueError:
        return False


# --- tokens a second ------------------------------------------------------------------------------------------------


async def measure_speed(repeats: int, tokens_a_reply: int) -> dict[str, Any]:
    """Tokens a second of wall time and of CPU time, in turns with and without a constraint."""
    import torch

    from trainer.serve.__main__ import load_model
    from trainer.serve.constraints import Compiler, SchemaPart
    from trainer.serve.engine import Engine, GenerationRequest
    from trainer.serve.sampling import Sampling

    model, tokenizer = load_model(resolve(), threads=1)
    torch.set_num_threads(1)
    engine = Engine(model, tokenizer)
    start = time.process_time()
    compiler = Compiler(tokenizer, engine.vocabulary, sorted(engine.ends))
    compiler.prepare()
    prepare_s, start = time.process_time() - start, time.process_time()
    constraint = compiler.compile([[SchemaPart(LIST)]])
    compile_s = time.process_time() - start
    message = {"role": "user", "content": "Write a long list of books as JSON strings."}
    prompt = tuple(tokenizer.apply_chat_template([message], add_generation_prompt=True)["input_ids"])
    figures: dict[str, Any] = {
        "repeats": repeats,
        "tokens": tokens_a_reply,
        "prepare_cpu_s": round(prepare_s, 3),
        "compile_cpu_s": round(compile_s, 4),
    }
    try:
        for rows in (1, 8):
            rates: dict[str, list[tuple[float, float]]] = {"free": [], "constrained": []}
            for repeat in range(repeats):
                for name, form in (("free", None), ("constrained", constraint)):
                    request = GenerationRequest(
                        prompt, tokens_a_reply, Sampling(seed=repeat), constraint=form, ignore_eos=form is None
                    )
                    wall, cpu = time.perf_counter(), time.process_time()
                    tokens = [delta async for _, delta in engine.generate(request, rows)]
                    spent = time.perf_counter() - wall, time.process_time() - cpu
                    rates[name].append((len(tokens) / spent[0], len(tokens) / spent[1]))
            figures[f"{rows} rows"] = {
                name: {
                    "tokens_per_s": round(statistics.median(wall for wall, _ in pairs), 1),
                    "tokens_per_cpu_s": round(statistics.median(cpu for _, cpu in pairs), 1),
                }
                for name, pairs in rates.items()
            }
    finally:
        engine.close()
    return figures


# --- a run ----------------------------------------------------------------------------------------------------------


async def measure_run(answers: int = 24) -> dict[str, Any]:
    """Rate constrained answers by the choice in them, and let rlproxy train on them."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        serving = Serving(
            home, resolve().path, "--start-at", str(answers), RLPROXY_TRAIN__OVERRIDES='{"passes": 1, "batch": 4}'
        )
        await serving.start()
        try:
            kinds: Counter[str] = Counter()
            for n in range(answers):
                question = f'Invent pet number {n} as JSON: {{"kind": "cat" or "dog", "name": a name}}.'
                answer, _ = await serving.chat(
                    question, max_tokens=60, temperature=1.0, seed=n, response_format=by_schema(PETS)
                )
                pet = json.loads(answer["choices"][0]["message"]["content"])
                kinds[pet["kind"]] += 1
                await serving.rate(answer["id"], "good" if pet["kind"] == "cat" else "bad")
            while not (last := (await serving.status())["last_run"]) or last["status"] in ("claimed", "running"):
                await asyncio.sleep(2)
            run_folder = next(home.glob("**/result.json")).parent
            result = json.loads((run_folder / "result.json").read_text())
            lines = [json.loads(line) for line in (run_folder / "samples.jsonl").read_text().splitlines()]
        finally:
            await serving.stop()
    sampled = np.concatenate([line["logprobs"] for line in lines])
    model = np.concatenate([line["unconstrained_logprobs"] for line in lines])
    gaps = np.abs(sampled - model)
    return {
        "answers": answers,
        "kinds": dict(kinds),
        "exact": sum(line["exact"] for line in lines),
        "tokens": len(gaps),
        "forced": int(forced_tokens(sampled, model).sum()),
        "forced_by_bound": {str(bound): int((gaps > bound).sum()) for bound in (0.001, 0.01, 0.02, 0.05, 0.2, 1.0)},
        "result": {key: result[key] for key in ("status", "reason", "metrics", "gate", "seconds")},
        "causes": dict(Counter(str(sample["cause"]) for sample in result["samples"].values())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", type=Path)
    parser.add_argument("--weights", type=Path, help="of the model that answers by the suite's schemas")
    parser.add_argument("--repeats", type=int, default=5, help="of each speed")
    parser.add_argument("--tokens", type=int, default=120, help="of each reply whose speed is measured")
    parser.add_argument("--only", default="schemas,speed,run")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "constrained.json")
    options = parser.parse_args()
    figures = json.loads(options.json.read_text()) if options.json.exists() else {}
    for part in options.only.split(","):
        where = circumstances()
        if part == "schemas":
            measured = asyncio.run(measure_schemas(options.suite, options.weights or resolve().path))
        else:
            measured = asyncio.run(measure_speed(options.repeats, options.tokens) if part == "speed" else measure_run())
        figures[part] = {**where, **measured}
        print(part, json.dumps(measured, indent=1))
        options.json.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
