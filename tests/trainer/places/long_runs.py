"""A run of 120 steps or more, and the steps that it has taken: for tests that interrupt it in every place."""

import json

from tests.harness import tiny


def long_run(tmp_path, model, lines, passes=60):
    return tiny.run_folder(tmp_path / "r00001", model, lines, overrides={"passes": passes, "learning_rate": 1e-6})


def steps(run):
    events = [json.loads(line) for line in (run / "progress.jsonl").read_text().splitlines()]
    return [event["step"] for event in events if event["event"] == "step"]


async def until_step(job, least=1):
    async for event in job.events():
        if event["event"] == "step" and event["step"] >= least:
            return
