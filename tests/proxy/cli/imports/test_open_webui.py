"""`rlproxy import open-webui`: out of its export and out of its database, against a whole proxy."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from proxy.cli.imports.export_file import UnreadableFile
from proxy.cli.imports.open_webui import feedbacks
from scripts.fakes.platforms.open_webui import USER, FakeOpenWebUI, running
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy

CHAT = {"x-openwebui-chat-id": "chat-1", "x-openwebui-user-email": USER["email"]}
# models/feedbacks.py and models/users.py of 0.12.4, as far as they are read.
SCHEMA = """CREATE TABLE user (id TEXT, name TEXT, email TEXT);
CREATE TABLE feedback (id TEXT, user_id TEXT, version BIGINT, type TEXT, data JSON, meta JSON, snapshot JSON,
created_at BIGINT, updated_at BIGINT);"""


@pytest.fixture
async def before(proxy: Proxy) -> tuple[FakeOpenWebUI, str]:
    """What Open WebUI has of three clicks that rlproxy did not hear; the completion of the first."""
    with running("http://127.0.0.1:9") as ui:
        ui.function.event = _nobody
        id = (await (await proxy.chat("hello", headers=CHAT)).json())["id"]
        ui.says("chat-1", "hello")
        shown = ui.answered("chat-1", "You said: hello")
        await ui.thumb("chat-1", shown, -1)
        await ui.comment("chat-1", shown, reason="too_verbose", comment="half of it", details={"rating": 2})
        ui.says("chat-2", "before there was rlproxy")
        await ui.thumb("chat-2", ui.answered("chat-2", "An answer"), 1)
        bare = await ui.thumb("chat-2", ui.answered("chat-2", "And another"), 1)
        ui.feedbacks[bare].snapshot = None
        return ui, id


async def _nobody(**given: Any) -> None:
    """No function is installed."""


def exported(ui: FakeOpenWebUI, folder: Path) -> Path:
    file = folder / "feedback-history-export-1.json"
    file.write_text(json.dumps(ui.export()))
    return file


def database(ui: FakeOpenWebUI, folder: Path) -> Path:
    file = folder / "webui.db"
    with sqlite3.connect(file) as db:
        db.executescript(SCHEMA)
        db.execute("INSERT INTO user VALUES (?, ?, ?)", (USER["id"], USER["name"], USER["email"]))
        for one in ui.feedbacks.values():
            row = one.model_dump()
            values = [json.dumps(value) if isinstance(value, dict) else value for value in row.values()]
            names = ", ".join(row)
            db.execute(f"INSERT INTO feedback ({names}) VALUES ({', '.join('?' * len(row))})", values)
    db.close()
    return file


async def live(proxy: Proxy, id: str) -> list[tuple[str, float, str | None]]:
    return [(one.rater, one.value, one.comment) for one in await proxy.store.ratings.history(id) if one.live]


@pytest.mark.parametrize("made", [exported, database])
async def test_what_rlproxy_has_captured_is_rated(
    cli: Proxy, before: tuple[FakeOpenWebUI, str], tmp_path: Path, made: Any
) -> None:
    ui, id = before
    ui.clock = 0
    file = made(ui, tmp_path)
    code, out, err = await rlproxy(cli.home, "import", "open-webui", str(file))
    assert (code, out) == (0, "1 rating taken, 0 were here before, 2 could not be placed\n")
    assert "1 of these: rlproxy has not captured this answer" in err
    assert "1 of these: Open WebUI has kept no copy of its chat" in err
    assert await live(cli, id) == [(USER["email"], -0.7778, "Too verbose: half of it")]
    code, out, _ = await rlproxy(cli.home, "import", "open-webui", str(file), "--json")
    found = json.loads(out)
    assert code == 0 and (found["stored"], found["known"], len(found["unplaced"])) == (0, 1, 2)
    assert {one["chat"] for one in found["unplaced"]} == {"chat-2"} and found["refused"] == []
    assert len(await cli.store.ratings.history(id)) == 1


async def test_what_was_said_since_stays(cli: Proxy, before: tuple[FakeOpenWebUI, str], tmp_path: Path) -> None:
    """An import after a later rating, an undo, and what the function has heard; a later change comes in."""
    ui, id = before
    await cli.rate(completion_id=id, rating="good", rater=USER["email"])
    file = exported(ui, tmp_path)
    assert (await rlproxy(cli.home, "import", "open-webui", str(file)))[1].startswith("0 ratings taken, 1 were here")
    await cli.http.delete("/v1/feedback/last", params={"rater": USER["email"]})
    assert (await rlproxy(cli.home, "import", "open-webui", str(file)))[1].startswith("0 ratings taken, 1 were here")
    assert await live(cli, id) == []
    later = json.loads(file.read_text())
    later[-1] |= {"updated_at": 4_000_000_000}
    file.write_text(json.dumps(later))
    assert (await rlproxy(cli.home, "import", "open-webui", str(file)))[1].startswith("1 rating taken, 0 were here")
    assert await live(cli, id) == [(USER["email"], -0.7778, "Too verbose: half of it")]


async def test_new_tags_are_no_new_rating(cli: Proxy, before: tuple[FakeOpenWebUI, str], tmp_path: Path) -> None:
    """Not of what counts, and not of what was undone: it is the same feedback."""
    ui, id = before
    file = exported(ui, tmp_path)
    await rlproxy(cli.home, "import", "open-webui", str(file))
    later = json.loads(file.read_text())
    later[-1] |= {"updated_at": 4_000_000_000}
    file.write_text(json.dumps(later))
    for _ in range(2):
        assert (await rlproxy(cli.home, "import", "open-webui", str(file)))[1].startswith(
            "0 ratings taken, 1 were here"
        )
        assert len(await cli.store.ratings.history(id)) == 1
        await cli.http.delete("/v1/feedback/last", params={"rater": USER["email"]})
    assert await live(cli, id) == []


async def test_a_deletion_is_heard_of_what_was_imported(
    cli: Proxy, before: tuple[FakeOpenWebUI, str], tmp_path: Path
) -> None:
    ui, id = before
    await rlproxy(cli.home, "import", "open-webui", str(database(ui, tmp_path)))
    (feedback,) = [one.id for one in ui.feedbacks.values() if one.meta and one.meta["chat_id"] == "chat-1"]
    async with cli.http.post("/v1/feedback/open-webui", json={"deleted": feedback}) as response:
        assert (await response.json())["result"] == "taken back"
    assert await live(cli, id) == []


async def test_what_cannot_be_read_is_said(cli: Proxy, tmp_path: Path) -> None:
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"SQLite format 3\0" + b"x" * 100)
    (csv := tmp_path / "feedback.csv").write_text("id,rating\n1,1\n")
    for arguments, said in (
        ([], "name what to read"), ([str(tmp_path / "nowhere")], "cannot be read (No such file"),
        ([str(broken)], "cannot be read as Open WebUI's database"), ([str(csv)], "neither an export"),
    ):  # fmt: skip
        code, out, err = await rlproxy(cli.home, "import", "open-webui", *arguments)
        assert code in (1, 2) and out == "" and said in err
    code, _, err = await rlproxy(cli.home, "import", "a.jsonl", "b.jsonl")
    assert code == 2 and "an export is one file" in err


def test_an_odd_export_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """Whoever may edit it may put anything into it; it ends in a sentence or in feedback, never in a traceback."""
    file = tmp_path / "export.json"
    odd: list[Any] = [[], {}, "x", None, 1e308, True, -1]
    rows: list[dict[str, Any]] = [
        {"id": "f", "updated_at": at, "meta": {"message_id": name}, "user": name, "snapshot": {"chat": {"chat": chat}}}
        for at in odd
        for name in odd
        for chat in (*odd, {"history": {"messages": {"a": {"parentId": name, "role": "user"}, "b": name}}})
    ]
    file.write_text(json.dumps(rows))
    assert len(list(feedbacks(file))) == len(rows)
    file.write_text("[" * 200_000)
    with pytest.raises(UnreadableFile):
        list(feedbacks(file))


@pytest.mark.parametrize("data", ["[" * 200_000, "{", 5, b"\xff"])
def test_an_odd_database_is_read_as_far_as_it_goes(tmp_path: Path, data: Any) -> None:
    file = tmp_path / "webui.db"
    with sqlite3.connect(file) as db:
        db.executescript(SCHEMA)
        db.execute("INSERT INTO feedback (id, data, updated_at) VALUES ('f', ?, 1)", (data,))
    db.close()
    with pytest.raises(UnreadableFile):
        list(feedbacks(file))


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
COLUMNS = "i user_id, 'rating' type, '{}' data, '{}' meta, '{}' snapshot, i created_at, i updated_at"
COMPUTED = {
    "a view without an end": f"DROP TABLE feedback; CREATE VIEW Feedback AS {ENDLESS} SELECT i id, {COLUMNS} FROM n",
    "another": f"DROP TABLE user; CREATE VIEW user AS {ENDLESS} SELECT i id, 'x' name, 'e' email FROM n",
    "a column": "ALTER TABLE feedback ADD COLUMN g TEXT AS (hex(zeroblob(400000000)))",
    "a virtual table": "DROP TABLE user; CREATE VIRTUAL TABLE user USING fts5(id, name, email)",
}


@pytest.mark.parametrize("how", COMPUTED)
def test_a_database_that_computes_what_it_says_is_not_read(tmp_path: Path, how: str) -> None:
    file = tmp_path / "webui.db"
    with sqlite3.connect(file) as db:
        db.executescript(SCHEMA + COMPUTED[how])
    with pytest.raises(UnreadableFile, match="is computed"):
        next(feedbacks(file))
