"""The table of routes: each with who may ask, who answers, and what other programs are told of it.

Owns the rows, and nothing else says them again: the guard reads the roles here, the application its handlers, and
`/openapi.json` and docs/reference/http-api.md the rest. Pages (page_routes) and what passes through have no words of
their own.
"""

from __future__ import annotations

from typing import Any, Final

from proxy.access.keys import KeyBody
from proxy.access.roles import ADMIN, EVENTS, MODEL, OPEN, PASSED, PROVEN, RATE, SIGNED, USE, Rule
from proxy.access.roles import RATE_IN_LINE as RATE_LINE
from proxy.access.roles import USE_IN_LINE as USE_LINE
from proxy.core.errors import Problem
from proxy.feedback import bodies
from proxy.feedback.webhooks.links import LinkedMessage
from proxy.feedback.webhooks.signed import SignedAnswer
from proxy.relay.capture.optout import Captured, CaptureOptouts
from proxy.signals.bodies import JudgeReport, Rescored
from proxy.training import admin_acts
from proxy.training.retraining.retraining import RetrainBody, RetrainPlanBody
from proxy.web.handlers import Answers
from proxy.web.lines.bodies import LINE
from proxy.web.lines.table import LINE_ROUTES
from proxy.web.openapi import answering, passthrough, requests, responses
from proxy.web.openapi.episodes import (
    GROUP,
    EpisodesBody,
    EpisodeWanted,
    OpenedEpisode,
    Reward,
    RewardedEpisode,
    RewardsBody,
    WholeEpisode,
)
from proxy.web.openapi.experiments import ExperimentsBody, ExperimentWanted
from proxy.web.openapi.explanation import ExplanationBody
from proxy.web.openapi.lessons import LessonBody, LessonsBody, LessonWanted
from proxy.web.openapi.shapes import FLAG, NDJSON, TEXT, Raw, Schema, number
from proxy.web.openapi.status import StatusBody
from proxy.web.page_routes import PAGES
from proxy.web.route import Route

TURN: Final[Schema] = {"type": "string", "enum": ["main", "side"]}
SECONDS: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 2**40, "description": "Unix seconds"}
VERSION: Final[Schema] = number(0, 2**31)
STREAM: Final = Raw({"application/json": {"type": "object"}, "text/event-stream": {}})
LINES: Final = Raw({"application/json": {"type": "object"}, "application/x-ndjson": TEXT})
THEIRS: Final = Raw({"application/json": {}, "text/plain": TEXT})  # an id that is not ours goes to the backend
ANYTHING: Final = Raw({"application/json": {}, "text/plain": TEXT})

APP_SERVICE: Final = "/rl/webhooks/matrix/_matrix/app/v1"  # what a Matrix homeserver adds to an address is fixed
NAME: Final[Schema] = {"type": "string", "pattern": "^[!-~]{1,200}$"}
PERSON: Final[Schema] = {**NAME, "not": {"const": "owner"}}
ABOUT: Final[dict[str, Schema]] = {  # a completion
    "x-rl-session": NAME,
    "x-rl-user": PERSON,
    "x-rl-turn": TURN,
    "x-rl-capture": {"type": "string", "enum": ["off", "on"], "description": "`off`: relay, keep nothing."},
    "x-rl-line": {**LINE, "description": "Whose version answers, where neither the model nor the key says it."},
    "x-rl-completion-id": {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,128}$", "description": "Your own, once."},
}
RATER: Final[dict[str, Schema]] = {"x-rl-user": {**PERSON, "description": "Who rates, where the body does not say it."}}
SIGNATURE: Final[dict[str, Schema]] = {"webhook-id": TEXT, "webhook-timestamp": TEXT, "webhook-signature": TEXT}


def _model(path: str, takes: Any, says: str, answers: Raw = STREAM) -> Route:
    return Route(
        "post", path, MODEL, lambda h: h.relayed(path), "models", says, {200: answers}, takes=takes,
        headers=ABOUT, fails=passthrough.RelayedError,
    )  # fmt: skip


def _webhook(name: str, says: str, takes: Any = ANYTHING, answers: Any = ANYTHING, **options: Any) -> Route:
    shapes = {200: answers} if isinstance(answers, Raw) else {200: answers, 201: answers}  # 201: rated
    return Route(
        "post", f"/rl/webhooks/{name}", SIGNED, lambda h: h.webhooks.handler(name), "chats", says, shapes, takes=takes,
        **options,
    )  # fmt: skip


def _act(path: str, handler: Answers, says: str, answer: Any, status: int = 200, **options: Any) -> Route:
    return Route("post", path, ADMIN, handler, "control", says, {status: answer}, **options)


def _read(path: str, rule: Rule, handler: Answers, says: str, answer: Any, **options: Any) -> Route:
    return Route("get", path, rule, handler, "control", says, {200: answer}, **options)


MODELS: Final = (
    _model(
        "/v1/chat/completions",
        passthrough.ChatRequestBody,
        "Relayed, captured, answered by the live version. Streams and whole answers, tools, `n`.",
    ),
    _model("/v1/completions", passthrough.CompletionRequest, "Legacy completions, the same."),
    _model("/v1/responses", passthrough.ResponsesRequest, "The Responses API, the same, with `previous_response_id`."),
    Route(
        "get", "/v1/responses", MODEL, lambda h: h.socket.get, "models", "The same over a WebSocket.", {101: None},
        fails=THEIRS,
    ),
    Route(
        "post", "/v1/responses/compact", MODEL, lambda h: h.compaction.post, "models",
        "The conversation summed up, as one item.", {200: passthrough.Relayed},
        takes=passthrough.ResponsesRequest, fails=passthrough.RelayedError,
    ),
    Route(
        "get", "/v1/responses/{id}", MODEL, lambda h: h.stored.get, "models",
        "A captured answer; `?stream` sends its events again.", {200: STREAM},
        query={"stream": FLAG, "starting_after": number(0, 2**31)}, headers={"x-rl-user": PERSON}, fails=THEIRS,
    ),
    Route(
        "get", "/v1/responses/{id}/input_items", MODEL, lambda h: h.stored.input_items, "models",
        "Its prompt, in pages.", {200: passthrough.Relayed},
        query={"limit": number(1, 100, 20), "order": {"type": "string", "enum": ["asc", "desc"]}, "after": TEXT},
        headers={"x-rl-user": PERSON}, fails=THEIRS,
    ),
    Route(
        "delete", "/v1/responses/{id}", MODEL, lambda h: h.stored.delete, "models",
        "Gone; a rated one stays (409).",
        {200: responses.DeletedResponse}, headers={"x-rl-user": PERSON}, fails=THEIRS,
    ),
    Route(
        "post", "/v1/responses/{id}/cancel", MODEL, lambda h: h.stored.cancel, "models",
        "Ends a background answer.",
        {200: passthrough.Relayed}, headers={"x-rl-user": PERSON}, fails=THEIRS,
    ),
    _model(
        "/v1/messages",
        passthrough.MessagesRequest,
        "Anthropic Messages, likewise. The message's `id` is what to rate by.",
    ),
    Route(
        "post", "/v1/messages/count_tokens", MODEL, lambda h: h.counts.post, "models",
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
    Route(
        "get", "/v1/models", MODEL, lambda h: h.models.list, "models",
        "The backend's list, plus `MODEL@base` and `MODEL@vN`: asking for one of these pins it.",
        {200: passthrough.ModelList}, fails=passthrough.RelayedError,
    ),
)  # fmt: skip

RATINGS: Final = (
    Route(
        "post", "/v1/feedback", RATE_LINE, lambda h: h.feedback.post, "ratings",
        "Rate a completion, or up to 1,000. 201: on disk; 200: all were stored before; 207: some were refused.",
        {
            200: bodies.RatingBody | bodies.Batch,
            201: bodies.RatingBody | bodies.Batch,
            207: bodies.Batch,
        },
        takes=requests.AnyFeedback, headers=RATER, fails=Problem | bodies.Batch,
    ),
    Route(
        "post", "/v1/feedback/open-webui", RATE, lambda h: h.open_webui.post, "ratings",
        "A feedback of Open WebUI, as our function there sends it; it says by itself which answer it is about. 404 or "
        "409: none, or several.",
        {200: bodies.OpenWebUITaken, 201: bodies.OpenWebUITaken},
        takes=requests.OpenWebUIFeedback | requests.OpenWebUIDeletion, headers=RATER,
    ),
    Route(
        "delete", "/v1/feedback/{id}", RATE_LINE, lambda h: h.feedback.delete, "ratings",
        "Take a rating back; `last` is the rater's newest.",
        {200: bodies.TakenBackBody}, query={"rater": TEXT, "session": TEXT}, headers=RATER,
    ),
)  # fmt: skip

CHATS: Final = (
    Route(
        "post", "/rl/links", RATE_LINE, lambda h: h.links.post, "chats",
        "This message shows that completion, and was for this person. From whoever posts the message, by the key that "
        "asked for the completion or an admin's. 404: that key has none of that id within a second; 403: another key "
        "has linked the message.",
        {201: LinkedMessage}, takes=requests.LinkBody, headers=RATER,
    ),
    _webhook("slack", "Events API and the slash command `/rl`."),
    _webhook("telegram", "Updates: reactions, `/rl …`."),
    _webhook("discord", "Interactions: `/rl`, buttons."),
    _webhook("whatsapp", "Reactions."),
    Route(
        "get", "/rl/webhooks/whatsapp", SIGNED, lambda h: h.webhooks.subscribe, "chats",
        "Meta's subscription.", {200: Raw({"text/plain": TEXT})},
        query={"hub.mode": TEXT, "hub.verify_token": TEXT, "hub.challenge": TEXT},
    ),
    Route(
        "put", f"{APP_SERVICE}/transactions/{{id}}", PROVEN, lambda h: h.webhooks.transaction, "chats",
        "A transaction of a Matrix homeserver: reactions, redactions, `/rl …`, and which answer a message shows.",
        {200: ANYTHING}, takes=ANYTHING,
    ),
    Route(
        "post", f"{APP_SERVICE}/ping", PROVEN, lambda h: h.webhooks.ping, "chats",
        "Whether the homeserver reaches rlproxy.", {200: ANYTHING}, takes=ANYTHING,
    ),
    Route(
        "get", f"{APP_SERVICE}/users/{{id}}", PROVEN, lambda h: h.webhooks.no_such_name, "chats",
        "Always 404: rlproxy makes no users there.", {404: ANYTHING},
    ),
    Route(
        "get", f"{APP_SERVICE}/rooms/{{id}}", PROVEN, lambda h: h.webhooks.no_such_name, "chats",
        "Always 404: nor rooms.", {404: ANYTHING},
    ),
    _webhook(
        "signed", "Anything that signs, below.", requests.SignedEvent, SignedAnswer, headers=SIGNATURE,
        fails=Problem | SignedAnswer,
    ),
    _webhook(
        "openclaw", "The same, with a secret of its own, for the OpenClaw plugin.", requests.SignedEvent,
        SignedAnswer, headers=SIGNATURE, fails=Problem | SignedAnswer,
    ),
)  # fmt: skip

CONTROL: Final = (
    _read(
        "/rl/events", EVENTS, lambda h: h.control.events,
        "Server-sent events: `rating`, `retracted`, `run`, `paused`, `resumed`, `problem`, `rebuild`, `retrain`, "
        "`episode`, `signal`, `judged`, `experiment`, `line`, `published`, `lent`, `woken`. "
        "`captured`: `count` answers ended. `waiting`: a rule stopped the run. `swap`: with its seconds. `watch`: a "
        "version was rolled back by itself. `Last-Event-ID` resumes. Ends when the key is revoked.",
        Raw({"text/event-stream": {}}), query={"after": number(0, 10**18 - 1)},
        headers={"last-event-id": {"type": "string", "pattern": "^[0-9]{1,18}$"}},
    ),
    _read(
        "/rl/status", USE_LINE, lambda h: h.control.status,
        "What is live, what is collected, what training waits for, the last run, problems, and which dialects the "
        "backend has. More below.",
        StatusBody, query={"line": LINE},
    ),
    _read(
        "/rl/completions", RATE_LINE, lambda h: h.control.completions,
        "Newest first, without their prompts (members below); `before` is a `seq` to go on from.",
        responses.CompletionsBody,
        query={
            "limit": number(1, 1000, 50), "before": number(1, 2**62), "session": TEXT, "version": VERSION,
            "turn": TURN, "unrated": FLAG, "line": LINE,
        },
    ),
    _read(
        "/rl/completions/{id}", RATE_LINE, lambda h: h.control.completion,
        "One, or `last`, with its `prompt`: the messages as the model was asked them.",
        responses.WholeCompletion,
    ),
    _read(
        "/rl/why/{id}", RATE, lambda h: h.explanations.get,
        "What became of an answer (or `last`) or a rating: reward, advantage, tokens pushed, run, gate, version. "
        "Without texts. 410: it was forgotten.", ExplanationBody,
    ),
    _read(
        "/rl/runs", RATE, lambda h: h.control.runs,
        "Runs, newest first, with every number of the gate.", responses.RunsBody,
        query={"limit": number(1, 1000, 50)},
    ),
    _read(
        "/rl/runs/{id}", RATE, lambda h: h.control.run,
        "One run in full: also every choice with its reason, the warnings, and what became of each sample "
        "(`account`: completion, `used`, `cause`, `flags`).",
        responses.WholeRun,
    ),
    _read(
        "/rl/adapters", RATE, lambda h: h.control.adapters,
        "Versions; `withdrawn` says why one was rolled back by itself.", responses.AdaptersBody, query={"line": LINE},
    ),
    _read(
        "/rl/adapters/{version}", RATE, lambda h: h.control.adapter,
        "One version, with three prompts answered by the version before and by it.", responses.WholeAdapter,
        path_schema={"type": "string", "pattern": "^v?[0-9]{1,9}$"},
    ),
    _read(
        "/rl/capture", RATE, lambda h: h.uncaptured.get, "Sessions of which nothing is kept.", CaptureOptouts),
    _act(
        "/rl/capture", lambda h: h.uncaptured.post,
        "Keep nothing of a session, or keep it again; in force when it answers. A client says `x-rl-capture: off` with "
        "each request instead.",
        Captured,
        takes=requests.CaptureWanted, details_page="../guides/privacy.md",
    ),
    _read(
        "/rl/export", ADMIN, lambda h: h.control.export,
        "JSON lines, one completion each; what is given chooses.", NDJSON,
        details_page="../guides/export.md",
        query={
            "rated": FLAG, "rollouts": FLAG, "session": TEXT, "user": TEXT, "version": VERSION, "line": LINE,
            "turn": TURN, "since": SECONDS, "until": SECONDS,
        },
    ),
    _act(
        "/rl/import", lambda h: h.importing.post,
        "Such lines back in. `?ours`: their version numbers are this home's.", responses.ImportedBody,
        takes=NDJSON, query={"ours": FLAG}, details_page="../guides/export.md",
    ),
    _act(
        "/rl/train", lambda h: h.control.act("train"),
        "Start a run now, however few ratings there are; or make one go on that waits for its hours.",
        admin_acts.Started, 202, query={"tune": FLAG, "line": LINE},
    ),
    _act(
        "/rl/pause", lambda h: h.control.act("pause"),
        "A run under way stops at its next step, and no other starts.", admin_acts.Paused),
    _act(
        "/rl/resume", lambda h: h.control.act("resume"), "It goes on from there.", admin_acts.Paused),
    _act(
        "/rl/cancel", lambda h: h.control.act("cancel"),
        "End the run under way, or the one that waits; its ratings are fresh again. One that came to its result "
        "first stays (409).",
        admin_acts.Cancelled,
    ),
    _act(
        "/rl/forget", lambda h: h.forgetter.post,
        "All of one `session`, `completion`, `user` or `rater`: gone from the database and the run folders. `retrain`: "
        "versions that learned from it are trained again without it. `purge_backups`: copies in the home go. `dry_run` "
        "only says what would. More below.",
        responses.ForgottenBody, takes=requests.Forget, details_page="../guides/privacy.md",
    ),
    _act(
        "/rl/rollback", lambda h: h.control.act("rollback"),
        "Back to the version before, unless that is withdrawn (409: only `promote` brings it back); `?base` to the "
        "base model.",
        admin_acts.PointerBody, query={"base": FLAG, "line": LINE},
    ),
    _act(
        "/rl/promote/{version}", lambda h: h.control.act("promote"),
        "Make `v3`, `3` or `base` live, in the version's own line.", admin_acts.PointerBody, query={"line": LINE},
        path_schema={"type": "string", "pattern": "^(v?[0-9]{1,9}|base)$"},
    ),
    _act(
        "/rl/reset", lambda h: h.control.act("reset"),
        "The base answers, the next run starts from it, the baseline is 0. What a run under way makes of another "
        "version waits for `promote`. Nothing is deleted.",
        admin_acts.Reset, query={"line": LINE},
    ),
    _read(
        "/rl/audit", ADMIN, lambda h: h.control.audit,
        "Acts of admins and of rlproxy itself, newest first; `before` is a `seq` to go on from.", responses.AuditBody,
        query={"limit": number(1, 1000, 50), "before": number(1, 2**62)},
    ),
    _read(
        "/rl/keys", ADMIN, lambda h: h.keys.list, "All keys ever made, without their secrets.", responses.KeysBody),
    _act(
        "/rl/keys", lambda h: h.keys.create,
        "A new one. The answer has its text, this once.", responses.NewKey, 201, takes=requests.KeyWanted),
    Route(
        "delete", "/rl/keys", ADMIN, lambda h: h.keys.open, "control",
        "Revoke all, and ask for no key from now on. 409 off loopback, and where server.api_key is set.",
        {200: responses.KeysBody},
    ),
    Route(
        "delete", "/rl/keys/{key}", ADMIN, lambda h: h.keys.revoke, "control",
        "Revoke it, by name or id; it stays in the list.",
        {200: KeyBody},
    ),
    _read(
        "/healthz", OPEN, lambda h: h.control.healthz, "Alive.", responses.Ok),
    _read(
        "/readyz", OPEN, lambda h: h.control.readyz,
        "The backend can be reached; 503 where it cannot, at the start, and before a stop.", responses.Ok,
    ),
    _read(
        "/metrics", USE, lambda h: h.control.metrics, "Prometheus.", Raw({"text/plain": TEXT})),
    _read(
        "/openapi.json", USE, lambda h: answering(lambda: OPERATIONS),
        "All this as OpenAPI 3.1.", Raw({"application/json": {"type": "object"}})),
)  # fmt: skip

JUDGE: Final = (
    Route(
        "get", "/rl/judge", RATE, lambda h: h.judge.report, "control",
        "Signals, the judge's state, and how far its labels agree with people's ratings.", {200: JudgeReport},
        details_page="../guides/signals.md",
    ),
    Route(
        "post", "/rl/judge/accept", ADMIN, lambda h: h.judge.accept, "control",
        "Accept what leaves this machine; before that nothing is sent.",
        {200: JudgeReport}, details_page="../guides/signals.md",
    ),
    Route(
        "post", "/rl/rescore", ADMIN, lambda h: h.judge.rescore, "control",
        "Score again with your own code: turns, or `episodes`.",
        {200: Rescored},
        takes=requests.RescoreWanted, details_page="../guides/signals.md#signals-of-your-own",
    ),
)  # fmt: skip

LESSONS: Final = (
    Route(
        "get", "/rl/lessons", ADMIN, lambda h: h.lessons.list, "control",
        "Comments that act at once in later prompts; those that have ended, too.",
        {200: LessonsBody}, details_page="../guides/rating-well.md#lessons",
    ),
    Route(
        "patch", "/rl/lessons/{id}", ADMIN, lambda h: h.lessons.edit, "control",
        "Other words, every question instead of its topic, or active again.",
        {200: LessonBody}, takes=LessonWanted, details_page="../guides/rating-well.md#lessons",
    ),
    Route(
        "delete", "/rl/lessons/{id}", ADMIN, lambda h: h.lessons.remove, "control",
        "It acts no more; its rating stays, and trains.",
        {200: LessonBody}, details_page="../guides/rating-well.md#lessons",
    ),
)  # fmt: skip

EXPERIMENTS: Final = (
    Route(
        "get", "/rl/experiments", RATE, lambda h: h.experiments.list, "control",
        "Two versions compared on live traffic: the running experiment, and those before.", {200: ExperimentsBody},
    ),
    Route(
        "post", "/rl/experiments", ADMIN, lambda h: h.experiments.start, "control",
        "Lets a version answer a share of conversations until ratings decide.", {201: ExperimentsBody},
        takes=ExperimentWanted,
    ),
    _act(
        "/rl/experiments/stop", lambda h: h.experiments.stop,
        "Ends it without a decision; the live version stays.", ExperimentsBody,
    ),
)  # fmt: skip

RETRAIN: Final = (
    Route(
        "get", "/rl/retrain", ADMIN, lambda h: h.retrain.get, "control",
        "The retrain under way, or the last one: rounds, versions, what trained, what did not.", {200: RetrainBody},
    ),
    Route(
        "post", "/rl/retrain", ADMIN, lambda h: h.retrain.post, "control",
        "Replay ratings on other `weights`, `without` some answers. `dry_run` only says what it would take.",
        {200: RetrainPlanBody, 201: RetrainBody}, takes=requests.RetrainWanted, may_be_empty=True,
    ),
    Route(
        "delete", "/rl/retrain", ADMIN, lambda h: h.retrain.delete, "control",
        "End it; its versions so far stay.", {200: RetrainBody},
    ),
)  # fmt: skip

EPISODES: Final = (
    Route(
        "post", "/rl/episodes", RATE_LINE, lambda h: h.episodes.open, "episodes",
        "Open an episode, whose version is kept from now on. 200: it was open already; 409: another one has that id.",
        {200: OpenedEpisode, 201: OpenedEpisode}, takes=EpisodeWanted, may_be_empty=True,
    ),
    Route(
        "post", "/rl/episodes/{id}/reward", RATE_LINE, lambda h: h.episodes.reward, "episodes",
        "201: stored; 200: the same again, or another one before it was used; 409: another one after that; 404: no "
        "such episode of this key; 410: a turn's reward after the end.",
        {200: RewardedEpisode, 201: RewardedEpisode}, takes=Reward,
    ),
    Route(
        "post", "/rl/episodes/rewards", RATE_LINE, lambda h: h.episodes.reward_each, "episodes",
        "Many, as JSON lines with the id as `episode`. `?dry_run` stores nothing.",
        {200: RewardsBody}, takes=NDJSON, query={"dry_run": FLAG},
    ),
    Route(
        "get", "/rl/episodes", RATE_LINE, lambda h: h.episodes.list, "episodes",
        "Newest first, with counts and success by version; an admin sees all keys'.",
        {200: EpisodesBody},
        query={
            "limit": number(1, 1000, 50), "before": number(1, 2**62), "group": GROUP,
            "state": {"type": "string", "enum": ["open", "rewarded", "error"]},
            "split": {"type": "string", "enum": ["train", "eval"]},
        },
    ),
    Route(
        "get", "/rl/episodes/{id}", RATE_LINE, lambda h: h.episodes.show, "episodes",
        "One with its turns and segments.", {200: WholeEpisode}),
)  # fmt: skip

# The last: whatever else the backend has. Ratings are no affair of a backend.
BACKENDS: Final = tuple(
    Route("*", path, PASSED, lambda h: h.passed) for path in ("/v1/{rest:(?!feedback(?:/|$)).*}", "/api/{rest:.*}")
)

ROUTES: Final = (
    *MODELS,
    *RATINGS,
    *EPISODES,
    *CHATS,
    *CONTROL,
    *JUDGE,
    *LESSONS,
    *EXPERIMENTS,
    *RETRAIN,
    *LINE_ROUTES,
    *PAGES,
    *BACKENDS,
)
OPERATIONS: Final[tuple[Route, ...]] = tuple(
    route for route in ROUTES if route.section
)  # what other programs may count on
