"""Requests to every route of rlproxy, sound ones and ones broken by a seed.

Owns what is asked: method, path, query, headers, body. How it is put on the wire, broken or not, is `wire`;
mutations of bytes and of JSON are `fuzzing`.
"""

from __future__ import annotations

import gzip
import hashlib
import hmac
import json
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from scripts.fuzz.mutating import ODD, mutated
from scripts.harness import signing
from scripts.send_signed import signed_headers

Body = dict[str, Any] | list[Any] | bytes
LONG = 300_000

SEGMENTS = (
    b"", b".", b"..", b"%2e%2e", b"..%2f..%2fetc%2fpasswd", b"%00", b"a%00b", b"%", b"%zz", b"%ff%fe", b"%ED%A0%80",
    b"\xc3\xa9", b"%F0%9F%98%80", b"\xff", b"last", b"base", b"v1", b"v0", b"v-1", b"0", b"-1", b"1e9", b"NaN",
    b"null",
    b"99999999999999999999", b"9" * 400, b"x" * 7000, b"x" * 70_000, b"{id}", b"a;b", b"a%3Fb", b"a%2Fb", b"%25",
    b"'--",
    "１２".encode(), b"%C2%B2", b"rl-nope", b"rt-nope", b"*", b"$", b"%0d%0ax-evil: 1", b"style.css", b"page.js",
)  # fmt: skip
VALUES = (
    "", " ", "x", "0", "1", "-1", "50", "1000", "1001", "9" * 30, "1e3", "NaN", "²", "１", "true", "null", "main",
    "side",
    "off", "on", "last", "owner", "é😀", "\x00", "a\x00b", "%", "'; DROP TABLE completions; --", '"', "(", "*", "NEAR",
    "a OR", "a AND NOT", "col:x", "{", "..", "/", "x" * 5000, "\ud800", "\r\nx-evil: 1", "v1", "base", "3.5", "-0",
)  # fmt: skip
HEADERS: dict[str, tuple[bytes, ...]] = {
    "x-rl-session": (b"s1", b"", b"\xff\xfe", "é😀".encode(), b"x" * 900, b"x" * 40_000, b"\x01", b"a\tb"),
    "x-rl-user": (b"ann", b"", b"\xff", "é".encode(), b"x" * 900, b"\xed\xa0\x80"),
    "x-rl-turn": (b"main", b"side", b"", b"both", b"\xff"),
    "x-rl-capture": (b"off", b"on", b"OFF", b""),
    "x-rl-completion-id": (b"", b"../../x", b"a b", b"x" * 128, b"x" * 129, b"\xff", b"again", "é".encode(), b"a\x00"),
    "content-type": (
        b"application/json", b"text/plain", b"", b"application/json; charset=nope", b"application/json; charset=utf-16",
        b"multipart/form-data", b"multipart/form-data; boundary=x", b"application/x-www-form-urlencoded", b"\xff",
        b";;;",
        b"application/x-www-form-urlencoded; charset=utf-7", b"application/x-www-form-urlencoded; charset=nope",
        b"multipart/form-data; boundary=" + b"x" * 300, b"application/msgpack",
    ),
    "content-encoding": (b"gzip", b"deflate", b"br", b"zstd", b"identity", b"gzip, gzip", b"", b"\xff", b"GZIP"),
    "accept": (b"*/*", b"", b"text/html", b"\xff"),
    "accept-encoding": (b"gzip", b"br;q=x", b"\xff"),
    "last-event-id": (b"0", b"-1", b"x", b"9" * 40, "²".encode(), b"9" * 5000, b"\xff", "１".encode()),
    "origin": (b"http://evil.example", b"null", b"", b"\xff", b"http://[", b"http://127.0.0.1"),
    "host": (b"127.0.0.1", b"evil.example", b"", b"[", b"[::1", b"\xff", b"127.0.0.1:99999999", b"a b", b"x" * 3000),
    "sec-fetch-site": (b"cross-site", b"same-origin", b"\xff"),
    "authorization": (b"Bearer ", b"Bearer x", b"Basic \xff", b"\xff", b"Bearer rlk_x", b"Bearer " + b"x" * 9000),
    "x-api-key": (b"", b"\xff", b"x" * 9000, "é".encode()),
    "cookie": (b"rl_page=", b"rl_page=a.b.c.d", b"rl_page=....", b"\xff", b"=;=;", b"x" * 9000, b'rl_page="\\"'),
    "expect": (b"100-continue", b"200-ok", b""),
    "range": (b"bytes=0-", b"bytes=5-1", b"bytes=-9999", b"lines=1", b"bytes=a-b"),
    "if-none-match": (b"*", b'"x"', b"\xff", b'W/"'),
    "if-modified-since": (b"x", b"Sat, 99 Foo 2026", b"Thu, 01 Jan 1970 00:00:00 GMT"),
    "hx-request": (b"true", b"\xff"),
    "x-rl-token": (b"", b"x", b"\xff"),
    "upgrade": (b"websocket", b"h2c", b"\xff"),
    "connection": (b"close", b"upgrade", b"keep-alive", b"host", b"\xff"),
    "transfer-encoding": (b"gzip", b"chunked, gzip", b"identity", b"\xff"),
    "x-http-method-override": (b"DELETE",),
    "x-forwarded-for": (b"127.0.0.1, evil",),
    "x-stainless-retry-count": (b"0", b"1", b"-1", b"x", b"\xff"),
    "idempotency-key": (b"k", b"\xff", b"x" * 5000),
}  # fmt: skip
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "CONNECT", "FOO", "get", "A" * 300)


@dataclass
class Facts:
    """Facts from earlier answers, so that requests are about what there is."""

    port: int
    key: str | None = None  # an admin's, where keys are on
    cookie: str = ""  # of the page, and its token
    token: str = ""
    completions: deque[str] = field(default_factory=lambda: deque(["rl-none"], 50))
    ratings: deque[str] = field(default_factory=lambda: deque(["rt-none"], 50))


@dataclass
class Request:
    method: str
    path: bytes
    query: list[tuple[str, str]] = field(default_factory=list)
    headers: list[tuple[str, bytes]] = field(default_factory=list)
    body: bytes | None = None
    route: str = ""  # for the counts

    @property
    def target(self) -> bytes:
        query = urlencode(self.query, errors="surrogatepass").encode()
        return self.path + (b"?" + query if query else b"")


def _chat(text: str, **options: Any) -> dict[str, Any]:
    return {"model": "fake", "messages": [{"role": "user", "content": text}], "max_tokens": 8, **options}


TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
TEXTS = ("hello there", "/rl good", "/rl bad too long", "/rl status", "/rl fix: no", "/rl undo", "/rl", "é 😀", "/rl 5")


def _models(dice: random.Random) -> tuple[str, Body]:
    text, stream = dice.choice((*TEXTS[:1] * 5, *TEXTS)), dice.random() < 0.5
    return dice.choice((
        ("/v1/chat/completions", _chat(text, stream=stream, n=dice.choice((1, 1, 2)))),
        ("/v1/chat/completions", _chat(text, stream=stream, tools=TOOLS, metadata={"session_id": "s2"}, user="bob")),
        ("/v1/chat/completions", _chat(text, stream=stream, model=dice.choice(("fake@base", "fake@v1", "fake@v9",
        "")))),
        ("/v1/completions", {"model": "fake", "prompt": text, "max_tokens": 4, "stream": stream, "echo": stream}),
        ("/v1/responses", {"model": "fake", "input": text, "stream": stream, "previous_response_id": "KNOWN"}),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": text}]}]}),
        ("/v1/messages", {**_chat(text, stream=stream), "system": "be brief", "metadata": {"user_id": "u_session_1"}}),
        ("/v1/messages/count_tokens", _chat(text)),
        ("/api/chat", {**_chat(text), "stream": stream, "options": {"temperature": 0.5}}),
        ("/api/generate", {"model": "fake", "prompt": text, "stream": stream, "system": "x"}),
    ))  # fmt: skip


def _feedback(dice: random.Random) -> Body:
    rating: dict[str, Any] = {"completion_id": "KNOWN", "rating": dice.choice(("good", "bad", 2, "4/5", 0.5, True))}
    return dice.choice((
        rating, {**rating, "comment": "too long", "rater": "ann", "weight": 2, "source": "t", "source_event_id": "e1"},
        {"session": "s1", "rating": "bad", "correction": "so"}, {"completion_id": "last", "rating": 1, "scale": "unit"},
        [rating, {"rating": "good", "session": "s2"}, {}],
        {"run_id": "KNOWN", "key": "user_score", "score": 1}, {"trace_id": "KNOWN", "key": "liked", "correction": "so"},
    ))  # fmt: skip


def _line() -> dict[str, Any]:
    return {
        "format": 1, "id": "imp-1", "request_id": "imp-1", "choice": 0, "status": "done", "created_at": 1.0,
        "finished_at": 2.0, "dialect": "chat", "backend": "vllm", "model": "m", "served_model": "m", "version": None,
        "session": "s", "user": None, "turn": "main", "sampling": {"temperature": 1.0}, "request": {"model": "m"},
        "messages": [{"role": "user", "content": "hi"}], "reply": {"role": "assistant", "content": "ho"}, "text": "ho",
        "finish_reason": "stop", "usage": None, "prompt_token_ids": [1], "token_ids": [2], "logprobs": [-0.5],
        "exact": True, "inexact_reason": None, "error": None, "translated": False, "untrainable": None, "redacted": [],
        "ratings": [{"id": "rt-imp", "rater": "a", "value": 1.0, "weight": 1.0, "source": "http", "created_at": 3.0}],
    }  # fmt: skip


def _webhook(dice: random.Random, sound: bool) -> Request:
    """Broken before it is signed, so that somebody has to read it."""
    name = dice.choice(("slack", "telegram", "discord", "whatsapp", "signed", "openclaw"))
    now, id = time.time(), str(dice.randrange(10**9))
    event = {"what": "reaction", "person": "p1", "text": "👍", "completion_id": "rl-none", "channel": "c", "at": now}
    bodies: dict[str, Callable[[], Body]] = {
        "slack": lambda: signing.slack_reaction(id=id, timestamp=now),
        "telegram": lambda: dice.choice((
            signing.telegram_reaction("👍", id=int(id), timestamp=now),
            signing.telegram_message("/rl good", id=int(id)),
        )),
        "discord": lambda: dice.choice((signing.discord_command("good", id=id), signing.discord_button("good", id=id))),
        "whatsapp": lambda: signing.whatsapp_reaction("👍", id=id, timestamp=now),
        "signed": lambda: event, "openclaw": lambda: event | {"what": "command", "text": "status"},
    }  # fmt: skip
    raw = json.dumps(bodies[name]()).encode()
    raw = raw if sound else mutated(dice, raw)
    if name in ("signed", "openclaw"):
        secret = signing.SIGNED_SECRET if name == "signed" else signing.OPENCLAW_SECRET
        headers = signed_headers(secret, f"msg_{id}", raw, now)
    else:
        # Slack's own library signs text alone.
        headers = _slack(raw, now) if name == "slack" else getattr(signing, name)(raw, now)[0]
    encoded_headers = [(key, value.encode()) for key, value in headers.items() if key != "content-type"]
    return Request("POST", f"/rl/webhooks/{name}".encode(), [], encoded_headers, raw, f"POST /rl/webhooks/{name}")


def _slack(raw: bytes, now: float) -> dict[str, str]:
    signed = hmac.new(signing.SLACK_SECRET.encode(), b"v0:%d:" % now + raw, hashlib.sha256).hexdigest()
    return {"x-slack-request-timestamp": str(int(now)), "x-slack-signature": f"v0={signed}"}


FORMS: dict[str, dict[str, str]] = {
    "/page/completions/{id}/rate": {"rating": "good", "comment": "x", "correction": ""},
    "/page/completions/{id}/undo": {},
    "/page/training/{act}": {},
    "/page/versions/{act}": {"version": "1"},
    "/page/experiment/{act}": {"version": "1", "share": "50"},
    "/page/compare": {"left": "base", "right": "1", "prompt": "hello"},
    "/page/compare/pick": {"better": "a", "worse": "b"},
    "/page/forget": {"kind": "session", "name": "nobody", "sure": ""},
    "/login": {"key": "x", "name": "ann", "after": "/"},
    "/logout": {},
}
GETS = (
    "/", "/completions/{id}", "/versions/{version}", "/progress", "/versions", "/compare", "/data", "/login",
    "/episodes", "/episodes/{id}", "/page/rows",
    "/page/completions/{id}", "/page/completions/{id}/{form}", "/page/pulse", "/page/training", "/page/lineage",
    "/page/plots", "/page/experiment",
    "/static/{name}", "/healthz", "/readyz", "/metrics", "/openapi.json", "/rl/status", "/rl/events",
    "/rl/completions", "/rl/completions", "/rl/completions/{id}", "/rl/adapters", "/rl/runs", "/rl/runs/{run}",
    "/rl/capture", "/rl/export", "/rl/webhooks/whatsapp", "/v1/models", "/v1/responses/{id}", "/rl/keys", "/rl/audit",
    "/rl/episodes", "/rl/episodes/{episode}", "/rl/lessons", "/rl/judge",
)  # fmt: skip
POSTS: dict[str, Body | None] = {
    "/rl/train": None, "/rl/pause": None, "/rl/resume": None, "/rl/cancel": None, "/rl/rollback": None,
    "/rl/promote/{version}": None, "/rl/reset": None,
    "/rl/capture": {"session": "off-1", "capture": "off"},
    "/rl/forget": {"session": "nobody", "dry_run": True},
    "/rl/links": {"platform": "slack", "channel": "C1", "message_id": "1.2", "completion_id": "KNOWN", "person": "U1"},
}  # fmt: skip
PASSED = (
    "/v1/echo",
    "/v1/unknown",
    "/api/tags",
    "/v1/load_lora_adapter",
    "/v1",
    "/api/",
    "/v1/feedback/x/y",
    "/api/v1/a",
)
NOWHERE = ("/nope", "//", "/rl", "/rl/", "/rl/nope", "*", "/..", "/static/../../etc/passwd", "/favicon.ico", "/s/x")
QUERIES = (
    "limit", "before", "session", "version", "turn", "unrated", "rated", "since", "until", "user", "rater", "base",
    "ours",
    "q", "side", "model", "after", "hub.mode", "hub.verify_token", "hub.challenge", "about", "kind", "name", "sure",
    "dry",
)  # fmt: skip
FILLS = {
    "version": ("v1", "base", "2", "v99"),
    "act": ("pause", "resume", "promote", "rollback"),
    "run": ("1", "2", "99"),
}
FILLS |= {"form": ("comment", "correction"), "name": ("style.css", "page.js", "icon.svg")}
FILLS |= {"episode": ("e1", "e2", "e3", "s1", "nobody")}


def _learning(dice: random.Random) -> tuple[str, str, Body | None]:
    """Requests about episodes, lessons and the judge: method, path, body."""
    id, reward = dice.choice(FILLS["episode"]), {"reward": dice.choice((1, 0, -0.5)), "comment": "so"}
    lines = [{"episode": id, **reward}, {"episode": id, "error": "out of time"}, {"episode": "nobody"}]
    return dice.choice((
        ("POST", "/rl/episodes", {"id": id, "task": "sums", "group": "g1", "group_size": 4, "meta": {"a": [1]}}),
        ("POST", "/rl/episodes", {"split": "eval"}),
        ("POST", "/rl/episodes/{episode}/reward", {**reward, "group": "g1"}),
        ("POST", "/rl/episodes/{episode}/reward", {**reward, "completion_id": "KNOWN", "final": False}),
        ("POST", "/rl/episodes/{episode}/reward", {"error": "out of time"}),
        ("POST", "/rl/episodes/rewards", b"\n".join(json.dumps(line).encode() for line in lines)),
        ("PATCH", "/rl/lessons/{rating}", {"text": "use a table", "always": True, "active": None}),
        ("DELETE", "/rl/lessons/{rating}", None),
        ("POST", "/rl/judge/accept", None),
        ("POST", "/rl/rescore", {"episodes": dice.random() < 0.5}),
    ))  # fmt: skip


def make_request(dice: random.Random, facts: Facts) -> tuple[Request, bool]:
    """A request, and whether it is sound."""
    sound = dice.random() < 0.25
    request = _sound(dice, facts, sound)
    if facts.key:
        request.headers.append(("authorization", f"Bearer {facts.key}".encode()))
    if not sound:
        for _ in range(dice.choice((1, 1, 2, 4))):
            dice.choice(BREAKS)(dice, request)
    return request, sound


def _sound(dice: random.Random, facts: Facts, sound: bool) -> Request:
    kind = dice.random()
    if facts.key and kind < 0.02:  # without keys, the first one would close the house
        key_body = {"name": f"k{dice.randrange(10**6)}", "role": dice.choice(("use", "rate", "admin"))}
        if dice.random() < 0.5:
            return _json(dice, facts, "POST", "/rl/keys", "/rl/keys", key_body)
        return Request("DELETE", b"/rl/keys/k%d" % dice.randrange(10**6), [], [], None, "DELETE /rl/keys/{key}")
    if kind < 0.30:
        path, body = _models(dice)
        prefix = dice.choice(("", "", "", "/s/a%20b"))
        return _json(dice, facts, "POST", prefix + path, path, body)
    if kind < 0.42:
        return _json(dice, facts, "POST", "/v1/feedback", "/v1/feedback", _feedback(dice))
    if kind < 0.50:
        return _webhook(dice, sound)
    if kind < 0.58:
        path, form = dice.choice(list(FORMS.items()))
        headers = [("content-type", b"application/x-www-form-urlencoded"), ("cookie", facts.cookie.encode())]
        body = urlencode({**form, "token": facts.token}).encode()
        return Request("POST", _filled(dice, facts, path), [], headers, body, f"POST {path}")
    if kind < 0.62:
        method, path, learning_body = _learning(dice)
        return _json(dice, facts, method, _filled(dice, facts, path).decode(), path, learning_body)
    if kind < 0.72:
        path, post_body = dice.choice(list(POSTS.items()))
        return _json(dice, facts, "POST", _filled(dice, facts, path).decode(), path, post_body)
    if kind < 0.75:
        body = b"\n".join(json.dumps(_line() | {"id": f"imp-{dice.randrange(500)}"}).encode() for _ in range(3))
        return Request("POST", b"/rl/import", [("ours", "")][: dice.randrange(2)], [], body, "POST /rl/import")
    if kind < 0.79:
        path = dice.choice(("/v1/feedback/{rating}", "/v1/feedback/last", "/v1/responses/{id}"))
        return Request("DELETE", _filled(dice, facts, path), [], [("x-rl-user", b"ann")], None, f"DELETE {path}")
    if kind < 0.84:
        path = dice.choice(PASSED)
        raw = dice.choice((None, b"", b"{}", bytes(dice.randrange(256) for _ in range(50)), b"x" * 100_000))
        return Request(dice.choice(METHODS[:7]), path.encode(), [], [], raw, "* passed through")
    if kind < 0.86:
        return Request(dice.choice(METHODS), dice.choice(NOWHERE).encode(), [], [], None, "* nowhere")
    path = dice.choice(GETS)
    return Request("GET", _filled(dice, facts, path), [], [], None, f"GET {path}")


def _json(dice: random.Random, facts: Facts, method: str, path: str, route: str, body: Body | None) -> Request:
    text = body.decode() if isinstance(body, bytes) else json.dumps(body)
    raw = None if body is None else text.replace("KNOWN", dice.choice(facts.completions)).encode()
    headers = [("content-type", b"application/json")] if raw is not None else []
    return Request(method, path.encode(), [], headers, raw, f"{method} {route}")


def _filled(dice: random.Random, facts: Facts, path: str) -> bytes:
    for name, values in {**FILLS, "id": facts.completions, "rating": facts.ratings}.items():
        path = path.replace("{" + name + "}", quote(dice.choice(list(values)), safe=""))
    return path.encode()


# Breaking them


def _method(dice: random.Random, request: Request) -> None:
    request.method = dice.choice(METHODS)


def _segment(dice: random.Random, request: Request) -> None:
    parts = request.path.split(b"/")
    parts[dice.randrange(len(parts))] = dice.choice(SEGMENTS)
    if dice.random() < 0.2:
        parts.insert(dice.randrange(len(parts) + 1), dice.choice(SEGMENTS))
    request.path = b"/".join(parts) or b"/"


def _path(dice: random.Random, request: Request) -> None:
    request.path = mutated(dice, request.path)[:LONG].replace(b"\n", b"").replace(b"\r", b"") or b"/"


def _query(dice: random.Random, request: Request) -> None:
    for _ in range(dice.choice((1, 2, 5, 5, 300))):
        request.query.append((dice.choice(QUERIES), dice.choice(VALUES)))


def _header(dice: random.Random, request: Request) -> None:
    name = dice.choice(list(HEADERS))
    value = dice.choice(HEADERS[name])
    if dice.random() < 0.7:
        request.headers = [(key, old) for key, old in request.headers if key != name]
    request.headers.append((name, value.replace(b"\x00", b"")))


def _body(dice: random.Random, request: Request) -> None:
    if request.body:
        request.body = mutated(dice, request.body)[: 2 * LONG]


def _other_body(dice: random.Random, request: Request) -> None:
    request.body = dice.choice((
        None, b"", b"[]", b"null", b"0", b'"x"', b"\x00" * 100, b"[" * 5000, b"{" * 5000, b'{"a":' * 2000,
        b"\xff\xfe{\x00}\x00",
        b"\xef\xbb\xbf{}", b"x" * LONG, json.dumps([{}] * 2000).encode(), dice.choice(ODD), b"--x\r\n\r\n--x--",
        b'--x\r\ncontent-disposition: form-data; name="token"\r\n\r\nx\r\n--x--\r\n', b"a=1&b=%ff&c=%&=&&", b"%",
    ))  # fmt: skip


def _packed(dice: random.Random, request: Request) -> None:
    raw = gzip.compress(request.body or b"", mtime=0)
    bomb = gzip.compress(b" " * 70_000_000, 1) if dice.random() < 0.01 else None
    request.body = bomb or dice.choice((raw, raw, raw[: len(raw) // 2], raw + b"tail", mutated(dice, raw)))
    request.headers.append(("content-encoding", dice.choice((b"gzip", b"gzip", b"deflate", b"br", b"GZIP"))))


def _many_headers(dice: random.Random, request: Request) -> None:
    request.headers += [(f"x-{n}", b"v" * dice.choice((1, 50))) for n in range(dice.choice((40, 300, 3000)))]


BREAKS: tuple[Callable[[random.Random, Request], None], ...] = (
    _method, _segment, _segment, _path, _query, _query, _header, _header, _header, _header, _body, _body, _body,
    _body, _body,
    _other_body, _packed, _many_headers,
)  # fmt: skip
