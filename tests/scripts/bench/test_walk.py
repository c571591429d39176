"""Bounds on how many of our own functions run before a question leaves, and after it. No machine changes a count."""

from __future__ import annotations

import sys

from scripts.bench.relay.walk import Recorder, cut
from scripts.harness.in_process import Proxy

MOST_CALLS = 69
MOST_MODULES = 32
MOST_OF_RECORD = 85  # the row of a question and of its answer
RECORD = (
    "proxy/conversation/",
    *(f"proxy/relay/capture/{name}.py" for name in ("capture", "outcome", "pending_record")),
)


async def test_a_question_leaves_after_few_calls_of_ours(proxy: Proxy) -> None:
    await proxy.stop()
    proxy.kind = None
    await proxy.start(backend__kind="openai")
    await proxy.say("x")
    recorder = Recorder()
    for _ in range(3):
        sys.setprofile(recorder.note)
        try:
            await proxy.say("x")
        finally:
            sys.setprofile(None)
    # Where the client's body came after its head, others ran meanwhile.
    before = min((cut(walk)[0] for walk in recorder.walks if len(cut(walk)[1])), key=len)
    assert before[0] == "proxy/web/error_middleware.py:shape_errors" and len(before) <= MOST_CALLS, "\n".join(before)
    assert len({name.partition(":")[0] for name in before}) <= MOST_MODULES
    # The backend of this process begins a walk, too: what follows the question goes on there.
    asked = [at for at, walk in enumerate(recorder.walks) if len(cut(walk)[1])]
    after = [cut(recorder.walks[at])[1] + recorder.walks[at + 1] for at in asked[:-1]]
    record = min(([name for name in walk if name.startswith(RECORD)] for walk in after), key=len)
    assert len(record) <= MOST_OF_RECORD, "\n".join(record)
