"""The table of the routes that other programs may use: each with its words, its body and its answers.

Owns the rows. A route that `proxy.app` registers is here or among `document.LEFT_OUT`; a test holds both together.
"""

from __future__ import annotations

from typing import Any, Final

from proxy.access.keys import KeyBody
from proxy.core.errors import Problem
from proxy.feedback import bodies
from proxy.feedback.webhooks.links import LinkedMessage
from proxy.feedback.webhooks.signed import SignedAnswer
from proxy.relay.capture.optout import Captured, CaptureOptouts
from proxy.signals.bodies import JudgeReport, Rescored
from proxy.training import admin_acts
from proxy.web.openapi import passthrough, requests, responses
from proxy.web.openapi.episodes import EPISODES
from proxy.web.openapi.lessons import LessonBody, LessonsBody, LessonWanted
from proxy.web.openapi.operation import FLAG, NDJSON, TEXT, Operation, Raw, Schema, number
from proxy.web.openapi.status import StatusBody

TURN: Final[Schema] = {"type": "string", "enum": ["main", "side"]}
SECONDS: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 2**40, "description": "Unix seconds"}
VERSION: Final[Schema] = number(0, 2**31)
STREAM: Final = Raw({"application/json": {"type": "object"}, "text/event-stream": {}})
LINES: Final = Raw({"application/json": {"type": "object"}, "application/x-ndjson": TEXT})
THEIRS: Final = Raw({"application/json": {}, "text/plain": TEXT})  # an id that is not ours goes to the backend
ANYTHING: Final = Raw({"application/json": {}, "text/plain": TEXT})

NAME: Final[Schema] = {"type": "string", "pattern": "^[!-~]{1,200}$"}
PERSON: Final[Schema] = {**NAME, "not": {"const": "owner"}}
ABOUT: Final[dict[str, Schema]] = {  # a completion
    "x-rl-session": NAME,
    "x-rl-user": PERSON,
    "x-rl-turn": TURN,
    "x-rl-capture": {"type": "string", "enum": ["off", "on"], "description": "`off`: relay, keep nothing."},
    "x-rl-completion-id": {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,128}$", "description": "Your own, once."},
}
RATER: Final[dict[str, Schema]] = {"x-rl-user": {**PERSON, "description": "Who rates, where the body does not say it."}}
SIGNED: Final[dict[str, Schema]] = {"webhook-id": TEXT, "webhook-timestamp": TEXT, "webhook-signature": TEXT}


def _model(path: str, takes: Any, says: str, answers: Raw = STREAM, details_page: str = "") -> Operation:
    return Operation(
        "post",
        path,
        "models",
        says,
        {200: answers},
        takes=takes,
        headers=ABOUT,
        fails=passthrough.RelayedError,
        details_page=details_page,
    )


def _webhook(name: str, says: str, takes: Any = ANYTHING, answers: Any = ANYTHING, **options: Any) -> Operation:
    shapes = {200: answers} if isinstance(answers, Raw) else {200: answers, 201: answers}  # 201: rated
    return Operation("post", f"/rl/webhooks/{name}", "chats", says, shapes, takes=takes, **options)


def _act(path: str, says: str, answer: Any, status: int = 200, **options: Any) -> Operation:
    return Operation("post", path, "control", says, {status: answer}, **options)


def _read(path: str, says: str, answer: Any, **options: Any) -> Operation:
    return Operation("get", path, "control", says, {200: answer}, **options)


MODELS: Final = (
    _model(
        "/v1/chat/completions",
        passthrough.ChatRequestBody,
        "Relayed, captured, answered by the live version. Streams and whole answers, tools, `n`.",
    ),
    _model("/v1/completions", passthrough.CompletionRequest, "Legacy completions, the same."),
    _model("/v1/responses", passthrough.ResponsesRequest, "The Responses API, the same, with `previous_response_id`."),
    Operation(
        "get", "/v1/responses/{id}", "models", "A captured answer by its id.", {200: passthrough.Relayed},
        headers={"x-rl-user": PERSON}, fails=THEIRS,
    ),
    Operation(
        "delete", "/v1/responses/{id}", "models", "Gone; a rated one is not deleted (409).",
        {200: responses.DeletedResponse}, headers={"x-rl-user": PERSON}, fails=THEIRS,
    ),
    Operation(
        "post", "/v1/responses/{id}/cancel", "models", "Ends an answer that the backend makes in the background.",
        {200: passthrough.Relayed}, headers={"x-rl-user": PERSON}, fails=THEIRS,
    ),
    _model(
        "/v1/messages",
        passthrough.MessagesRequest,
        "Anthropic Messages, likewise. The message's `id` is what to rate by.",
    ),
    Operation(
        "post", "/v1/messages/count_tokens", "models",
        "The backend's own answer, a count by its tokenizer or by tiktoken, or 404.", {200: passthrough.TokenCount},
        takes=passthrough.MessagesRequest, fails=passthrough.RelayedError, details_page="dialects.md#counting-tokens",
    ),
    _model(
        "/api/chat",
        passthrough.OllamaChatRequest,
        "Ollama's own API, likewise, as lines of JSON or whole. Its bodies have no id: rate by the header "
        "`x-rl-completion-id`.",
        LINES,
    ),
    _model("/api/generate", passthrough.OllamaGenerateRequest, "The same for one prompt.", LINES),
    Operation(
        "get", "/v1/models", "models",
        "The backend's list, plus `MODEL@base` and `MODEL@vN`: asking for one of these pins it.",
        {200: passthrough.ModelList}, fails=passthrough.RelayedError,
    ),
)  # fmt: skip

RATINGS: Final = (
    Operation(
        "post", "/v1/feedback", "ratings",
        "Rate a completion, or up to 1,000. 201: on disk; 200: all were stored before; 207: some were refused.",
        {
            200: bodies.RatingBody | bodies.Batch,
            201: bodies.RatingBody | bodies.Batch,
            207: bodies.Batch,
        },
        takes=requests.AnyFeedback, headers=RATER, fails=Problem | bodies.Batch,
    ),
    Operation(
        "post", "/v1/feedback/open-webui", "ratings",
        "A feedback of Open WebUI, as our function there sends it; it says by itself which answer it is about. 404 or "
        "409: none, or several.",
        {200: bodies.OpenWebUITaken, 201: bodies.OpenWebUITaken},
        takes=requests.OpenWebUIFeedback | requests.OpenWebUIDeletion, headers=RATER,
    ),
    Operation(
        "delete", "/v1/feedback/{id}", "ratings", "Take a rating back; `last` is the rater's newest.",
        {200: bodies.RatingBody}, query={"rater": TEXT, "session": TEXT}, headers=RATER,
    ),
)  # fmt: skip

CHATS: Final = (
    Operation(
        "post", "/rl/links", "chats",
        "This message shows that completion, and was for this person. From whoever posts the message, by the key that "
        "asked for the completion or an admin's. 404: that key has none of that id within a second; 403: another key "
        "has linked the message.",
        {201: LinkedMessage}, takes=requests.LinkBody, headers=RATER,
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
        "signed", "Anything that signs, below.", requests.SignedEvent, SignedAnswer, headers=SIGNED,
        fails=Problem | SignedAnswer,
    ),
    _webhook(
        "openclaw", "The same, with a secret of its own, for the OpenClaw plugin.", requests.SignedEvent,
        SignedAnswer, headers=SIGNED, fails=Problem | SignedAnswer,
    ),
)  # fmt: skip

CONTROL: Final = (
    _read(
        "/rl/events",
        "Server-sent events: `rating`, `retracted`, `run`, `paused`, `resumed`, `problem`. `captured`: `count` answers "
        "ended, told at most four times a second. `waiting`: a rule stopped the run. `swap`: with `load_s`, "
        "`warm_up_s` and `switch_s`. `watch`: a version was rolled back by itself. `rebuild`: of versions that learned "
        "from what was forgotten: begun, over. `Last-Event-ID` resumes. Ends when the key is revoked.",
        Raw({"text/event-stream": {}}), query={"after": number(0, 10**18 - 1)},
        headers={"last-event-id": {"type": "string", "pattern": "^[0-9]{1,18}$"}},
    ),
    _read(
        "/rl/status",
        "What is live, what is collected, what training waits for, the last run, problems, and which dialects the "
        "backend has. More below.",
        StatusBody,
    ),
    _read(
        "/rl/completions",
        "Newest first, without their prompts (members below); `before` is a `seq` to go on from.",
        responses.CompletionsBody,
        query={
            "limit": number(1, 1000, 50), "before": number(1, 2**62), "session": TEXT, "version": VERSION,
            "turn": TURN, "unrated": FLAG,
        },
    ),
    _read(
        "/rl/completions/{id}", "One, with its `prompt`: the messages as the model was asked them.",
        responses.WholeCompletion,
    ),
    _read(
        "/rl/runs", "Runs, newest first, with every number of the gate.", responses.RunsBody,
        query={"limit": number(1, 1000, 50)},
    ),
    _read(
        "/rl/runs/{id}",
        "One run in full: also every choice with its reason, the warnings, and what became of each sample "
        "(`account`: completion, `used`, `cause`, `flags`).",
        responses.WholeRun,
    ),
    _read(
        "/rl/adapters", "Versions; `withdrawn` says why one was rolled back by itself.", responses.AdaptersBody,
    ),
    _read("/rl/capture", "Sessions of which nothing is kept.", CaptureOptouts),
    _act(
        "/rl/capture",
        "Keep nothing of a session, or keep it again; in force when it answers. A client says `x-rl-capture: off` with "
        "each request instead.",
        Captured,
        takes=requests.CaptureWanted, details_page="../guides/privacy.md",
    ),
    _read(
        "/rl/export", "JSON lines, one completion each; what is given chooses.", NDJSON,
        details_page="../guides/export.md",
        query={
            "rated": FLAG, "session": TEXT, "user": TEXT, "version": VERSION, "turn": TURN, "since": SECONDS,
            "until": SECONDS,
        },
    ),
    _act(
        "/rl/import", "Such lines back in. `?ours`: their version numbers are this home's.", responses.ImportedBody,
        takes=NDJSON, query={"ours": FLAG}, details_page="../guides/export.md",
    ),
    _act(
        "/rl/train",
        "Start a run now, however few ratings there are; or make one go on that waits for its hours.",
        admin_acts.Started, 202,
    ),
    _act("/rl/pause", "A run under way stops at its next step, and no other starts.", admin_acts.Paused),
    _act("/rl/resume", "It goes on from there.", admin_acts.Paused),
    _act(
        "/rl/cancel",
        "End the run under way, or the one that waits; its ratings are fresh again. One that came to its result "
        "first stays (409).",
        admin_acts.Cancelled,
    ),
    _act(
        "/rl/forget",
        "All of one `session`, `completion`, `user` or `rater`: gone from the database and the run folders. `retrain` "
        "has versions that learned from it trained again without it, `purge_backups` deletes copies in the home that "
        "hold it. `dry_run` only says what would go. More below.",
        responses.ForgottenBody, takes=requests.Forget, details_page="../guides/privacy.md",
    ),
    _act(
        "/rl/rollback",
        "Back to the version before, unless that is withdrawn (409: only `promote` brings it back); `?base` to the "
        "base model.",
        admin_acts.PointerBody, query={"base": FLAG},
    ),
    _act(
        "/rl/promote/{version}", "Make `v3`, `3` or `base` live.", admin_acts.PointerBody,
        path_schema={"type": "string", "pattern": "^(v?[0-9]{1,9}|base)$"},
    ),
    _act(
        "/rl/reset",
        "The base answers, the next run starts from it, the baseline is 0. What a run under way makes of another "
        "version waits for `promote`. Nothing is deleted.",
        admin_acts.Reset,
    ),
    _read("/rl/keys", "All keys ever made, without their secrets.", responses.KeysBody),
    _act("/rl/keys", "A new one. The answer has its text, this once.", responses.NewKey, 201, takes=requests.KeyWanted),
    Operation(
        "delete", "/rl/keys/{key}", "control", "Revoke it, by name or id; it stays in the list.",
        {200: KeyBody},
    ),
    _read("/healthz", "Alive.", responses.Ok),
    _read("/readyz", "The backend can be reached; 503 where it cannot.", responses.Ok),
    _read("/metrics", "Prometheus.", Raw({"text/plain": TEXT})),
    _read("/openapi.json", "All this as OpenAPI 3.1.", Raw({"application/json": {"type": "object"}})),
)  # fmt: skip

JUDGE: Final = (
    Operation(
        "get", "/rl/judge", "control",
        "Signals, the judge's state, and how far its labels agree with people's ratings.", {200: JudgeReport},
        details_page="../guides/signals.md",
    ),
    Operation(
        "post", "/rl/judge/accept", "control",
        "Accept what leaves this machine; before that nothing is sent.",
        {200: JudgeReport}, details_page="../guides/signals.md",
    ),
    Operation(
        "post", "/rl/rescore", "control",
        "Score again with your own code: turns, or `episodes`.",
        {200: Rescored},
        takes=requests.RescoreWanted, details_page="../guides/signals.md#signals-of-your-own",
    ),
)  # fmt: skip

LESSONS: Final = (
    Operation(
        "get", "/rl/lessons", "control", "Comments that act at once in later prompts; those that have ended, too.",
        {200: LessonsBody}, details_page="../guides/rating-well.md#lessons",
    ),
    Operation(
        "patch", "/rl/lessons/{id}", "control", "Other words, every question instead of its topic, or active again.",
        {200: LessonBody}, takes=LessonWanted, details_page="../guides/rating-well.md#lessons",
    ),
    Operation(
        "delete", "/rl/lessons/{id}", "control", "It acts no more; its rating stays, and trains.",
        {200: LessonBody}, details_page="../guides/rating-well.md#lessons",
    ),
)  # fmt: skip

OPERATIONS: Final[tuple[Operation, ...]] = (*MODELS, *RATINGS, *EPISODES, *CHATS, *CONTROL, *JUDGE, *LESSONS)
