"""Notes a request in `/metrics` and in its trace, once it is over.

Owns which of a request's marks become which number. It runs after the last byte has left, and waits for nobody. Not
here: when the marks are set (in_flight, exchange, capture).
"""

from __future__ import annotations

import time
from typing import Final

from proxy.dialects import Dialect
from proxy.relay.parts import RelayParts
from proxy.telemetry.exporter import EndedRequest
from proxy.telemetry.request_trace import RequestTrace

CLIENT_GONE: Final = 499  # the status of an answer that its client did not wait for, as nginx has it


def note_end(parts: RelayParts, trace: RequestTrace, dialect: Dialect, status: int) -> None:
    """Note that its client has the answer, or has gone."""
    trace.ended = time.perf_counter()
    if status == CLIENT_GONE:
        trace.error = trace.error or "client_gone"
    else:
        parts.metrics.answered(dialect.name, status)
    if trace.finishing is None:
        _note_stored(parts, trace, dialect, status)
    else:  # what came of it is stored after its client has gone
        trace.finishing.add_done_callback(lambda _: _note_stored(parts, trace, dialect, status))


def _note_stored(parts: RelayParts, trace: RequestTrace, dialect: Dialect, status: int) -> None:
    trace.finishing = None
    metrics, departure, facts = parts.metrics, trace.departure, trace.completion
    if departure is not None and trace.first_chunk is not None:
        metrics.first_token.observe(trace.first_chunk - departure)
    if departure is not None and trace.answered is not None:
        metrics.answer.observe(trace.answered - departure)
    if facts is not None:
        metrics.count_tokens(facts.prompt_tokens or 0, facts.answer_tokens or 0)
    if parts.exporter is not None:
        parts.exporter.take(EndedRequest(trace, dialect.paths[0], status))
