"""A collector gets traces of requests and runs over real sockets, and cannot delay or fail them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from config.sections import TelemetrySection
from proxy.core.metrics import Metrics
from proxy.core.start_errors import CannotStart
from proxy.telemetry import exporter
from proxy.telemetry.exporter import Exporter
from scripts.harness.in_process import Proxy
from tests.harness.runs import rated

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")
from tests.harness.otlp import Receiver, values

AGENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = AGENT[:-2] + "00"
NAMES = ["POST /v1/chat/completions", "relay", "chat fake", "upstream wait", "first token", "capture"]


@pytest.fixture
async def receiver(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Receiver]:
    monkeypatch.setattr(exporter, "DELAY_S", 0.02)
    monkeypatch.setattr(exporter, "STOP_S", 1.0)
    receiver = Receiver()
    await receiver.start()
    yield receiver
    receiver.hold.set()
    await receiver.stop()


@pytest.fixture
async def traced(receiver: Receiver, proxy: Proxy) -> Proxy:
    await again(receiver, proxy)
    return proxy


async def again(receiver: Receiver, proxy: Proxy, **flags: Any) -> None:
    await proxy.stop()
    await proxy.start(telemetry__otlp=receiver.url, **flags)


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.02)


async def metrics(proxy: Proxy) -> str:
    async with proxy.http.get("/metrics") as response:
        return await response.text()


async def test_a_request_has_its_spans(receiver: Receiver, traced: Proxy) -> None:
    response = await traced.chat("hello there", stream=True, temperature=0.5, headers={"x-rl-session": "s1"})
    await response.read()
    await until(lambda: len(receiver.spans) >= len(NAMES))
    spans = {span.name: span for span in receiver.spans}
    assert sorted(spans) == sorted(NAMES)
    server, asking = spans[NAMES[0]], spans["chat fake"]
    assert len({span.trace_id for span in receiver.spans}) == 1 and not server.parent_span_id
    assert {spans[name].parent_span_id for name in ("relay", "chat fake", "capture")} == {server.span_id}
    assert {spans[name].parent_span_id for name in ("upstream wait", "first token")} == {asking.span_id}
    for span in receiver.spans:
        assert server.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= server.end_time_unix_nano, span.name
    assert receiver.resource["service.name"] == "rlproxy"
    told = values(asking.attributes)
    assert told["gen_ai.operation.name"] == "chat" and told["gen_ai.provider.name"] == "vllm"
    assert told["gen_ai.request.model"] == "fake" and told["gen_ai.request.temperature"] == 0.5
    assert told["gen_ai.response.finish_reasons"] == ["stop"] and told["gen_ai.conversation.id"] == "s1"
    assert told["gen_ai.usage.output_tokens"] == 4 and told["gen_ai.usage.input_tokens"] > 0
    assert told["gen_ai.response.id"] == response.headers["x-rl-completion-id"]
    assert told["server.address"] == "127.0.0.1" and traced.backend.url.endswith(str(told["server.port"]))
    assert values(server.attributes)["http.response.status_code"] == 200


async def test_no_text_is_in_a_span_unless_a_setting_says_so(receiver: Receiver, proxy: Proxy) -> None:
    await again(receiver, proxy)
    await proxy.say("plums and pears")
    await until(lambda: receiver.named("chat fake"))
    assert b"plums" not in b"".join(span.SerializeToString() for span in receiver.spans)
    await again(receiver, proxy, telemetry__content=True)
    receiver.spans.clear()
    await proxy.say("plums and pears, and sk-proj-" + "a1B2" * 12)
    await until(lambda: receiver.named("chat fake"))
    told = values(receiver.named("chat fake")[0].attributes)
    (question,) = json.loads(told["gen_ai.input.messages"])
    assert question["role"] == "user" and question["parts"][0]["content"].startswith("plums and pears")
    (answer,) = json.loads(told["gen_ai.output.messages"])
    assert answer["role"] == "assistant" and "plums" in answer["parts"][0]["content"]
    assert b"a1B2a1B2" not in b"".join(span.SerializeToString() for span in receiver.spans), "redacted as it is stored"


async def test_the_agents_trace_goes_on_through_rlproxy(receiver: Receiver, traced: Proxy) -> None:
    await (await traced.chat("x", headers={"traceparent": AGENT, "tracestate": "vendor=1"})).read()
    await until(lambda: receiver.named("chat fake"))
    server, asking = receiver.named(NAMES[0])[0], receiver.named("chat fake")[0]
    assert server.trace_id.hex() == AGENT[3:35] and server.parent_span_id.hex() == AGENT[36:52]
    sent = {name.lower(): value for name, value in traced.backend.headers[-1].items()}
    assert sent["traceparent"] == f"00-{AGENT[3:35]}-{asking.span_id.hex()}-01" and sent["tracestate"] == "vendor=1"


async def test_a_trace_that_its_agent_does_not_record_is_none_here_either(receiver: Receiver, traced: Proxy) -> None:
    await (await traced.chat("x", headers={"traceparent": UNSAMPLED})).read()
    assert {k.lower(): v for k, v in traced.backend.headers[-1].items()}["traceparent"].endswith("-00")
    await (await traced.chat("y", headers={"traceparent": AGENT})).read()
    await until(lambda: receiver.named("chat fake"))
    assert len(receiver.named(NAMES[0])) == 1


async def test_without_a_collector_the_agents_header_passes_as_it_came(proxy: Proxy) -> None:
    await (await proxy.chat("x", headers={"traceparent": AGENT})).read()
    assert {k.lower(): v for k, v in proxy.backend.headers[-1].items()}["traceparent"] == AGENT


async def test_an_error_is_told_as_one(receiver: Receiver, traced: Proxy) -> None:
    await traced.backend.stop()
    response = await traced.chat("x")
    await until(lambda: receiver.named(NAMES[0]))
    server = receiver.named(NAMES[0])[0]
    assert values(server.attributes)["error.type"] == str(response.status) and server.status.code == 2
    (asking,) = (span for span in receiver.spans if span.kind == 3)
    assert values(asking.attributes)["error.type"] == "BackendDown" and asking.status.code == 2


async def test_an_answer_whose_client_goes_away_is_told_when_it_is_stored(receiver: Receiver, traced: Proxy) -> None:
    traced.backend.pause_s = 0.05
    response = await traced.chat("a b c d e f g h", stream=True)
    await response.content.readany()
    response.close()
    await until(lambda: receiver.named("capture"))
    assert values(receiver.named(NAMES[0])[0].attributes)["http.response.status_code"] in (200, 499)
    assert values(receiver.named("chat fake")[0].attributes)["error.type"] == "client_gone"


async def test_metrics_come_too(receiver: Receiver, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
    await again(receiver, proxy)
    await (await proxy.chat("hello", stream=True)).read()
    await until(lambda: "gen_ai.client.inference.duration" in receiver.metrics)
    (point,) = receiver.metrics["gen_ai.client.inference.duration"].histogram.data_points
    assert point.count == 1 and values(point.attributes)["gen_ai.request.model"] == "fake"
    assert receiver.metrics["gen_ai.client.inference.time_to_first_chunk"].histogram.data_points[0].count == 1
    (read,) = receiver.metrics["gen_ai.client.inference.usage.input_tokens"].sum.data_points
    assert read.as_int > 0
    await until(lambda: receiver.metrics["rlproxy.requests"].sum.data_points)
    (requests,) = receiver.metrics["rlproxy.requests"].sum.data_points
    assert requests.as_double == 1 and values(requests.attributes) == {"dialect": "chat", "status": "200"}


@pytest.mark.parametrize("mood", ["refuses", "hangs", "is away"])
async def test_a_bad_collector_costs_no_request_and_what_is_dropped_is_counted(
    receiver: Receiver, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, mood: str
) -> None:
    monkeypatch.setattr(exporter, "MOST_WAITING", 4)
    monkeypatch.setattr(exporter, "TIMEOUT_S", 0.2)
    await again(receiver, proxy)
    if mood == "refuses":
        receiver.status = 400
    elif mood == "hangs":
        receiver.hold.clear()
    else:
        await receiver.stop()
    for _ in range(12):
        assert await proxy.say("x")
    async with asyncio.timeout(20):
        while "dropped: not delivered" not in await metrics(proxy):
            await asyncio.sleep(0.05)
    assert (await proxy.chat("x")).status == 200


def test_a_full_queue_drops_and_counts() -> None:
    told = Metrics()
    sender = Exporter(TelemetrySection(otlp="http://127.0.0.1:9"), told)  # its thread does not run
    trace = exporter.RequestTrace(0.0)
    for _ in range(exporter.MOST_WAITING + 3):
        sender.take(exporter.EndedRequest(trace, "/v1/chat/completions", 200))
    assert b'rlproxy_traces_total{result="dropped: queue full"} 3.0' in told.render()


async def test_a_training_run_has_its_spans(receiver: Receiver, traced: Proxy) -> None:
    traced.launcher.progress = [{"event": "phase", "phase": phase} for phase in ("load", "train", "write")]
    await rated(traced, 4)
    await until(lambda: receiver.named("training run"))
    (run,) = receiver.named("training run")
    assert values(run.attributes)["rlproxy.run.status"] == "done"
    phases = [span for span in receiver.spans if span.name.startswith("run ")]
    assert [span.name for span in phases] == ["run load", "run train", "run write"]
    assert {span.parent_span_id for span in phases} == {run.span_id}


def test_without_the_sdk_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(CannotStart, match=r"pip install 'rlproxy\[otel\]'"):
        Exporter(TelemetrySection(otlp="http://127.0.0.1:4318"), Metrics())
