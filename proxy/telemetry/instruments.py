"""Metrics for a collector: those of the GenAI conventions, and the counters and gauges of `/metrics`.

Owns their names and buckets. They are sent by the SDK's own thread every OTEL_METRIC_EXPORT_INTERVAL milliseconds (60 s
where that is not set), all of them since the start. Not here: spans (spans).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry

from proxy.telemetry.request_trace import RequestTrace
from proxy.telemetry.spans import SCOPE, operation_attributes

# The conventions' own.
SECONDS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TOKENS: Final = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)


class Instruments:
    def __init__(self, resource: Resource, reader: MetricReader, registry: CollectorRegistry) -> None:
        """`registry`: the counters and gauges of `/metrics`, read whenever metrics are sent."""
        self._provider = MeterProvider([reader], resource, shutdown_on_exit=False)
        meter = self._provider.get_meter(SCOPE)
        seconds = partial(meter.create_histogram, unit="s", explicit_bucket_boundaries_advisory=SECONDS)
        tokens = partial(meter.create_histogram, unit="{token}", explicit_bucket_boundaries_advisory=TOKENS)
        self._duration = seconds("gen_ai.client.inference.duration")
        self._first_chunk = seconds("gen_ai.client.inference.time_to_first_chunk")
        self._tokens = [
            (
                meter.create_counter(f"gen_ai.client.inference.usage.{kind}_tokens", unit="{token}"),
                tokens(f"gen_ai.client.inference.operation.{kind}_tokens"),
            )
            for kind in ("input", "output")
        ]
        for family in registry.collect():
            create = {"counter": meter.create_observable_counter, "gauge": meter.create_observable_gauge}
            if family.type in create:
                name = family.name.replace("rlproxy_", "rlproxy.", 1)
                create[family.type](
                    name, [partial(_observations, registry, family.name)], description=family.documentation
                )

    def request(self, request: RequestTrace) -> None:
        """Count a request that was captured and has an answer."""
        facts = request.completion
        if facts is None or request.departure is None or request.answered is None:
            return
        attributes = operation_attributes(facts, request.backend_url)
        outcome = attributes if request.error is None else {**attributes, "error.type": request.error}
        self._duration.record(request.answered - request.departure, outcome)
        if request.first_chunk is not None:
            self._first_chunk.record(request.first_chunk - request.departure, attributes)
        counts = facts.prompt_tokens, facts.answer_tokens
        for count, (total, distribution) in zip(counts, self._tokens, strict=True):
            total.add(count or 0, {**attributes, "gen_ai.token.modality": "unknown"})
            if count is not None:
                distribution.record(count, attributes)

    def stop(self, timeout_s: float) -> None:
        """Send what there is, within this time."""
        self._provider.shutdown(timeout_millis=timeout_s * 1000)


def _observations(registry: CollectorRegistry, name: str, _options: CallbackOptions) -> Iterable[Observation]:
    """The samples of one family now, with their labels."""
    for family in registry.collect():
        if family.name == name:
            for sample in family.samples:
                if not sample.name.endswith("_created"):
                    labels: dict[str, Any] = dict(sample.labels)
                    yield Observation(sample.value, labels)
