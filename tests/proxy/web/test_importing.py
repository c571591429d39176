"""What was exported comes back the same, once; what is no line of an export costs that line only."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from config.sections import Redaction
from proxy.conversation.redaction import Redactor
from proxy.web.importing import BadImportLine, read
from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from store.records import RATING_TEXTS
from tests.harness.lines import create, rate
from tests.proxy.conversation.test_redaction import TOKEN, on_disk

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.fixture
async def other(tmp_path: Path, backend: FakeBackend) -> AsyncIterator[Proxy]:
    proxy = Proxy(tmp_path / "other", backend, FakeLauncher())
    await proxy.start()
    yield proxy
    await proxy.stop()


async def filled(proxy: Proxy) -> list[dict[str, Any]]:
    picture = [
        {"type": "text", "text": "what?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]
    await proxy.chat("hello", headers={"x-rl-session": "s1", "x-rl-user": "ann"}, n=2, temperature=0.5)
    await proxy.chat("hello", "You said: hello", "more", headers={"x-rl-session": "s1"})
    await proxy.chat("use it", tools=[TOOL], headers={"x-rl-session": "s2", "x-rl-turn": "side"})
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": picture}]
    await (await proxy.http.post("/v1/chat/completions", json={"model": "fake", "messages": messages})).read()
    await (await proxy.chat(f"the key is {TOKEN}")).read()
    rows = await exported(proxy)
    await proxy.rate(completion_id=rows[0]["id"], rating="good", comment="kind", rater="ann")
    await proxy.rate(completion_id=rows[0]["id"], rating="2/5", rater="bob", correction="hi")
    await proxy.rate(completion_id=rows[2]["id"], rating="bad", weight=2)
    return await exported(proxy)


async def exported(proxy: Proxy, query: str = "") -> list[dict[str, Any]]:
    async with proxy.http.get(f"/rl/export?{query}") as response:
        return [json.loads(line) for line in (await response.read()).splitlines()]


async def imported(proxy: Proxy, rows: list[Any], query: str = "ours") -> dict[str, Any]:
    raw = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
    async with proxy.http.post(f"/rl/import?{query}", data=raw) as response:
        assert response.status == 200, await response.text()
        found: dict[str, Any] = await response.json()
        return found


async def test_there_and_back(proxy: Proxy, other: Proxy) -> None:
    rows = await filled(proxy)
    assert len(rows) == 6 and sum(len(row["ratings"]) for row in rows) == 3
    assert await imported(other, rows) == {"stored": 6, "known": 0, "ratings": 3, "forgotten": 0, "refused": []}
    assert await exported(other) == rows
    assert await imported(other, rows) == {"stored": 0, "known": 6, "ratings": 0, "forgotten": 0, "refused": []}
    assert await exported(other) == rows
    assert on_disk(other.home, TOKEN) == []
    told = await other.say("hello", "You said: hello", "more", "You said: more", "/rl good")
    assert "rated good" in told  # its thread is known here, too
    assert next(line["act"] for line in await other.store.meta.audit_log() if line["act"] != "export") == "import"


async def test_a_line_that_this_home_lacks_is_refused(proxy: Proxy, other: Proxy) -> None:
    """Its ratings would be counted as stored, and no run would ever take them."""
    await create(proxy, "ann")
    await rate(proxy, "ann", 1)
    rows = await exported(proxy)
    taken = await imported(other, rows)
    assert (taken["stored"], taken["ratings"]) == (0, 0)
    assert "this home has no line 'ann'" in taken["refused"][0]["why"]
    await create(other, "ann")
    assert (await imported(other, rows))["ratings"] == 1
    assert await exported(other) == rows


async def test_versions_of_another_home_are_not_believed(proxy: Proxy, other: Proxy) -> None:
    rows = await filled(proxy)
    await imported(other, rows, "")
    assert {row["version"] for row in rows} == {0} and {row["version"] for row in await exported(other)} == {None}
    fresh = await other.store.samples.fresh(live=0, max_version_gap=8)
    assert fresh.total == 0 and (await other.store.samples.fresh(live=0, max_version_gap=8, foreign=True)).total == 3


async def test_secrets_of_an_older_export_are_taken_out(proxy: Proxy, other: Proxy) -> None:
    (row,) = [row for row in await filled(proxy) if row["messages"][0]["content"] == "hello"][:1]
    row["messages"][0]["content"] = row["request"]["note"] = row["ratings"][0]["comment"] = f"say {TOKEN}"
    assert row["exact"] is True and row["token_ids"]
    assert (await imported(other, [row]))["stored"] == 1
    (found,) = await exported(other)
    assert found["redacted"] == ["prompt:api_key", "request:api_key"] and found["untrainable"] is None
    assert found["token_ids"] is None and found["exact"] is False
    assert on_disk(other.home, TOKEN) == []


@pytest.mark.parametrize("name", RATING_TEXTS)
async def test_each_text_of_a_rating_is_redacted_kept_and_comes_back(proxy: Proxy, other: Proxy, name: str) -> None:
    """Also one that will be added to `RATING_TEXTS`."""
    completion = (await filled(proxy))[0]["id"]
    body = {"completion_id": completion, "rating": "bad", name: f"use {TOKEN} here"}
    async with proxy.http.post("/v1/feedback", json=body) as response:
        stored = (await response.json())[name]
    assert "here" in stored and TOKEN not in stored
    async with proxy.http.post("/v1/feedback", json={**body, name: "another"}) as response:
        assert response.status == 201, "it says something else, so it is no duplicate"
    async with proxy.http.post("/v1/feedback", json={**body, name: None, "rating": -0.5}) as response:
        assert (await response.json())[name] == "another", "what is not given stays"
    row = next(row for row in await exported(proxy) if row["id"] == completion)
    await imported(other, [row])
    (back,) = await exported(other)
    assert back["ratings"][0][name] == "another"


async def test_a_bad_line_costs_that_line(proxy: Proxy, other: Proxy) -> None:
    rows = await filled(proxy)
    bad: list[Any] = [
        "{", "[]", {**rows[0], "format": 2}, {**rows[0], "id": ""}, {**rows[0], "messages": [1]},
        {**rows[0], "status": "?"}, {**rows[0], "messages": []}, {**rows[0], "messages": None},
        {**rows[0], "created_at": "now"}, {**rows[0], "token_ids": [-1]}, {**rows[0], "ratings": [{"value": 7}]},
        {**rows[0], "usage": 3}, {**rows[0], "reply": "hi"},
    ]  # fmt: skip
    found = await imported(other, [*bad, rows[0]])
    assert found["stored"] == 1 and [one["line"] for one in found["refused"]] == list(range(1, len(bad) + 1))
    async with other.http.post("/rl/import", data=b"") as response:
        assert response.status == 400


async def test_filters(proxy: Proxy) -> None:
    rows = await filled(proxy)
    ids = [row["id"] for row in rows]
    for query, expected in (
        ("rated", [0, 2]), ("session=s1", [0, 1, 2]), ("user=ann", [0, 1]), ("turn=side", [3]), ("version=0", range(6)),
        ("version=3", []), ("session=s1&rated", [0, 2]), ("since=0&until=1", []),
        ("since=1000&until=99999999999", range(6)),
    ):  # fmt: skip
        assert [row["id"] for row in await exported(proxy, query)] == [ids[i] for i in expected], query


async def test_the_commands(cli: Proxy, tmp_path: Path) -> None:
    rows = await filled(cli)
    file, home = tmp_path / "e.jsonl", str(cli.home)
    assert (await rlproxy(cli.home, "export", "-o", str(file), "--session", "s1", "--since", "2020-01-01"))[0] == 0
    assert len(file.read_text().splitlines()) == 3
    await cli.store.completions.forget([rows[0]["id"]])
    code, out, _ = await rlproxy(cli.home, "import", str(file), "--ours")
    assert code == 0 and "1 completion and 2 ratings taken, 2 were here before" in out
    file.write_text(file.read_text() + "{\n")
    code, out, err = await rlproxy(cli.home, "import", str(file))
    assert code == 1 and "line 4 was not taken" in err
    code, _, err = await rlproxy(cli.home, "import", str(tmp_path / "none"))
    assert code == 1 and "cannot be read" in err
    code, out, _ = await rlproxy(cli.home, "capture", "off", "s9")
    assert code == 0 and "nothing is kept" in out and await cli.get("/rl/capture") == {"off": ["s9"]}
    copy = tmp_path / "copy.db"
    code, out, _ = await rlproxy(cli.home, "backup", str(copy))  # while it runs
    assert code == 0 and copy.stat().st_size > 0
    code, _, err = await rlproxy(cli.home, "restore", str(copy))
    assert code == 1 and "in use by process" in err and "nothing was changed" in err
    code, out, _ = await rlproxy(tmp_path / "new", "restore", str(copy))
    assert code == 0 and "is restored" in out
    code, out, _ = await rlproxy(tmp_path / "new", "audit", "verify", "--json")
    assert code == 0 and json.loads(out)["problem"] is None and home


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_nothing_breaks_the_reading(value: Any) -> None:
    good = {
        "format": 1, "id": "a", "request_id": "a", "choice": 0, "created_at": 1, "finished_at": 2, "dialect": "chat",
        "backend": "vllm", "model": "m", "served_model": "m", "status": "done", "text": "",
        "messages": [{"role": "user", "content": "hi"}],
    }  # fmt: skip
    assert read(json.dumps(good).encode(), Redactor(Redaction()), own_versions=True).new.id == "a"
    for key in (*good, "reply", "ratings", "usage", "sampling", "request", "token_ids", "redacted", "version"):
        with contextlib.suppress(BadImportLine):
            read(json.dumps({**good, key: value}).encode(), Redactor(Redaction()), own_versions=True)
