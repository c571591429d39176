"""`/rl/forget` and what becomes of a run's files."""

from __future__ import annotations

import asyncio
import json

import pytest

from scripts.harness.in_process import Proxy
from store.copies import backup
from store.file import schema
from tests.harness.forgetting import forget, lines
from tests.harness.runs import rated, until
from tests.proxy.relay.capture.test_capture import stored


async def test_samples_leave_the_run_folder_and_the_version_is_named(proxy: Proxy) -> None:
    await rated(proxy, 3)
    response = await proxy.chat("secret", headers={"x-rl-session": "s"})
    id = response.headers["x-rl-completion-id"]
    await proxy.rate(completion_id=id, rating="bad", comment="secret why")
    await until(proxy, live=1)
    folder = proxy.home / "runs" / "r00001"
    assert len(lines(folder)) == 4 and "secret" in (folder / "samples.jsonl").read_text()
    told = await forget(proxy, session="s", dry_run=True)
    assert told == {
        "completions": 1, "ratings": 1, "reactions": 0, "trained": [1], "heirs": [],
        "rebuild": None, "forgotten": False,
        "backups": {"holding": [], "unread": [], "deleted": False},
    }  # fmt: skip
    assert await forget(proxy, session="s") == {**told, "forgotten": True}
    assert len(lines(folder)) == 3 and "secret" not in (folder / "samples.jsonl").read_text()
    assert (await proxy.store.erasure.owed_to_run_folders()) == {"completions": [], "ratings": []}
    assert (await forget(proxy, 404, session="s"))["error"]["message"].startswith("There is no session s here")
    kept = await proxy.get("/rl/adapters")
    assert kept["live"] == 1  # that is for a person to decide


async def test_a_rejected_candidate_that_learned_from_it_goes(proxy: Proxy) -> None:
    proxy.launcher.outcome = "rejected"
    await rated(proxy, 4)
    await until(proxy, ended="rejected")
    folder = proxy.home / "runs" / "r00001"
    (folder / "rejected").mkdir()
    (folder / "rejected" / "adapter_model.safetensors").write_bytes(b"learned")
    assert (await forget(proxy, completion=lines(folder)[0]["completion"]))["trained"] == []
    assert not (folder / "rejected").exists()


async def test_run_folders_that_the_database_does_not_know_are_looked_into_too(proxy: Proxy) -> None:
    """An older backup was restored: what ran since is still there."""
    id = (await proxy.chat("secret")).headers["x-rl-completion-id"]
    folder = proxy.home / "runs" / "r00042"
    folder.mkdir(parents=True)
    line = {"completion": id, "ratings": [], "text": "secret"}
    other = {"completion": "other", "ratings": [], "text": "stays"}
    (folder / "samples.jsonl").write_text("".join(json.dumps(one) + "\n" for one in (line, other)))
    (folder / "calibration.jsonl").write_text(json.dumps(line) + "\n")
    await forget(proxy, completion=id)
    assert lines(folder) == [other] and lines(folder, "calibration.jsonl") == []


async def test_a_rater_leaves_the_samples(proxy: Proxy) -> None:
    await rated(proxy, 3)
    await proxy.chat("x")
    await proxy.rate(completion_id="last", rating="bad", rater="ann")
    await until(proxy, live=1)
    assert (await forget(proxy, rater="ann"))["trained"] == [1]
    assert len(lines(proxy.home / "runs" / "r00001")) == 3


async def test_a_crash_before_the_files_is_made_good(proxy: Proxy) -> None:
    await rated(proxy, 4)
    await until(proxy, live=1)
    folder = proxy.home / "runs" / "r00001"
    gone = lines(folder)[0]["completion"]
    await proxy.store.erasure.forget("completion", gone, "test")  # and then the power goes
    assert len(lines(folder)) == 4
    await proxy.stop()
    await proxy.start()
    assert len(lines(folder)) == 3 and gone not in {line["completion"] for line in lines(folder)}


async def test_not_while_a_run_trains_on_it_but_after_it_is_cancelled(proxy: Proxy) -> None:
    proxy.launcher.hold = True
    await rated(proxy, 4)
    while not proxy.launcher.started:
        await proxy.get("/rl/status")
    id = lines(proxy.home / "runs" / "r00001")[0]["completion"]
    assert "cancel that run" in (await forget(proxy, 409, completion=id))["error"]["message"]
    assert await proxy.post("/rl/cancel") == (200, {"cancelled": 1})
    await until(proxy, ended="cancelled")
    assert (await forget(proxy, completion=id))["completions"] == 1
    assert (await proxy.post("/rl/cancel"))[0] == 409
    assert len(lines(proxy.home / "runs" / "r00001")) == 3


async def test_copies_that_hold_it_are_named_and_go_where_that_is_asked(proxy: Proxy) -> None:
    await proxy.chat("zanzibar", headers={"x-rl-session": "s"})
    inside = proxy.home / "mine" / "saved"
    inside.parent.mkdir()
    await asyncio.to_thread(backup.backup, proxy.home / schema.NAME, inside)
    (proxy.home / "old.db").write_bytes(b"no database at all")
    told = await forget(proxy, session="s")
    assert told["backups"] == {"holding": ["mine/saved"], "unread": ["old.db"], "deleted": False} and inside.exists()
    told = await forget(proxy, session="s", purge_backups=True)  # gone from the database, and still in the copy
    assert told["completions"] == 0 and told["backups"]["deleted"] and not inside.exists()
    assert b"zanzibar" not in b"".join(f.read_bytes() for f in proxy.home.rglob("*") if f.is_file())
    await forget(proxy, 404, session="s")


@pytest.mark.parametrize("headers", [{}, {"x-rl-completion-id": "mine"}], ids=["our id", "their id"])
async def test_what_is_forgotten_while_its_answer_runs_does_not_come_back(
    proxy: Proxy, headers: dict[str, str]
) -> None:
    proxy.backend.hold.clear()
    running = asyncio.create_task(proxy.chat("zanzibar", stream=True, headers={"x-rl-session": "s", **headers}))
    id = await stored(proxy, "pending")
    assert (await forget(proxy, session="s"))["completions"] == 1
    proxy.backend.hold.set()
    assert b"You " in await (await running).read()
    assert await proxy.store.completions.page() == [] and (await proxy.rate(completion_id=id, rating="good"))[0] == 404
    assert b"zanzibar" not in b"".join(f.read_bytes() for f in proxy.home.rglob("*") if f.is_file())
    assert (await proxy.get("/rl/status"))["problem"] is None


async def test_of_several_choices_those_that_were_not_forgotten_end(proxy: Proxy) -> None:
    proxy.backend.hold.clear()
    running = asyncio.create_task(proxy.chat("zanzibar", n=3))
    await stored(proxy, "pending")
    first, second, third = sorted(c.new.id for c in await proxy.store.completions.page())
    await forget(proxy, completion=second)
    proxy.backend.hold.set()
    await (await running).read()
    assert sorted((c.new.id, c.status) for c in await proxy.store.completions.page()) == [
        (first, "done"),
        (third, "done"),
    ]


async def test_one_thing_at_a_time(proxy: Proxy) -> None:
    for body in ({}, {"session": "a", "rater": "b"}, {"session": 3}, {"everything": "yes"}):
        assert "one of" in (await forget(proxy, 400, **body))["error"]["message"]
    for name in ("retrain", "purge_backups", "dry_run"):
        assert "true or false" in (await forget(proxy, 400, session="s", **{name: "yes"}))["error"]["message"]
    async with proxy.http.post("/rl/forget", data=b"{") as response:
        assert response.status == 400
    await proxy.stop()
    await proxy.start(server__api_key="use-key", server__admin_key="admin-key")
    headers = {"x-api-key": "use-key"}
    async with proxy.http.post("/rl/forget", json={"session": "s"}, headers=headers) as response:
        assert response.status == 403
