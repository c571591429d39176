"""A model server that answers with web pages: none of them runs on rlproxy's origin, whichever route relays it.

The pages themselves are shown to a real browser in test_backend_pages_browser.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from multidict import CIMultiDict

from proxy.core.upstream import answer_headers, inert_type
from scripts.fakes.hostile import HostileServer
from scripts.harness.in_process import Proxy
from tests.harness.raw_http import head, raw

# What acts on a browser, on a web server before rlproxy, or speaks as rlproxy itself.
ACTING = (
    "Set-Cookie: rl_visit=x; Path=/",
    "Set-Cookie2: a=b",
    "Location: /rl/pause",
    "Content-Location: /rl/export",
    "Refresh: 0; url=/rl/export",
    'Clear-Site-Data: "*"',
    "Service-Worker-Allowed: /",
    "Service-Worker-Navigation-Preload: true",
    "Link: </v1/x.css>; rel=stylesheet",
    "Content-Security-Policy: default-src *",
    "Content-Security-Policy-Report-Only: default-src *; report-uri http://evil.example",
    "Strict-Transport-Security: max-age=31536000; includeSubDomains",
    'Alt-Svc: h2="evil.example:443"',
    'Report-To: {"group":"x","max_age":1,"endpoints":[{"url":"https://evil.example"}]}',
    'Reporting-Endpoints: x="https://evil.example"',
    'NEL: {"report_to":"x","max_age":1}',
    "SourceMap: http://evil.example/map",
    "X-SourceMap: http://evil.example/map",
    "Server-Timing: a;dur=1",
    "Timing-Allow-Origin: *",
    "Access-Control-Allow-Origin: *",
    "Access-Control-Allow-Credentials: true",
    "Access-Control-Allow-Private-Network: true",
    "Cross-Origin-Opener-Policy: unsafe-none",
    "Cross-Origin-Embedder-Policy: credentialless",
    "Cross-Origin-Resource-Policy: cross-origin",
    "Origin-Agent-Cluster: ?0",
    "Permissions-Policy: camera=*",
    "Feature-Policy: camera *",
    "Document-Policy: js-profiling",
    "Referrer-Policy: unsafe-url",
    'Speculation-Rules: "/v1/rules.json"',
    "Supports-Loading-Mode: credentialed-prerender",
    "Accept-CH: Sec-CH-UA-Model",
    "Critical-CH: Sec-CH-UA-Model",
    "Set-Login: logged-in",
    "WWW-Authenticate: Basic realm=rlproxy",
    "Authentication-Info: x",
    "Public-Key-Pins: x",
    "X-Frame-Options: ALLOWALL",
    "X-XSS-Protection: 1; report=http://evil.example",
    "X-UA-Compatible: IE=EmulateIE7",
    "X-Permitted-Cross-Domain-Policies: all",
    "X-DNS-Prefetch-Control: on",
    "X-Accel-Redirect: /etc/passwd",
    "X-Accel-Expires: 31536000",
    "X-Sendfile: /etc/passwd",
    "X-Lighttpd-Send-File: /etc/passwd",
    "Surrogate-Control: max-age=1",
    "CDN-Cache-Control: max-age=31536000",
    "X-RL-Completion-Id: stolen",
    "x-rl-adapter: v99",
    "X-Rl-Lessons: r1",
    "x-rl-page: yes",
    "X-Unknown: 1",
)
# What clients of model servers read.
READ = {
    "x-request-id": "req_1",
    "request-id": "req_2",
    "openai-processing-ms": "12",
    "openai-organization": "org",
    "openai-version": "2020-10-01",
    "openai-model": "m",
    "openai-poll-after-ms": "5",
    "anthropic-organization-id": "org",
    "anthropic-ratelimit-tokens-remaining": "7",
    "x-ratelimit-remaining-requests": "3",
    "x-ratelimit-reset-tokens": "1s",
    "ratelimit-remaining": "3",
    "retry-after": "1",
    "retry-after-ms": "1000",
    "x-should-retry": "false",
    "x-codex-primary-used-percent": "1",
    "x-models-etag": "a",
    "x-reasoning-included": "true",
    "apim-request-id": "a",
    "x-ms-region": "east",
    "x-groq-region": "a",
    "x-litellm-model-id": "a",
    "llm_provider-x-request-id": "a",
    "cf-ray": "a",
    "etag": '"a"',
    "cache-control": "no-cache",
}
CONTAINED = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
    "x-content-type-options": "nosniff",
}
CHAT = '{"model": "m", "messages": [{"role": "user", "content": "hi"}]%s}'
ROUTES = {
    "chat": ("POST", "/v1/chat/completions", CHAT % ""),
    "chat, streamed": ("POST", "/v1/chat/completions", CHAT % ', "stream": true'),
    "chat, uncaptured": ("POST", "/v1/chat/completions", CHAT % ""),
    "completions": ("POST", "/v1/completions", '{"model": "m", "prompt": "hi"}'),
    "responses": ("POST", "/v1/responses", '{"model": "m", "input": "hi"}'),
    "messages": ("POST", "/v1/messages", CHAT % ', "max_tokens": 9'),
    "ollama": ("POST", "/api/chat", CHAT % ', "stream": false'),
    "generate": ("POST", "/api/generate", '{"model": "m", "prompt": "hi"}'),
    "in a room": ("POST", "/s/a/v1/chat/completions", CHAT % ""),
    "counting": ("POST", "/v1/messages/count_tokens", CHAT % ""),
    "passed": ("GET", "/v1/page", ""),
    "passed, of Ollama": ("GET", "/api/page", ""),
    "passed, in a room": ("GET", "/s/a/v1/page", ""),
    "passed, with a body": ("POST", "/v1/embeddings", '{"model": "m", "input": "hi"}'),
    "head": ("HEAD", "/v1/page", ""),
    "one model": ("GET", "/v1/models/n", ""),
}
PAGE = b"<!doctype html><script>fetch('/rl/export')</script>"


@pytest.fixture
async def hostile(proxy: Proxy) -> AsyncIterator[HostileServer]:
    server = HostileServer(
        head=("content-type: text/html", *ACTING, *(f"{n}: {v}" for n, v in READ.items())), body=PAGE
    )
    await server.start()
    await proxy.stop()
    await proxy.start(backend__url=server.url, backend__model="m")
    yield server
    await server.stop()


async def answer(proxy: Proxy, route: str) -> tuple[int, CIMultiDict[str], bytes]:
    method, path, body = ROUTES[route]
    lines = ["content-type: application/json"]
    if route == "chat, uncaptured":
        lines.append("x-rl-capture: off")
    whole = await raw(proxy, head(method, path, *lines, body=body.encode()))
    said, _, content = whole.partition(b"\r\n\r\n")
    first, *rest = said.decode("latin-1").split("\r\n")
    headers = CIMultiDict((line.partition(":")[0], line.partition(":")[2].strip()) for line in rest)
    return int(first.split(" ")[1]), headers, content


@pytest.mark.parametrize("status", [200, 401, 404, 500])
@pytest.mark.parametrize("route", ROUTES)
async def test_no_header_of_a_backend_acts(proxy: Proxy, hostile: HostileServer, route: str, status: int) -> None:
    hostile.status = status
    _, headers, content = await answer(proxy, route)
    assert hostile.requests
    acting = {line.partition(":")[0].lower() for line in ACTING} - set(CONTAINED)
    assert not {name for name in map(str.lower, headers) if name in acting and not name.startswith("x-rl-")}
    assert not {"stolen", "v99", "r1", "yes"} & {value for name, value in headers.items() if name.startswith("x-rl-")}
    assert {name: headers.getall(name) for name in CONTAINED} == {name: [value] for name, value in CONTAINED.items()}
    assert headers.get("content-type", "text/plain").partition(";")[0] in (
        "text/plain", "application/json", "application/octet-stream", "text/event-stream", "application/x-ndjson",
    )  # fmt: skip
    if content == PAGE:  # it is the backend's answer, and not an error of ours
        assert {name: headers[name] for name in READ} == READ


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("route", ROUTES)
async def test_no_redirect_of_a_backend_reaches_a_client(
    proxy: Proxy, hostile: HostileServer, route: str, status: int
) -> None:
    """An SDK follows it with its key, a browser with its cookie: here, to the control routes."""
    hostile.status = status
    got, headers, content = await answer(proxy, route)
    assert got == 502 and "location" not in headers
    if route != "head":
        said = json.dumps(json.loads(content))
        assert f"answered {status}" in said and f"{hostile.url}/rl/pause" in said and "backend.url" in said
    page = await proxy.store.completions.page(limit=9)
    assert not [one for one in page if one.status not in ("error", "pending")]


async def test_an_answer_that_names_no_other_place_is_no_redirect(proxy: Proxy, hostile: HostileServer) -> None:
    hostile.status, hostile.head = 304, ('etag: "a"',)
    got, headers, _ = await answer(proxy, "passed")
    assert got == 304 and headers["etag"] == '"a"'


@pytest.mark.parametrize("path", ["/rl/status", "/rl/export", "/v1/models", "/healthz", "/nowhere", "/openapi.json"])
async def test_no_answer_but_the_page_may_run_anything(proxy: Proxy, path: str) -> None:
    """Answers quote what models and people said."""
    async with proxy.http.get(path) as response:
        assert {name: response.headers[name] for name in CONTAINED} == CONTAINED
    async with proxy.http.get("/") as response:
        policy = response.headers["content-security-policy"]
        assert "script-src 'self'" in policy and "sandbox" not in policy


ACTIVE = (
    "text/html", "TEXT/HTML; charset=utf-8", "application/xhtml+xml", "image/svg+xml", "IMAGE/SVG+XML", "text/xml",
    "application/xml", "text/javascript", "application/javascript", "text/css", "application/wasm", "application/pdf",
    "multipart/x-mixed-replace; boundary=a", "multipart/related", "message/rfc822", "text/xsl", "application/rss+xml",
    "application/x-shockwave-flash", "text/cache-manifest", "application/signed-exchange", "application/webbundle",
    "application/json, text/html", "application/json; a=b, text/html", "application/json;\x00text/html", "x", "",
    "text/plain text/html", "application/json\ttext/html", "text/html;text/plain", "application/json+html",
)  # fmt: skip
INERT = (
    "application/json", "application/json; charset=utf-8", "Application/JSON", "text/event-stream",
    "text/event-stream; charset=utf-8", "application/x-ndjson", "application/jsonl", "text/plain; version=0.0.4",
    "audio/mpeg", "audio/wav", "image/png", "video/mp4", "application/octet-stream", "application/problem+json",
    "text/vtt", "text/csv",
)  # fmt: skip


@pytest.mark.parametrize("kind", ACTIVE)
def test_a_kind_of_content_that_a_browser_runs_becomes_one_that_it_shows_or_saves(kind: str) -> None:
    assert inert_type(kind) in ("text/plain", "application/octet-stream")


@pytest.mark.parametrize("kind", INERT)
def test_all_others_stay(kind: str) -> None:
    assert inert_type(kind) == kind


def test_a_second_kind_of_content_is_not_sent() -> None:
    """A browser takes the last one."""
    headers = CIMultiDict([("Content-Type", "application/json"), ("content-type", "text/html")])
    assert answer_headers(headers).getall("content-type") == ["application/json"]
