"""`traceparent`, read and written as OpenTelemetry's own propagator does; counts of tokens."""

from __future__ import annotations

import pytest

from proxy.telemetry.request_trace import completion_facts, read_traceparent, trace_ids
from scripts.harness.records import end, new

SOUND = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    "header",
    [
        SOUND,
        f" {SOUND} ",
        SOUND[:-2] + "00",
        f"{SOUND}-more",
        f"01{SOUND[2:]}-more",
        f"ff{SOUND[2:]}",
        SOUND.upper(),
        SOUND.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32),
        SOUND.replace("b7ad6b7169203331", "0" * 16),
        SOUND[:-1],
        "",
        "junk",
        "00-" * 2000,
    ],
)
def test_it_is_read_as_by_the_propagator(header: str) -> None:
    propagation = pytest.importorskip("opentelemetry.trace.propagation.tracecontext")
    trace = pytest.importorskip("opentelemetry.trace")
    context = propagation.TraceContextTextMapPropagator().extract({"traceparent": header})
    theirs = trace.get_current_span(context).get_span_context()
    expected = (theirs.trace_id, theirs.span_id, int(theirs.trace_flags)) if theirs.is_valid else None
    assert read_traceparent(header) == expected


def test_what_is_passed_on_continues_the_agents_trace() -> None:
    ids = trace_ids(SOUND, 0.0)
    name, _, value = ids.header.decode().rstrip("\r\n").partition(": ")
    assert name == "traceparent" and value[:36] == SOUND[:36] and value[36:52] != SOUND[36:52]
    assert read_traceparent(value) == (ids.trace_id, ids.upstream_id, 1)


@pytest.mark.parametrize(("share", "is_sampled"), [(0.0, False), (1.0, True)])
def test_a_trace_that_begins_here_is_recorded_by_its_share(share: float, is_sampled: bool) -> None:
    ids = trace_ids(None, share)
    assert ids.is_sampled is is_sampled and ids.parent_id is None
    assert trace_ids(None, share).trace_id != ids.trace_id
    assert read_traceparent(ids.header.decode().partition(": ")[2].strip()) is not None


def test_tokens_are_counted_by_the_server_or_by_its_ids() -> None:
    row = new("c1")
    facts = completion_facts(
        [row], [end("c1", usage={"prompt_tokens": 7, "completion_tokens": True})], with_content=False
    )
    assert facts.prompt_tokens == 7
    ids = end("c1", prompt_token_ids=[1, 2], token_ids=[3, 4, 5], usage=None)
    facts = completion_facts([row], [ids], with_content=False)
    assert (facts.prompt_tokens, facts.answer_tokens) == (2, 3) and not facts.prompt and not facts.replies
    assert completion_facts([row], [ids], with_content=True).prompt == row.prompt
