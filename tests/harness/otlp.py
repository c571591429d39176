"""A receiver of OTLP over HTTP on loopback: it reads what comes by opentelemetry-proto's own messages.

It takes the place of a collector (`make test-scale` builds a real one). It can refuse, hang or answer
slowly, as collectors do on bad days.
"""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from scripts.fakes.listening import Listening


class Receiver(Listening):
    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.metrics: dict[str, Metric] = {}  # the newest of each name
        self.resource: dict[str, Any] = {}
        self.status = 200
        self.hold = asyncio.Event()  # cleared: it takes a request and does not answer
        self.hold.set()

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/traces", self._traces)
        app.router.add_post("/v1/metrics", self._metrics)
        await self.listen(app)

    async def _body(self, request: web.Request) -> bytes:
        await self.hold.wait()
        raw = await request.read()
        return gzip.decompress(raw) if request.headers.get("content-encoding") == "gzip" else raw

    async def _traces(self, request: web.Request) -> web.Response:
        message = ExportTraceServiceRequest.FromString(await self._body(request))
        if self.status == 200:
            for resource in message.resource_spans:
                self.resource = values(resource.resource.attributes)
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        return web.Response(status=self.status, content_type="application/x-protobuf")

    async def _metrics(self, request: web.Request) -> web.Response:
        message = ExportMetricsServiceRequest.FromString(await self._body(request))
        if self.status == 200:
            for resource in message.resource_metrics:
                self.metrics |= {m.name: m for scope in resource.scope_metrics for m in scope.metrics}
        return web.Response(status=self.status, content_type="application/x-protobuf")

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


def values(attributes: Any) -> dict[str, Any]:
    """Attributes as a dict."""
    return {pair.key: _value(pair.value) for pair in attributes if isinstance(pair, KeyValue)}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(inner) for inner in value.array_value.values]
    return None if kind is None else getattr(value, kind)
