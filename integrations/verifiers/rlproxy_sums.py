"""A small verifiers environment: sums over two turns, asked by a harness in verifiers' own process.

    vf-eval rlproxy_sums --env.agent.harness.id rlproxy_sums --env.agent.runtime.type subprocess \
        --client.base-url http://127.0.0.1:8484/v1 --client.api-key-var RLPROXY_KEY \
        --model MODEL --num-rollouts 8 --no-push --no-rich
    rlproxy import verifiers outputs

verifiers sends each trace's id as X-Session-ID, so each trace is an episode. Runs offline.
"""

import re

import verifiers.v1 as vf
from openai import AsyncOpenAI

__all__ = ["SumsHarness", "SumsTaskset"]


class SumsData(vf.TaskData):
    answer: int


class SumsTask(vf.Task[SumsData, vf.State, vf.TaskConfig]):
    @vf.reward(weight=0.75)
    async def right(self, trace: vf.Trace) -> float:
        found = re.findall(r"-?\d+", trace.last_reply)
        return float(bool(found) and int(found[-1]) == self.data.answer)

    @vf.reward(weight=0.25)
    async def short(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) <= 4)


class SumsConfig(vf.TasksetConfig):
    tasks: int = 2


class SumsTaskset(vf.Taskset[SumsTask, SumsConfig]):
    def load(self) -> list[SumsTask]:
        pairs = [(at % 9 + 1, at // 9 % 9 + 1) for at in range(self.config.tasks)]
        return [
            SumsTask(SumsData(prompt=f"What is {a} + {b}?", answer=a + b, name=f"{a}+{b}"), self.config.task)
            for a, b in pairs
        ]


class SumsHarnessConfig(vf.HarnessConfig):
    pass


class SumsHarness(vf.Harness[SumsHarnessConfig]):
    """Asks, and asks once more for the bare number."""

    NEEDS_CONTAINER = False
    EXECUTES_CODE = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        client = AsyncOpenAI(base_url=endpoint, api_key=secret)
        messages = [{"role": "user", "content": data.prompt}]
        for more in ("Now the bare number, please.", None):
            answer = await client.chat.completions.create(model=ctx.model, messages=messages)
            messages.append({"role": "assistant", "content": answer.choices[0].message.content})
            if more:
                messages.append({"role": "user", "content": more})
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
