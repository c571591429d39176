"""The table of the routes that other programs may use: each with its words, its body and its answers.

Owns the rows. A route that `proxy.app` registers is here or among `document.LEFT_OUT`; a test holds both together.
"""

from __future__ import annotations

from typing import Any, Final

from proxy.openapi import answered, asked, relayed
from proxy.openapi.operation import FLAG, TEXT, Operation, Raw, Schema, number
from proxy.openapi.status import Status

TURN: Final[Schema] = {"type": "string", "enum": ["main", "side"]}
SECONDS: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 2**40, "description": "Unix seconds"}
VERSION: Final[Schema] = number(0, 2**31)
STREAM: Final = Raw({"application/json": {"type": "object"}, "text/event-stream": {}})
LINES: Final = Raw({"application/json": {"type": "object"}, "application/x-ndjson": TEXT})
NDJSON: Final = Raw({"application/x-ndjson": TEXT})
THEIRS: Final = Raw({"application/json": {}, "text/plain": TEXT})  # an id that is not ours goes to the backend
ANYTHING: Final = Raw({"application/json": {}, "text/plain": TEXT})

ABOUT: Final[dict[str, Schema]] = {  # a completion
    "x-rl-session": TEXT,
    "x-rl-user": TEXT,
    "x-rl-turn": TURN,
    "x-rl-capture": {"type": "string", "enum": ["off", "on"], "description": "`off`: relay, keep nothing."},
    "x-rl-completion-id": {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,128}$", "description": "Your own, once."},
}
RATER: Final[dict[str, Schema]] = {"x-rl-user": {**TEXT, "description": "Who rates, where the body does not say it."}}
SIGNED: Final[dict[str, Schema]] = {"webhook-id": TEXT, "webhook-timestamp": TEXT, "webhook-signature": TEXT}


def _model(path: str, takes: Any, says: str, answers: Raw = STREAM, more: str = "") -> Operation:
    return Operation(
        "post", path, "models", says, {200: answers}, takes=takes, headers=ABOUT, fails=relayed.RelayedError, more=more
    )


def _webhook(name: str, says: str, takes: Any = ANYTHING, answers: Any = ANYTHING, **more: Any) -> Operation:
    shapes = {200: answers} if isinstance(answers, Raw) else {200: answers, 201: answers}  # 201: rated
    return Operation("post", f"/rl/webhooks/{name}", "chats", says, shapes, takes=takes, **more)


def _act(path: str, says: str, answer: Any, status: int = 200, **more: Any) -> Operation:
    return Operation("post", path, "control", says, {status: answer}, **more)


def _read(path: str, says: str, answer: Any, **more: Any) -> Operation:
    return Operation("get", path, "control", says, {200: answer}, **more)


MODELS: Final = (
    _model(
        "/v1/chat/completions",
        relayed.ChatRequest,
        "Relayed, captured, answered by the live version. Streams and whole answers, tools, `n`.",
    ),
    _model("/v1/completions", relayed.CompletionRequest, "Legacy completions, the same."),
    _model("/v1/responses", relayed.ResponsesRequest, "The Responses API, the same, with `previous_response_id`."),
    Operation(
        "get", "/v1/responses/{id}", "models", "A captured answer by its id.", {200: relayed.Relayed},
        headers={"x-rl-user": TEXT}, fails=THEIRS,
    ),
    Operation(
        "delete", "/v1/responses/{id}", "models", "Gone; a rated one is not deleted (409).",
        {200: answered.DeletedResponse}, headers={"x-rl-user": TEXT}, fails=THEIRS,
    ),
    _model(
        "/v1/messages",
        relayed.MessagesRequest,
        "Anthropic Messages, likewise. The message's `id` is what to rate by.",
    ),
    Operation(
        "post", "/v1/messages/count_tokens", "models",
        "The backend's own answer, or a count by its tokenizer, or 404.", {200: relayed.TokenCount},
        takes=relayed.MessagesRequest, fails=relayed.RelayedError, more="dialects.md#counting-tokens",
    ),
    _model(
        "/api/chat",
        relayed.OllamaChatRequest,
        "Ollama's own API, likewise, as lines of JSON or whole. Its bodies have no id: rate by the header "
        "`x-rl-completion-id`.",
        LINES,
    ),
    _model("/api/generate", relayed.OllamaGenerateRequest, "The same for one prompt.", LINES),
    Operation(
        "get", "/v1/models", "models",
        "The backend's list, plus `MODEL@base` and `MODEL@vN`: asking for one of these pins it.",
        {200: relayed.ModelList}, fails=relayed.RelayedError,
    ),
)  # fmt: skip

RATINGS: Final = (
    Operation(
        "post", "/v1/feedback", "ratings",
        "Rate a completion, or up to 1,000. 201: on disk; 200: all were stored before; 207: some were refused.",
        {200: answered.Rating | answered.Batch, 201: answered.Rating | answered.Batch, 207: answered.Batch},
        takes=asked.AnyFeedback, headers=RATER, fails=answered.Problem | answered.Batch,
    ),
    Operation(
        "delete", "/v1/feedback/{id}", "ratings", "Take a rating back; `last` is the rater's newest.",
        {200: answered.Rating}, query={"rater": TEXT, "session": TEXT}, headers=RATER,
    ),
)  # fmt: skip

CHATS: Final = (
    Operation(
        "post", "/rl/links", "chats",
        "This message shows that completion, and was for this person. From whoever posts the message, by the key that "
        "asked for the completion or an admin's: 404 where that key has none of that id within a second, 403 where "
        "another key has linked the message.",
        {201: answered.Linked}, takes=asked.Link, headers=RATER,
    ),
    _webhook("slack", "Events API and the slash command `/rl`."),
    _webhook("telegram", "Updates: reactions, `/rl …`."),
    _webhook("discord", "Interactions: `/rl`, buttons."),
    _webhook("whatsapp", "Reactions."),
    Operation(
        "get", "/rl/webhooks/whatsapp", "chats", "Meta's subscription.", {200: Raw({"text/plain": TEXT})},
        query={"hub.mode": TEXT, "hub.verify_token": TEXT, "hub.challenge": TEXT},
    ),
    _webhook(
        "signed", "Anything that signs, below.", asked.SignedEvent, answered.Webhook, headers=SIGNED,
        fails=answered.Problem | answered.Webhook,
    ),
    _webhook(
        "openclaw", "The same, with a secret of its own, for the OpenClaw plugin.", asked.SignedEvent,
        answered.Webhook, headers=SIGNED, fails=answered.Problem | answered.Webhook,
    ),
)  # fmt: skip

CONTROL: Final = (
    _read(
        "/rl/events",
        "Server-sent events: `captured` (answers ended, `count` of them: told at most four times a second), `rating`, "
        "`retracted`, `run`, `waiting` (a rule stopped the run), `swap` (with `load_s`, `warm_up_s` and `switch_s`), "
        "`watch` (a version was rolled back by itself), `rebuild` (of versions that learned from what was forgotten: "
        "begun, over), `paused`, `resumed`, `problem`. `Last-Event-ID` resumes. Ends when the key is revoked.",
        Raw({"text/event-stream": {}}), query={"after": number(0, 10**18 - 1)},
        headers={"last-event-id": {"type": "string", "pattern": "^[0-9]{1,18}$"}},
    ),
    _read(
        "/rl/status",
        "What is live, what is collected, what training waits for, the last run, problems, and which dialects the "
        "backend has. More below.",
        Status,
    ),
    _read(
        "/rl/completions",
        "Newest first, without their prompts (members below); `before` is a `seq` to go on from.",
        answered.Completions,
        query={
            "limit": number(1, 1000, 50), "before": number(1, 2**62), "session": TEXT, "version": VERSION,
            "turn": TURN, "unrated": FLAG,
        },
    ),
    _read(
        "/rl/completions/{id}", "One, with its `prompt`: the messages as the model was asked them.",
        answered.WholeCompletion,
    ),
    _read(
        "/rl/runs", "Runs, newest first, with every number of the gate.", answered.Runs,
        query={"limit": number(1, 1000, 50)},
    ),
    _read(
        "/rl/runs/{id}",
        "One run in full: also every choice with its reason, the warnings, and what became of each sample "
        "(`account`: completion, `used`, `cause`, `flags`).",
        answered.WholeRun,
    ),
    _read(
        "/rl/adapters", "Versions; `withdrawn` says why one was rolled back by itself.", answered.Adapters,
    ),
    _read("/rl/capture", "Sessions of which nothing is kept.", answered.Captures),
    _act(
        "/rl/capture",
        "Keep nothing of a session, or keep it again; in force when it answers. A client says `x-rl-capture: off` with "
        "each request instead.",
        answered.Captured,
        takes=asked.CaptureWanted, more="privacy.md",
    ),
    _read(
        "/rl/export", "JSON lines, one completion each; what is given chooses.", NDJSON, more="export.md",
        query={
            "rated": FLAG, "session": TEXT, "user": TEXT, "version": VERSION, "turn": TURN, "since": SECONDS,
            "until": SECONDS,
        },
    ),
    _act(
        "/rl/import", "Such lines back in. `?ours`: their version numbers are this home's.", answered.Imported,
        takes=NDJSON, query={"ours": FLAG}, more="export.md",
    ),
    _act(
        "/rl/train",
        "Start a run now, however few ratings there are; or make one go on that waits for its hours.",
        answered.Started, 202,
    ),
    _act("/rl/pause", "A run under way stops at its next step, and no other starts.", answered.Paused),
    _act("/rl/resume", "It goes on from there.", answered.Paused),
    _act(
        "/rl/cancel",
        "End the run under way, or the one that waits; its ratings are fresh again. One that came to its result "
        "first stays (409).",
        answered.Cancelled,
    ),
    _act(
        "/rl/forget",
        "All of one `session`, `completion`, `user` or `rater`: gone from the database and the run folders. `retrain` "
        "has versions that learned from it trained again without it, `purge_backups` deletes copies in the home that "
        "hold it. `dry_run` only says what would go. More below.",
        answered.Forgotten, takes=asked.Forget, more="privacy.md",
    ),
    _act(
        "/rl/rollback",
        "Back to the version before, unless that is withdrawn (409: only `promote` brings it back); `?base` to the "
        "base model.",
        answered.Pointer, query={"base": FLAG},
    ),
    _act(
        "/rl/promote/{version}", "Make `v3`, `3` or `base` live.", answered.Pointer,
        path_schema={"type": "string", "pattern": "^(v?[0-9]{1,9}|base)$"},
    ),
    _act(
        "/rl/reset",
        "The base answers, the next run starts from it, the baseline is 0. What a run under way makes of another "
        "version waits for `promote`. Nothing is deleted.",
        answered.Reset,
    ),
    _read("/rl/keys", "All keys ever made, without their secrets.", answered.Keys),
    _act("/rl/keys", "A new one. The answer has its text, this once.", answered.NewKey, 201, takes=asked.KeyWanted),
    Operation(
        "delete", "/rl/keys/{key}", "control", "Revoke it, by name or id; it stays in the list.", {200: answered.Key}
    ),
    _read("/healthz", "Alive.", answered.Ok),
    _read("/readyz", "The backend can be reached; 503 where it cannot.", answered.Ok),
    _read("/metrics", "Prometheus.", Raw({"text/plain": TEXT})),
    _read("/openapi.json", "All this as OpenAPI 3.1.", Raw({"application/json": {"type": "object"}})),
)  # fmt: skip

OPERATIONS: Final[tuple[Operation, ...]] = (*MODELS, *RATINGS, *CHATS, *CONTROL)
