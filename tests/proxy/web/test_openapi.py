"""`/openapi.json` is true: every route is in it, every role holds, and every answer has the members that it says."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter

from proxy.web.openapi.document import document
from proxy.web.openapi.shapes import Raw
from proxy.web.route import Route
from proxy.web.route_table import OPERATIONS
from scripts.harness import signing
from scripts.harness.in_process import Proxy
from tests.harness.chats import MATRIX_TOKEN, Chats

KEYS = {"server__api_key": "rate-key", "server__admin_key": "admin-key"}
# These have a test of their own shape elsewhere: what passes the backend's body on, or has no end.
UNASKED = ("/rl/events", "/rl/rescore")  # the second in tests/proxy/signals
PASSED_ON = "/v1/responses/{id}/cancel"  # answers as the backend does (test_background_responses.py)


def registered(proxy: Proxy) -> Iterator[tuple[str, str]]:
    for route in proxy.app.router.routes():
        if route.method != "HEAD" and route.resource is not None:
            yield route.method.lower(), route.resource.canonical


LEFT_OUT = {
    r"/s/\{session\}/.*": "the routes for models once more, with a session in the path",
    r".*\{rest\}": "what passes through to the backend, whose routes are its own",
    r"/|/(completions|episodes|versions)/\{\w+\}": "the page: HTML for people",
    r"/(progress|episodes|versions|compare|data|login|logout)": "the page: HTML for people",
    r"/static/\{name\}|/page/.*": "pieces of the page",
}


async def test_every_route_is_in_it_or_left_out_with_a_reason(proxy: Proxy) -> None:
    routes = set(registered(proxy))
    documented = {(operation.method, operation.path) for operation in OPERATIONS}
    assert documented <= routes
    for method, path in routes - documented:
        assert any(re.fullmatch(pattern, path) for pattern in LEFT_OUT), f"route_table says nothing of {method} {path}"
    for pattern in LEFT_OUT:
        assert any(re.fullmatch(pattern, path) for _, path in routes - documented), f"nothing is left out by {pattern}"
        assert not any(re.fullmatch(pattern, path) for _, path in documented)


def test_it_is_whole() -> None:
    said = document(OPERATIONS)
    operations = [one for path in said["paths"].values() for one in path.values()]
    ids = [one["operationId"] for one in operations]
    assert len(set(ids)) == len(ids) == len(OPERATIONS)
    referred = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(said)))
    assert referred == set(said["components"]["schemas"])
    for path, methods in said["paths"].items():
        for one in methods.values():
            named = {p["name"] for p in one["parameters"] if p["in"] == "path"}
            assert named == set(re.findall(r"\{(\w+)\}", path)), path
            assert one["summary"] and "default" in one["responses"], path


async def test_it_is_served(proxy: Proxy) -> None:
    assert await proxy.get("/openapi.json") == document(OPERATIONS)


async def test_the_roles_are_those_that_the_routes_ask_for(proxy: Proxy) -> None:
    """With a key of each role: what the document forbids it is refused, and nothing else."""
    await proxy.stop()
    await proxy.start(**KEYS)
    admin = {"authorization": "Bearer admin-key"}
    keys = {}
    for role in ("use", "rate", "admin"):
        async with proxy.http.post("/rl/keys", json={"name": f"a-{role}", "role": role}, headers=admin) as response:
            keys[role] = (await response.json())["key"]
    for one in OPERATIONS:
        if one.path in UNASKED or one.path.startswith("/rl/webhooks/"):
            continue
        for at, role in enumerate(keys):
            path = re.sub(r"\{\w+\}", "none", one.path)
            headers = {"authorization": f"Bearer {keys[role]}"}
            async with proxy.http.request(one.method, path, headers=headers) as response:
                may = one.role is None or list(keys).index(one.role) <= at
                assert (response.status == 403) == (not may), f"{role}: {one.method} {path}"
        async with proxy.http.request(one.method, re.sub(r"\{\w+\}", "none", one.path)) as response:
            assert (response.status == 401) == (one.role is not None), f"nobody: {one.method} {one.path}"


# --- answers


class Asking:
    """Asks, and holds each answer against what the document says of it, member by member."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self.seen: set[tuple[str, str, int]] = set()

    async def __call__(self, method: str, path: str, status: int, said: str = "", **more: Any) -> Any:
        one = next(o for o in OPERATIONS if o.method == method and o.path == (said or path.partition("?")[0]))
        async with self._proxy.http.request(method, path, **more) as response:
            raw = await response.read()
            assert response.status == status, raw
            kind = response.content_type
        conforms(one, status, kind, raw)
        self.seen.add((method, one.path, status))
        return json.loads(raw) if kind == "application/json" else raw


def conforms(one: Route, status: int, kind: str, raw: bytes) -> None:
    shape = one.answers.get(status, one.fails)
    if isinstance(shape, Raw):
        assert kind in shape.content, f"{one.id}: {kind}"
    else:
        assert kind == "application/json", f"{one.id}: {kind}"
        TypeAdapter(shape).validate_json(raw, strict=True, extra=None if one.section == "models" else "forbid")


@pytest.fixture
async def ask(proxy: Proxy) -> Asking:
    return Asking(proxy)


async def test_answers_are_as_it_says(chats: Chats, ask: Asking) -> None:
    proxy = chats.proxy
    proxy.flags |= {"train.start_at": 1000, "webhooks.openclaw.raters": {"p1": "bob"}}  # trained when asked only
    await proxy.stop()
    await proxy.start()
    proxy.backend.speaks |= {"responses", "messages", "ollama", "ollama-generate", "completions"}
    ids = [await chats.completion(f"hello {n}", session="s") for n in range(6)]

    await ask("get", "/healthz", 200)
    await ask("get", "/readyz", 200)
    await ask("get", "/metrics", 200)
    await ask("get", "/openapi.json", 200)
    await ask("get", "/v1/models", 200)
    await ask("get", "/rl/completions?session=s&limit=3&turn=main&unrated", 200)
    await ask("get", f"/rl/completions/{ids[0]}", 200, "/rl/completions/{id}")
    await ask("get", "/rl/completions/none", 404, "/rl/completions/{id}")
    await ask("get", "/rl/completions?limit=x", 400)

    rating = {"completion_id": ids[0], "rating": "good", "comment": "so", "source": "t", "source_event_id": "1"}
    stored = await ask("post", "/v1/feedback", 201, json=rating)
    await ask("post", "/v1/feedback", 200, json=rating)
    heard = {"id": "f1", "data": {"rating": -1}, "meta": {"chat_id": "s"}}
    shown = [{"role": "user", "content": "hello 5"}, {"role": "assistant", "content": "You said: hello 5"}]
    await ask("post", "/v1/feedback/open-webui", 201, json={"feedback": heard, "messages": shown})
    await ask("post", "/v1/feedback/open-webui", 200, json={"deleted": "f1"})
    await ask("post", "/v1/feedback/open-webui", 404, json={"feedback": heard, "messages": shown[:1]})
    await ask("post", "/v1/feedback", 201, json=[{"completion_id": one, "rating": "bad"} for one in ids[1:3]])
    await ask("post", "/v1/feedback", 207, json=[{"completion_id": ids[3], "rating": 0.5}, {"rating": 9}])
    await ask("post", "/v1/feedback", 404, json=[{"completion_id": "none", "rating": "good"}])
    await ask("post", "/v1/feedback", 400, json={"completion_id": ids[3], "rating": 1})
    await ask("get", f"/rl/completions/{ids[0]}", 200, "/rl/completions/{id}")

    link = {"platform": "slack", "channel": "C", "message_id": 7, "completion_id": ids[4]}
    await ask("post", "/rl/links", 201, json=link)
    await ask("post", "/rl/links", 404, json={**link, "completion_id": "none"})
    event = {"what": "reaction", "person": "p1", "text": "👍", "completion_id": ids[4]}
    for name, secret in (("signed", signing.SIGNED_SECRET), ("openclaw", signing.OPENCLAW_SECRET)):
        for id, status, what in (("1", 201, event), ("2", 200, event | {"what": "command", "text": "status"})):
            headers, raw = signing.signed(what, time.time(), id=f"{name}-{id}", secret=secret)
            await ask("post", f"/rl/webhooks/{name}", status, headers=headers, data=raw)
    await ask("post", "/rl/webhooks/signed", 401, json=event)
    for name, body in (
        ("slack", signing.slack_reaction(timestamp=time.time())), ("telegram", signing.telegram_reaction("👍")),
        ("discord", signing.discord_command("status")), ("whatsapp", signing.whatsapp_reaction("👍")),
    ):  # fmt: skip
        headers, raw = getattr(signing, name)(body, time.time())
        await ask("post", f"/rl/webhooks/{name}", 200, headers=headers, data=raw)
    app_service, token = "/rl/webhooks/matrix/_matrix/app/v1", {"authorization": f"Bearer {MATRIX_TOKEN}"}
    await ask("post", f"{app_service}/ping", 200, json={"transaction_id": "t"}, headers=token)
    path = f"{app_service}/transactions/{{id}}"
    await ask("put", f"{app_service}/transactions/1", 200, path, json={"events": []}, headers=token)
    for kind in ("users", "rooms"):
        await ask("get", f"{app_service}/{kind}/x", 404, f"{app_service}/{kind}/{{id}}", headers=token)
    await ask("put", f"{app_service}/transactions/1", 401, path, json={"events": []})
    subscribed = {"hub.mode": "subscribe", "hub.verify_token": signing.WHATSAPP_TOKEN, "hub.challenge": "7"}
    await ask("get", "/rl/webhooks/whatsapp", 200, params=subscribed)

    said = {"model": "fake", "messages": [{"role": "user", "content": "x"}], "max_tokens": 5}
    await ask("post", "/v1/chat/completions", 200, json=said)
    await ask("post", "/v1/chat/completions", 200, json={**said, "stream": True})
    await ask("post", "/v1/chat/completions", 400, json={"messages": []})
    await ask("post", "/v1/completions", 200, json={"model": "fake", "prompt": "x"})
    await ask("post", "/v1/messages", 200, json=said)
    await ask("post", "/v1/messages/count_tokens", 200, json=said)
    await ask("post", "/api/chat", 200, json={**said, "stream": False})
    await ask("post", "/api/generate", 200, json={"model": "fake", "prompt": "x"})
    answer = await ask("post", "/v1/responses", 200, json={"model": "fake", "input": "x"})
    await ask("get", f"/v1/responses/{answer['id']}", 200, "/v1/responses/{id}")
    await ask("get", f"/v1/responses/{answer['id']}/input_items", 200, "/v1/responses/{id}/input_items")
    async with proxy.http.ws_connect("/v1/responses"):
        ask.seen.add(("get", "/v1/responses", 101))
    await ask("post", "/v1/responses/compact", 200, json={"model": "fake", "input": "x"})
    await ask("delete", f"/v1/responses/{answer['id']}", 200, "/v1/responses/{id}")

    await ask("post", "/rl/episodes", 201, json={"id": "e1", "task": "add", "meta": {"n": 1}})
    await ask("post", "/rl/episodes", 200, json={"id": "e1", "task": "add", "meta": {"n": 1}})
    await ask("post", "/rl/episodes", 400, json={"id": "a/b"})
    await ask("post", "/v1/chat/completions", 200, json=said, headers={"x-rl-session": "e1"})
    await ask("post", "/rl/episodes/e1/reward", 201, "/rl/episodes/{id}/reward", json={"reward": 1, "group": "g"})
    await ask("post", "/rl/episodes/e1/reward", 200, "/rl/episodes/{id}/reward", json={"reward": 1})
    each = b'{"episode": "e1", "reward": 1}\n{"episode": "nobody", "reward": 1}\n'
    await ask("post", "/rl/episodes/rewards?dry_run", 200, "/rl/episodes/rewards", data=each)
    await ask("post", "/rl/episodes/rewards", 400, data=b"")
    await ask("get", "/rl/episodes?group=g&state=rewarded&split=train", 200)
    await ask("get", "/rl/episodes/e1", 200, "/rl/episodes/{id}")

    await ask("get", "/rl/capture", 200)
    await ask("post", "/rl/capture", 200, json={"session": "off", "capture": "off"})
    await ask("post", "/rl/capture", 400, json={"session": "off"})
    lines = await ask("get", "/rl/export?rated&session=s", 200)
    imported = lines.replace(ids[0].encode(), b"another").replace(stored["id"].encode(), b"rt-another") + b"{}\n"
    await ask("post", "/rl/import", 200, data=imported)

    await ask("get", "/rl/status", 200)
    await ask("post", "/rl/train", 202)
    while not (await ask("get", "/rl/status", 200))["live"]:
        await asyncio.sleep(0.02)
    await ask("get", "/rl/adapters", 200)
    await ask("get", "/rl/adapters/v1", 200, "/rl/adapters/{version}")
    await ask("get", "/rl/adapters/v9", 404, "/rl/adapters/{version}")
    await ask("get", "/rl/judge", 200)
    await ask("post", "/rl/judge/accept", 200)
    runs = await ask("get", "/rl/runs", 200)
    await ask("get", f"/rl/runs/{runs['data'][0]['id']}", 200, "/rl/runs/{id}")
    await ask("get", f"/rl/why/{ids[0]}", 200, "/rl/why/{id}")
    await ask("get", "/rl/why/none", 404, "/rl/why/{id}")
    await ask("post", "/rl/promote/base", 200, "/rl/promote/{version}")
    await ask("post", "/rl/experiments", 201, json={"version": 1})
    await ask("post", "/rl/experiments", 400, json={"version": "v1"})
    await ask("get", "/rl/experiments", 200)
    await ask("post", "/rl/experiments/stop", 200)
    await ask("get", "/rl/experiments", 200)

    base = proxy.home.parent / "another-base"
    base.mkdir()
    (base / "config.json").write_text("{}")
    (base / "model.safetensors").write_bytes(b"")
    await ask("get", "/rl/retrain", 404)
    await ask("post", "/rl/retrain", 200, json={"weights": str(base), "dry_run": True})
    await ask("post", "/rl/retrain", 400, json={"without": 1})
    await ask("post", "/rl/pause", 200)  # so that it is not over before it is stopped
    await ask("post", "/rl/retrain", 201, json={"weights": str(base)})
    await ask("get", "/rl/retrain", 200)
    await ask("delete", "/rl/retrain", 200)
    await ask("delete", "/rl/retrain", 409)
    await ask("post", "/rl/resume", 200)
    await ask("post", "/rl/rollback", 200)
    await ask("post", "/rl/pause", 200)
    proxy.launcher.hold = True
    await proxy.rate(completion_id=ids[5], rating="good")
    await ask("post", "/rl/resume", 200)
    await ask("post", "/rl/train", 202)
    while (await ask("get", "/rl/status", 200))["training"]["run"] is None:
        await asyncio.sleep(0.02)
    await ask("post", "/rl/cancel", 200)
    while (await ask("get", "/rl/status", 200))["training"]["run"] is not None:
        await asyncio.sleep(0.02)
    await ask("post", "/rl/cancel", 409)
    await proxy.store.lessons.begin()
    _, told = await proxy.rate(completion_id=ids[5], rating="bad", comment="shorter")
    await ask("post", "/rl/lines", 201, json={"name": "ann", "users": ["ann"]})
    await ask("post", "/rl/lines/ann", 200, "/rl/lines/{line}", json={"agents": ["codex"]})
    await ask("delete", "/rl/lines/ann", 200, "/rl/lines/{line}")
    await ask("post", "/rl/lines/ann/restore", 200, "/rl/lines/{line}/restore")
    await ask("get", "/rl/lines", 200)
    await ask("delete", "/rl/lines/ann", 200, "/rl/lines/{line}")
    await ask("get", "/rl/lessons", 200)
    await ask("patch", f"/rl/lessons/{told['id']}", 200, "/rl/lessons/{id}", json={"always": True})
    await ask("delete", f"/rl/lessons/{told['id']}", 200, "/rl/lessons/{id}")
    await ask("post", "/rl/reset", 200)
    await ask("delete", "/v1/feedback/last", 200, "/v1/feedback/{id}")
    await ask("delete", "/v1/feedback/none", 404, "/v1/feedback/{id}")
    await ask("post", "/rl/forget", 200, json={"session": "s", "dry_run": True})
    await ask("post", "/rl/forget", 200, json={"session": "s"})
    await ask("get", "/rl/keys", 200)
    made = await ask("post", "/rl/keys", 201, json={"name": "ann", "role": "admin"})
    headers = {"x-api-key": made["key"]}
    await ask("delete", "/rl/keys/none", 404, "/rl/keys/{key}", headers=headers)
    made = await ask("post", "/rl/keys", 201, json={"name": "bob", "role": "admin"}, headers=headers)
    await ask("delete", "/rl/keys/ann", 200, "/rl/keys/{key}", headers=headers)
    await ask("get", "/rl/audit", 200, headers={"x-api-key": made["key"]})
    await ask("delete", "/rl/keys", 200, headers={"x-api-key": made["key"]})

    ours = [operation for operation in OPERATIONS if operation.path not in (*UNASKED, PASSED_ON)]
    promised = {(operation.method, operation.path, status) for operation in ours for status in operation.answers}
    assert not promised - ask.seen, f"never asked for: {promised - ask.seen}"
