"""A history of ratings on one real model, replayed on another: killed once in the middle, and gone on.

`python -m scripts.models.retrain --old SMOLLM2_FOLDER --new QWEN_FOLDER` writes benchmarks/retrain.json. The built-in
server answers, and `rlproxy serve` is a process of its own. The rater is the persona `concise`. It gives thumbs and
stars, a comment with every second dislike, and a correction with every sixth answer. Every fourth question has two
answers. In the middle of the first round the proxy is killed with SIGKILL, and started again. In the end the new base
is served, the newest version made live, and both answer questions that nobody rated. Then the old base is served again.
How often answers are liked is not a result with so few ratings. That each step is done is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import psutil

from scripts.bench.persona import TEMPERATURE, Persona, Reply
from scripts.demo.__main__ import read_prompts
from scripts.harness.circumstances import circumstances
from scripts.harness.command import rlproxy
from scripts.harness.serving import Serving

OUT: Final = Path(__file__).resolve().parents[2] / "benchmarks" / "retrain.json"
COMMENT: Final = "too long: answer in one short sentence"
CORRECTION: Final = "Yes. One short sentence is enough."
WAIT_S: Final = 7200.0
LOOK_S: Final = 0.5


class Rater:
    def __init__(self, served: Serving, tokens: int) -> None:
        self._served, self._tokens, self._persona = served, tokens, Persona("concise")

    async def ask(self, prompt: str, seed: int, model: str, **headers: str) -> dict[str, Any]:
        body = {
            "model": model, "messages": [{"role": "user", "content": prompt}], "temperature": TEMPERATURE,
            "max_tokens": self._tokens, "seed": seed,
        }  # fmt: skip
        async with self._served.http.post("/v1/chat/completions", json=body, headers=headers) as response:
            answer = await response.json()
            assert response.status == 200, answer
        choice = answer["choices"][0]
        text = choice["message"]["content"] or ""
        reply = Reply(text, ended=choice["finish_reason"] != "length")
        return {
            "id": answer["id"], "text": text, "liked": self._persona.rate(prompt, reply) > 0,
            "version": response.headers.get("x-rl-adapter", ""),
        }  # fmt: skip

    async def rate(self, answer: dict[str, Any], number: int) -> None:
        liked = answer["liked"]
        body: dict[str, Any] = {"completion_id": answer["id"], "rating": "good" if liked else "bad"}
        if number % 5 == 4:
            body |= {"rating": 5 if liked else 1, "scale": "stars"}
        if not liked and number % 2:
            body["comment"] = COMMENT
        if number % 6 == 5:
            body["correction"] = CORRECTION
        async with self._served.http.post("/v1/feedback", json=body) as response:
            assert response.status == 201, await response.text()

    async def held_out(self, prompts: list[str], model: str) -> dict[str, Any]:
        answers = [await self.ask(p, 1000 + n, model, **{"x-rl-capture": "off"}) for n, p in enumerate(prompts)]
        return {"liked": sum(a["liked"] for a in answers), "asked": len(answers), "answers": answers}


async def history(served: Serving, rater: Rater, arguments: argparse.Namespace, model: str) -> dict[str, Any]:
    """Rated answers until each run has ended."""
    prompts = random.Random(arguments.seed).sample(read_prompts()["rate"], arguments.ratings)
    answers: list[dict[str, Any]] = []
    for n, prompt in enumerate(prompts):
        for repetition in range(2 if n % 4 == 3 else 1):
            answer = await rater.ask(prompt, 10 * n + repetition, model)
            await rater.rate(answer, len(answers))
            answers.append(answer)
    async with asyncio.timeout(WAIT_S):
        while (training := (status := await served.status())["training"])["run"] or training["waits_for"] is None:
            await asyncio.sleep(LOOK_S)
    return {"answers": answers, "status": {name: status[name] for name in ("live", "ratings", "last_run", "problem")}}


async def killed_in_the_middle(served: Serving, home: Path, weights: str) -> dict[str, Any]:
    """Begin, wait for an optimiser step of the first round, and kill."""
    begins = asyncio.create_task(rlproxy(home, "retrain", "--weights", weights, "--yes", "--json"))
    async with asyncio.timeout(WAIT_S):
        while True:
            training = (await served.status())["training"]
            if training["run"] and training["progress"].get("step", {}).get("step"):
                break
            assert not begins.done(), begins.result()
            await asyncio.sleep(LOOK_S)
    children = psutil.Process(served.process.pid).children(recursive=True)
    served.process.kill()
    await served.process.wait()
    await served.http.close()
    await asyncio.to_thread(psutil.wait_procs, children, WAIT_S)  # a busy machine lets them end late
    code, _, err = await begins
    return {"run": training["run"], "step": training["progress"]["step"], "command_ended_with": code, "it_said": err}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True)
    parser.add_argument("--new", type=Path, required=True)
    parser.add_argument("--ratings", type=int, default=20, help="questions; every fourth is answered twice")
    parser.add_argument("--start-at", type=int, default=12)
    parser.add_argument("--round", type=int, default=13, help="answers of a round of the retrain, at most")
    parser.add_argument("--held-out", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    record: dict[str, Any] = {**circumstances(), "arguments": {k: str(v) for k, v in vars(arguments).items()}}
    with tempfile.TemporaryDirectory(prefix="retrain-") as work:
        await whole(arguments, Path(work) / "home", record)


async def whole(arguments: argparse.Namespace, home: Path, record: dict[str, Any]) -> None:
    def save() -> None:
        OUT.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")

    prompts = read_prompts()["held-out"][: arguments.held_out]
    old, new = (
        Serving(
            home, weights, "--model", weights.name,
            RLPROXY_TRAIN__START_AT=str(arguments.start_at), RLPROXY_TRAIN__MAX_SAMPLES=str(arguments.round),
        )
        for weights in (arguments.old, arguments.new)
    )  # fmt: skip
    await old.start()
    record["history"] = await history(old, Rater(old, arguments.tokens), arguments, arguments.old.name)
    print("history", record["history"]["status"]["live"], flush=True)
    _, plan, _ = await rlproxy(home, "retrain", "--weights", str(arguments.new), "--dry-run", "--json")
    record["plan"] = json.loads(plan)
    save()
    start = time.monotonic()
    record["killed"] = await killed_in_the_middle(old, home, str(arguments.new))
    print("killed", record["killed"]["step"]["step"], flush=True)
    save()
    await old.start()
    code, out, err = await rlproxy(home, "retrain", "--json")
    record["retrain"] = {"code": code, "seconds": round(time.monotonic() - start), "lines": err.splitlines()}
    record["retrain"] |= {"report": json.loads(out) if out else None}
    record["before_the_switch"] = (await old.status())["live"]
    runs = (await (await old.http.get("/rl/runs")).json())["data"]
    record["runs"] = [{k: v for k, v in run.items() if k != "folder"} for run in runs]
    record["progress"] = (home / "runs" / f"r{record['killed']['run']:05d}" / "progress.jsonl").read_text().splitlines()
    await old.stop()
    print("retrained", record["retrain"]["report"]["line"], flush=True)
    save()
    version = record["retrain"]["report"]["versions"][-1]
    await new.start()
    promoted = await new.post(f"/rl/promote/{version}")
    rater = Rater(new, arguments.tokens)
    name = arguments.new.name
    record["new_base"] = {
        "promoted": promoted,
        "base": await rater.held_out(prompts, f"{name}@base"),
        "version": await rater.held_out(prompts, f"{name}@v{version}"),
        "problem": (await new.status())["problem"],
    }
    rollback = await new.post("/rl/rollback")
    record["new_base"]["rollback"] = rollback
    await new.stop()
    save()
    await old.start()
    _, label = await old.chat("Say hello.", model=arguments.old.name, max_tokens=4)
    status = await old.status()
    record["old_base_again"] = {"answered_by": label, "live": status["live"], "problem": status["problem"]}
    await old.stop()
    save()
    print(record["old_base_again"], flush=True)


if __name__ == "__main__":
    asyncio.run(main())
