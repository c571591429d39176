"""Counters for `/metrics`, one registry an app: no module-level state."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

MOST_SOURCES: Final = 50  # of ratings, by name


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own = self.registry
        self._sources: set[str] = set()
        self.requests = Counter("rlproxy_requests", "Requests answered", ["dialect", "status"], registry=own)
        self.captured = Counter("rlproxy_completions", "Completions stored", ["status"], registry=own)
        self.not_stored = Counter(
            "rlproxy_completions_not_stored", "Completions that the disk did not take", registry=own
        )
        self.ratings = Counter("rlproxy_ratings", "Ratings stored", ["source"], registry=own)
        self.webhooks = Counter(
            "rlproxy_webhook_events", "Events from chat platforms", ["route", "result"], registry=own
        )
        self.swaps = Counter("rlproxy_swaps", "Changes of the live version", registry=own)
        self.runs = Counter("rlproxy_runs", "Training runs ended", ["status"], registry=own)
        self.live = Gauge("rlproxy_live_version", "Adapter version that new requests get; 0 is the base", registry=own)
        self.overhead = Histogram(
            "rlproxy_overhead_seconds",
            "Time from a request's last byte to its being sent to the backend",
            buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25),
            registry=own,
        )

    def rated(self, source: str) -> None:
        """Clients name the source as they like: the first ones are counted each, all further ones together."""
        if source not in self._sources and len(self._sources) == MOST_SOURCES:
            source = "other"
        else:
            self._sources.add(source)
        self.ratings.labels(source).inc()

    def render(self) -> bytes:
        return generate_latest(self.registry)
