"""Counters for `/metrics`, one registry an app: no module-level state."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.requests = Counter("rlproxy_requests", "Requests answered", ["dialect", "status"], registry=registry)
        self._answered: dict[tuple[str, int], Counter] = {}
        self.captured = Counter("rlproxy_completions", "Completions stored", ["status"], registry=registry)
        self.not_stored = Counter(
            "rlproxy_completions_not_stored", "Completions that the disk did not take", registry=registry
        )
        self.ratings = Counter("rlproxy_ratings", "Ratings stored", ["source", "sign"], registry=registry)
        self.webhooks = Counter(
            "rlproxy_webhook_events", "Events from chat platforms", ["route", "result"], registry=registry
        )
        self.swaps = Counter("rlproxy_swaps", "Changes of the live version", registry=registry)
        self.runs = Counter("rlproxy_runs", "Training runs ended", ["status"], registry=registry)
        self.live = Gauge(
            "rlproxy_live_version", "Adapter version that new requests get; 0 is the base", registry=registry
        )
        self.overhead = Histogram(
            "rlproxy_overhead_seconds",
            "Time from a request's last byte to its being sent to the backend",
            buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25),
            registry=registry,
        )
        self.first_token = Histogram(
            "rlproxy_first_token_seconds",
            "Time from a question to the first bytes of its stream",
            buckets=_SECONDS,
            registry=registry,
        )
        self.answer = Histogram(
            "rlproxy_answer_seconds",
            "Time from a question to the end of its answer",
            buckets=_SECONDS,
            registry=registry,
        )
        tokens = Counter("rlproxy_tokens", "Tokens that the backend says it used", ["kind"], registry=registry)
        self._prompt_tokens, self._answer_tokens = tokens.labels("prompt"), tokens.labels("answer")
        self.traces = Counter(
            "rlproxy_traces", "Requests and runs for the OpenTelemetry collector", ["result"], registry=registry
        )

    def answered(self, dialect: str, status: int) -> None:
        if (counter := self._answered.get((dialect, status))) is None:
            counter = self._answered[dialect, status] = self.requests.labels(dialect, str(status))
        counter.inc()

    def count_tokens(self, prompt: int, answer: int) -> None:
        self._prompt_tokens.inc(prompt)
        self._answer_tokens.inc(answer)

    def render(self) -> bytes:
        return generate_latest(self.registry)
