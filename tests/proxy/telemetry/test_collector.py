"""A real OpenTelemetry collector receives a request's spans and metrics. `make test-scale` builds and runs it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from proxy.telemetry import exporter
from scripts.harness.in_process import Proxy
from tests.harness.newcomer import free_port

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")
from tests.harness.otlp import Receiver, values

pytestmark = pytest.mark.scale

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
PROGRAM = CACHE / "rlproxy/otelcol/out/otelcol-rlproxy"  # as scripts/setup_otelcol makes it
SERVER = "POST /v1/chat/completions"
AGENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    await receiver.start()
    yield receiver
    await receiver.stop()


@pytest.fixture
async def collector(tmp_path: Path, receiver: Receiver) -> AsyncIterator[str]:
    """Its address. It passes on to the receiver, which keeps what came through."""
    if not PROGRAM.exists():
        pytest.skip("scripts/setup_otelcol has not built it")
    port = free_port()
    pipeline = {"receivers": ["otlp"], "exporters": ["otlphttp"]}
    config = {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}},
        "exporters": {"otlphttp": {"endpoint": receiver.url, "compression": "none"}},
        "service": {
            "pipelines": {"traces": pipeline, "metrics": pipeline},
            "telemetry": {"metrics": {"level": "none"}},
        },
    }
    (tmp_path / "collector.yaml").write_text(yaml.safe_dump(config))
    process = await asyncio.create_subprocess_exec(
        str(PROGRAM), "--config", str(tmp_path / "collector.yaml"), stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    lines = []
    async for line in process.stderr:
        lines.append(line)
        if b"Everything is ready" in line:
            break
    else:
        pytest.fail(b"".join(lines).decode())
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    await process.communicate()


async def test_it_receives_a_requests_spans_and_metrics(
    receiver: Receiver, collector: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "DELAY_S", 0.05)
    await proxy.stop()
    await proxy.start(telemetry__otlp=collector)
    response = await proxy.chat("hello", stream=True, headers={"traceparent": AGENT})
    await response.read()
    async with asyncio.timeout(20):
        while not receiver.named("capture"):
            await asyncio.sleep(0.1)
    spans = {span.name: span for span in receiver.spans}
    assert sorted(spans) == sorted([SERVER, "relay", "chat fake", "upstream wait", "first token", "capture"])
    assert {span.trace_id.hex() for span in receiver.spans} == {AGENT[3:35]}
    assert spans[SERVER].parent_span_id.hex() == AGENT[36:52]
    sent = {name.lower(): value for name, value in proxy.backend.headers[-1].items()}
    assert sent["traceparent"] == f"00-{AGENT[3:35]}-{spans['chat fake'].span_id.hex()}-01"
    assert values(spans["chat fake"].attributes)["gen_ai.response.id"] == response.headers["x-rl-completion-id"]
    assert receiver.resource["service.name"] == "rlproxy"
    await proxy.stop()  # metrics go once more at the end
    async with asyncio.timeout(20):
        while "rlproxy.requests" not in receiver.metrics:
            await asyncio.sleep(0.1)
    assert {
        "gen_ai.client.inference.duration",
        "gen_ai.client.inference.usage.output_tokens",
    } <= receiver.metrics.keys()
    await proxy.start()
