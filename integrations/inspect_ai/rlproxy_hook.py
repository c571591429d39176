"""inspect_ai samples as episodes of rlproxy: import this module, set RLPROXY_URL, and each epoch trains.

Copy it, or put its folder on PYTHONPATH. The epochs of a sample are a group: training compares them with each other. A
sample without a score stays without a reward, and one that failed is left out. RLPROXY_SPLIT=eval only measures.
"""

import json
import os
import urllib.request
from contextvars import ContextVar

from inspect_ai.hooks import BeforeModelGenerate, Hooks, SampleEnd, SampleStart, TaskStart, hooks
from inspect_ai.scorer import value_to_float

EPISODE: ContextVar[str] = ContextVar("episode")


@hooks(name="rlproxy", description="Samples are episodes of rlproxy")
class RLProxy(Hooks):
    epochs = 1

    async def on_task_start(self, data: TaskStart) -> None:
        self.epochs = data.spec.config.epochs or 1

    async def on_sample_start(self, data: SampleStart) -> None:
        EPISODE.set(data.sample_id)  # a request has another id of the same sample
        post("/rl/episodes", {"id": data.sample_id, "split": os.environ.get("RLPROXY_SPLIT", "train")})

    async def on_before_model_generate(self, data: BeforeModelGenerate) -> None:
        data.config.extra_headers = {**(data.config.extra_headers or {}), "x-rl-session": EPISODE.get()}

    async def on_sample_end(self, data: SampleEnd) -> None:
        sample = data.sample
        said = {"group": f"{data.eval_id}:{sample.id}", "group_size": self.epochs}
        if sample.error is not None:
            post(f"/rl/episodes/{data.sample_id}/reward", {**said, "error": sample.error.message[:4000]})
        elif sample.scores:
            value = next(iter(sample.scores.values())).value
            self.reward(data.sample_id, {**said, "reward": value_to_float()(value)})

    def reward(self, episode: str, said: dict) -> None:
        post(f"/rl/episodes/{episode}/reward", said)


def post(path: str, body: dict) -> None:
    url, key = os.environ.get("RLPROXY_URL", "http://127.0.0.1:8484"), os.environ.get("RLPROXY_KEY", "none")
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(url + path, json.dumps(body).encode(), headers)
    urllib.request.urlopen(request, timeout=60).close()
