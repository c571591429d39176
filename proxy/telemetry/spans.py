"""Spans of a request and of a training run, made once these are over.

Owns their names and attributes. These are of the GenAI semantic conventions (open-telemetry/semantic-conventions-genai,
read 2026-11-28), and HTTP's for the outermost span. `rlproxy.*` is what those have no name for. A request has

    POST /v1/chat/completions      SERVER    from its head to its last byte
      relay                        INTERNAL  rlproxy's own work until the question left
      chat MODEL                   CLIENT    from the question to the end of the answer; the backend goes on from it
        upstream wait              INTERNAL  until the answer began
        first token                INTERNAL  from there to the first bytes of a stream
      capture                      INTERNAL  until its completion was on disk

Texts of prompts and answers are in it only with `telemetry.content`. Everything here runs in the exporter's thread.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from opentelemetry import trace as otel
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from proxy.core.version_names import label
from proxy.telemetry.request_trace import CompletionFacts, RequestTrace, TraceIds
from proxy.telemetry.run_trace import RunTrace
from store.records import Message

OPERATIONS: Final = {"completions": "text_completion", "ollama-generate": "text_completion"}  # else chat
SAMPLING: Final = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "max_tokens": "gen_ai.request.max_tokens",
    "seed": "gen_ai.request.seed",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
}
SCOPE: Final = "rlproxy"


def operation_attributes(facts: CompletionFacts, backend_url: str | None) -> dict[str, Any]:
    """Attributes that the span of an operation and its metrics share. A provider is the backend's kind."""
    place = urlsplit(backend_url or "")
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": OPERATIONS.get(facts.dialect, "chat"),
        "gen_ai.provider.name": facts.backend,
        "gen_ai.request.model": facts.model,
        "gen_ai.response.model": facts.served_model,
    }
    if place.hostname:
        attributes["server.address"] = place.hostname
        attributes["server.port"] = place.port or (443 if place.scheme == "https" else 80)
    return attributes


class SpanMaker:
    """Makes spans by the SDK, with the ids and times that a request already has."""

    def __init__(self, resource: Resource) -> None:
        self._ids = _PlannedIds()
        self._ended = _Ended()
        provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer(SCOPE)

    def request(self, request: RequestTrace, route: str, status: int) -> list[ReadableSpan]:
        """The spans of a request. `status`: of its HTTP answer, 499 where its client went away before it had one."""
        ids, facts = request.ids, request.completion
        assert ids is not None
        clock, end = _Clock(), request.ended
        attributes: dict[str, Any] = {
            "http.request.method": "POST",
            "http.route": route,
            "url.path": route,
            "url.scheme": "http",
            "http.response.status_code": status,
        }
        error = str(status) if status >= 500 else None
        self._ids.next_trace_id = ids.trace_id  # asked for only where no parent has one
        server = self._tracer.start_span(
            f"POST {route}", _parent(ids), SpanKind.SERVER, attributes, start_time=clock.unix_ns(request.started)
        )
        inside = otel.set_span_in_context(server)
        self._stage("relay", inside, clock, request.started, request.departure or request.answered or end)
        if request.departure is not None:
            self._upstream(request, facts, ids, inside, clock, request.answered or end)
        if request.storing is not None and request.stored is not None:
            self._stage("capture", inside, clock, request.storing, request.stored)
        _end(server, clock.unix_ns(end), error)
        return self._ended.take()

    def _upstream(
        self,
        request: RequestTrace,
        facts: CompletionFacts | None,
        ids: TraceIds,
        inside: otel.Context,
        clock: _Clock,
        end: float,
    ) -> None:
        """The span of the question, whose id the backend was told, and its parts."""
        departure = request.departure
        assert departure is not None
        attributes = {} if facts is None else _inference_attributes(request, facts)
        name = f"{attributes.get('gen_ai.operation.name', 'chat')} {attributes.get('gen_ai.request.model', '')}".strip()
        self._ids.next_span_id = ids.upstream_id
        span = self._tracer.start_span(name, inside, SpanKind.CLIENT, attributes, start_time=clock.unix_ns(departure))
        within = otel.set_span_in_context(span)
        self._stage("upstream wait", within, clock, departure, request.head or end)
        if request.head is not None and request.first_chunk is not None:
            self._stage("first token", within, clock, request.head, request.first_chunk)
        _end(span, clock.unix_ns(end), request.error or (None if facts is None else _error_of(facts)))

    def _stage(self, name: str, inside: otel.Context, clock: _Clock, start: float, end: float) -> None:
        span = self._tracer.start_span(name, inside, start_time=clock.unix_ns(start))
        span.end(clock.unix_ns(end))

    def run(self, run: RunTrace) -> list[ReadableSpan]:
        """The spans of a training run: one for all of it, one for each phase."""
        attributes = {"rlproxy.run.id": run.id, "rlproxy.run.status": run.status, "rlproxy.run.samples": run.samples}
        whole = self._tracer.start_span(
            "training run", otel.Context(), attributes=attributes, start_time=_ns(run.started)
        )
        inside = otel.set_span_in_context(whole)
        for phase in run.phases:
            span = self._tracer.start_span(f"run {phase.name}", inside, start_time=_ns(phase.started))
            span.end(_ns(phase.ended))
        _end(whole, _ns(run.ended), "failed" if run.status == "failed" else None)
        return self._ended.take()


def _inference_attributes(request: RequestTrace, facts: CompletionFacts) -> dict[str, Any]:
    attributes = operation_attributes(facts, request.backend_url) | {
        "gen_ai.response.id": facts.id,
        "gen_ai.request.stream": facts.streamed,
        "rlproxy.adapter": label(facts.version),
        "rlproxy.turn": facts.turn,
    }
    attributes |= {name: facts.sampling[key] for key, name in SAMPLING.items() if key in facts.sampling}
    if facts.session is not None:
        attributes["gen_ai.conversation.id"] = facts.session
    if facts.choices != 1:
        attributes["gen_ai.request.choice.count"] = facts.choices
    if facts.finish_reasons:
        attributes["gen_ai.response.finish_reasons"] = facts.finish_reasons
    if facts.prompt_tokens is not None:
        attributes["gen_ai.usage.input_tokens"] = facts.prompt_tokens
    if facts.answer_tokens is not None:
        attributes["gen_ai.usage.output_tokens"] = facts.answer_tokens
    if request.first_chunk is not None and request.departure is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = request.first_chunk - request.departure
    if facts.prompt:
        attributes["gen_ai.input.messages"] = _messages_json(facts.prompt)
    if facts.replies:
        attributes["gen_ai.output.messages"] = _messages_json(facts.replies)
    return attributes


def _error_of(facts: CompletionFacts) -> str | None:
    return None if facts.status == "done" else facts.status


def _messages_json(messages: tuple[Message, ...]) -> str:
    """Messages as the conventions have them: a role and parts. Of pictures and sounds the kind alone is told."""
    return json.dumps([{"role": m.role, "parts": list(_parts(m.role, json.loads(m.body)))} for m in messages])


def _parts(role: str, message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The parts of a message as the tree has it (`conversations.canonical`)."""
    content = message.get("content")
    if role == "tool":
        yield {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content}
        return
    if isinstance(content, str) and content:
        yield {"type": "text", "content": content}
    for part in content if isinstance(content, list) else ():
        kind = str(part.get("type")) if isinstance(part, dict) else "other"
        yield {"type": kind, "content": part.get("text")} if kind == "text" else {"type": kind}
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        yield {
            "type": "tool_call",
            "id": call.get("id"),
            "name": function.get("name"),
            "arguments": function.get("arguments"),
        }


def _parent(ids: TraceIds) -> otel.Context:
    """The agent's span, or none but with the trace's id."""
    if ids.parent_id is None:
        return otel.Context()
    flags = TraceFlags(TraceFlags.SAMPLED)
    return otel.set_span_in_context(NonRecordingSpan(SpanContext(ids.trace_id, ids.parent_id, True, flags)))


def _end(span: otel.Span, end_ns: int, error: str | None) -> None:
    if error is not None:
        span.set_attribute("error.type", error)
        span.set_status(Status(StatusCode.ERROR))
    span.end(end_ns)


def _ns(unix_seconds: float) -> int:
    return int(unix_seconds * 1e9)


class _Clock:
    """The performance counter in Unix time."""

    def __init__(self) -> None:
        self._start_ns = time.time_ns() - time.perf_counter_ns()

    def unix_ns(self, counter: float) -> int:
        return self._start_ns + int(counter * 1e9)


class _PlannedIds(RandomIdGenerator):  # type: ignore[misc]
    """Ids of traces and spans: those that a request already has, else random ones."""

    next_trace_id: int | None = None
    next_span_id: int | None = None

    def generate_trace_id(self) -> int:
        planned, self.next_trace_id = self.next_trace_id, None
        return planned or super().generate_trace_id()

    def generate_span_id(self) -> int:
        planned, self.next_span_id = self.next_span_id, None
        return planned or super().generate_span_id()


class _Ended(SpanProcessor):  # type: ignore[misc]
    """Gathers what has ended. One thread makes spans."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self._spans.append(span)

    def take(self) -> list[ReadableSpan]:
        spans, self._spans = self._spans, []
        return spans
