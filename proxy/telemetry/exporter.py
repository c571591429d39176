"""The way of traces and metrics to an OpenTelemetry collector, beside the requests.

Owns the queue between them: the event loop puts in what is over, and never waits. One thread makes spans of it and
sends them. What finds the queue full, and what the collector did not take, is counted in `/metrics` and dropped. The
SDK comes with the extra `otel`; without `telemetry.otlp` nothing of it is imported.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple

import structlog

from config.sections import TelemetrySection
from proxy.core.events import ServerEvent
from proxy.core.metrics import Metrics
from proxy.core.start_errors import CannotStart
from proxy.telemetry.request_trace import RequestTrace, trace_ids
from proxy.telemetry.run_trace import RunTrace, RunTraces

log = structlog.get_logger()

MOST_WAITING: Final = 4096  # requests and runs
MOST_BYTES: Final = 32 * 1024 * 1024  # of texts that wait with them
BATCH: Final = 16  # requests a message: making their spans takes the interpreter for some milliseconds
PAUSE: Final = 9.0  # times as long as it worked: the thread takes a tenth of what requests have, at most
DELAY_S: Final = 1.0  # between two looks into the queue
TIMEOUT_S: Final = 5.0  # for the collector to take a batch
STOP_S: Final = 2.0  # for what is left, when rlproxy stops
NO_SDK: Final = (
    "telemetry.otlp is set and OpenTelemetry's SDK is not installed: `pip install 'rlproxy[otel]'`, or take the "
    "setting out"
)


class EndedRequest(NamedTuple):
    trace: RequestTrace
    route: str
    status: int

    @property
    def weight(self) -> int:
        return 0 if self.trace.completion is None else self.trace.completion.weight


class Exporter:
    """Sends traces and metrics to `telemetry.otlp`. Raises CannotStart where the SDK is missing."""

    def __init__(self, settings: TelemetrySection, metrics: Metrics) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
            from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
        except ImportError:
            raise CannotStart(f"{NO_SDK}.") from None
        from proxy.telemetry.instruments import Instruments
        from proxy.telemetry.spans import SpanMaker

        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # what fails is said here, once
        self._settings = settings
        self._metrics = metrics
        url = settings.otlp.rstrip("/")
        # OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME go before our name.
        resource = Resource({SERVICE_NAME: "rlproxy"}).merge(OTELResourceDetector().detect())
        self._spans = SpanMaker(resource)
        self._to_collector = OTLPSpanExporter(f"{url}/v1/traces", timeout=TIMEOUT_S)
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{url}/v1/metrics", timeout=TIMEOUT_S))
        self._instruments = Instruments(resource, reader, metrics.registry)
        self._queue: deque[EndedRequest | RunTrace] = deque()
        self._bytes = 0
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._is_failing = False
        self._thread = threading.Thread(target=self._work, name="otel", daemon=True)

    def begin(self, trace: RequestTrace, traceparent: str | None) -> None:
        """Give a request its place in a trace."""
        trace.ids = trace_ids(traceparent, self._settings.share)
        trace.with_content = self._settings.content and trace.ids.is_sampled

    def take(self, item: EndedRequest | RunTrace) -> None:
        """Queue what is over. It is dropped and counted where the queue is full."""
        weight = item.weight if isinstance(item, EndedRequest) else 0
        with self._lock:
            is_full = len(self._queue) >= MOST_WAITING or self._bytes + weight > MOST_BYTES
            if not is_full:
                self._queue.append(item)
                self._bytes += weight
        if is_full:
            self._metrics.traces.labels("dropped: queue full").inc()
        elif len(self._queue) == MOST_WAITING // 2:
            self._wake.set()

    def start(self) -> None:
        self._thread.start()

    async def follow_runs(self, events: AsyncIterator[ServerEvent]) -> None:
        """Queue each training run when it has ended."""
        runs = RunTraces()
        async for event in events:
            if event.kind == "run" and (run := runs.add(event.data)) is not None:
                self.take(run)

    async def stop(self) -> None:
        """Send what is left, for STOP_S at most."""
        self._stopping.set()
        self._wake.set()
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        self._thread.join(STOP_S)
        self._to_collector.shutdown()
        self._instruments.stop(STOP_S)

    # The thread

    def _work(self) -> None:
        while True:
            self._wake.wait(DELAY_S)
            self._wake.clear()
            while batch := self._next_batch():
                start = time.thread_time()
                self._send(batch)
                self._stopping.wait((time.thread_time() - start) * PAUSE)
            if self._stopping.is_set():
                return

    def _next_batch(self) -> list[EndedRequest | RunTrace]:
        with self._lock:
            batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
            self._bytes -= sum(item.weight for item in batch if isinstance(item, EndedRequest))
        return batch

    def _send(self, batch: list[EndedRequest | RunTrace]) -> None:
        """Send one batch. A failure loses this batch, and touches no request."""
        is_delivered, reason = False, "the collector did not take them"
        spans: list[Any] = []
        for item in batch:
            try:
                spans += self._spans_of(item)
            except Exception:  # a fault here or in the SDK loses this trace alone
                log.exception("a trace could not be made")
        try:
            is_delivered = not spans or self._to_collector.export(spans).name == "SUCCESS"
        except Exception as error:
            reason = repr(error)
        self._metrics.traces.labels("sent" if is_delivered else "dropped: not delivered").inc(len(batch))
        if is_delivered == self._is_failing:  # it has changed
            self._is_failing = not is_delivered
            if is_delivered:
                log.info("the collector takes traces again", url=self._settings.otlp)
            else:
                log.warning("traces are dropped", url=self._settings.otlp, reason=reason)

    def _spans_of(self, item: EndedRequest | RunTrace) -> list[Any]:
        if isinstance(item, RunTrace):
            return self._spans.run(item)
        self._instruments.request(item.trace)
        ids = item.trace.ids
        return self._spans.request(item.trace, item.route, item.status) if ids and ids.is_sampled else []


def make_exporter(settings: TelemetrySection, metrics: Metrics) -> Exporter | None:
    """The exporter; None where nothing is to be exported. Raises CannotStart."""
    return Exporter(settings, metrics) if settings.otlp else None
