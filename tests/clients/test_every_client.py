"""Real clients from PyPI and npm, driven through rlproxy before a scripted backend: `make test-clients`.

Each test is a cell of the table in docs/lab/agents.md, for each client and format. Where the head of a driver says
that a cell cannot work, the test shows that it is so; what it finds goes into benchmarks/clients.json.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.clients.drivers import SIDE, Driver, drivers
from scripts.harness.in_process import Proxy
from tests.clients.driving import Conversation, Drive
from tests.clients.own_requests import NumberedConversation

pytestmark = [pytest.mark.clients, pytest.mark.timeout(3600)]

CHOSEN = os.environ.get("RLPROXY_CLIENTS", "").split(",")
CASES = [(driver, way) for driver in drivers() if CHOSEN == [""] or driver.id in CHOSEN for way in driver.ways]
cases = pytest.mark.parametrize(
    ("drive", "way"), CASES, indirect=["drive"], ids=[f"{driver.id}-{way.replace(' ', '-')}" for driver, way in CASES]
)
ASKING = [(driver, way) for driver, way in CASES if driver.side]
asking_cases = pytest.mark.parametrize(
    ("drive", "way"), ASKING, indirect=["drive"], ids=[f"{driver.id}-{way.replace(' ', '-')}" for driver, way in ASKING]
)
Record = Callable[[str], None]
Ratings = dict[str, tuple[float, str | None]]  # by completion: the value and the comment


@pytest.fixture(scope="module")
def drive(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drive]:
    driver: Driver = request.param
    if not driver.installed:
        pytest.skip(f"{driver.name} is not installed; `make test-clients` does that and runs this test")
    found = Drive(driver, tmp_path_factory.mktemp(driver.id))
    yield found
    found.close()


@pytest.fixture
def record(way: str, cell: str, record_property: Callable[[str, object], None]) -> Record:
    """What the cell of this test came to, for the table: `failed` where it says nothing."""
    record_property("cell", f"{way}|{cell}|failed")

    return lambda outcome: record_property("cell", f"{way}|{cell}|{outcome}")


async def opened(drive: Drive, proxy: Proxy, way: str, folder: Path, **more: bool) -> Conversation:
    how = {"stream": not drive.driver.lack("streamed", way), "tools": False, **more}
    found = Conversation(drive, proxy, way, folder=folder, **how)
    await found.open()
    return found


@cases
@pytest.mark.parametrize("cell", ["whole", "streamed"])
async def test_answered(drive: Drive, way: str, cell: str, proxy: Proxy, tmp_path: Path, record: Record) -> None:
    """The client shows the answer, and it is captured; the backend was asked for a stream, or for none."""
    talk = await opened(drive, proxy, way, tmp_path / "work", stream=cell == "streamed")
    await talk.ask()
    usual = way == "ollama native"  # whether a request that does not say wants a stream
    # A client's own probe, before the first question, may come another way.
    asked = [body.get("stream", usual) is True for body in talk.requests() if "What about" in json.dumps(body)]
    reason = drive.driver.lack(cell, way)
    assert set(asked) == {(cell == "streamed") != bool(reason)}, f"{drive.driver.id} {reason or ''}: {asked}"
    record("cannot" if reason else "right")


@cases
@pytest.mark.parametrize("cell", ["tools"])
async def test_tools(drive: Drive, way: str, cell: str, proxy: Proxy, tmp_path: Path, record: Record) -> None:
    """A tool is called and run, and `/rl good` rates the answer after it, not the call."""
    if drive.driver.lack("tools", way):
        talk = await opened(drive, proxy, way, tmp_path / "work", tools=True)
        await talk.ask()
        assert not any(body.get("tools") for body in talk.requests())
        return record("cannot")
    talk = await opened(drive, proxy, way, tmp_path / "work", tools=True)
    row = await talk.ask(tool=True)
    assert any("seen" in json.dumps(body) for body in talk.requests())
    if drive.driver.lack("rated", way):
        return record("right")
    assert "rated good" in await talk.command("good")
    assert await talk.ratings() == {row["id"]: (1.0, None)}
    return record("right")


@cases
@pytest.mark.parametrize("cell", ["rated"])
async def test_rated(drive: Drive, way: str, cell: str, proxy: Proxy, tmp_path: Path, record: Record) -> None:
    """Typed in the conversation, whole and streamed, after the first answer and after the second."""
    modes = [mode for mode in ("whole", "streamed") if not drive.driver.lack(mode, way)]
    for mode in modes:
        talk = await opened(drive, proxy, way, tmp_path / mode, stream=mode == "streamed")
        before = await talk.ratings()
        first = await talk.ask()
        said = await talk.command("good")
        if drive.driver.lack("rated", way):
            assert await talk.ratings() == before
            continue
        assert "rated good" in said, said
        assert await talk.ratings() == {**before, first["id"]: (1.0, None)}
        second = await talk.ask()
        said = await talk.command("bad too long")
        assert "rated bad, because “too long”" in said, said
        assert await talk.ratings() == {**before, first["id"]: (1.0, None), second["id"]: (-1.0, "too long")}
        # A title or a summary that a client asks for itself quotes all that was said, in one message.
        messages = [
            json.dumps(message)
            for body in talk.requests()
            for message in body["messages" if "messages" in body else "input"]
        ]
        sent = [message for message in messages if "What about" not in message]
        words = (f"{drive.driver.rate.strip()} good", "rl:good", "rated good")
        assert not any(word in message for message in sent for word in words)
    record("cannot" if drive.driver.lack("rated", way) else "right")


@cases
@pytest.mark.parametrize("cell", ["last"])
async def test_last(drive: Drive, way: str, cell: str, proxy: Proxy, tmp_path: Path, record: Record) -> None:
    """`rlproxy good` means the answer that the client shows, whatever it asks on the side."""
    talk = await opened(drive, proxy, way, tmp_path / "work", tools=not drive.driver.lack("tools", way))
    for _ in range(2):
        row = await talk.ask()
        status, told = await proxy.rate(completion_id="last", rating="good")
        assert status == 201, told
        assert (await talk.ratings())[row["id"]] == (1.0, None)
    assert len(await talk.ratings()) == 2
    record("right")


@cases
@pytest.mark.parametrize("cell", ["id"])
async def test_id(drive: Drive, way: str, cell: str, proxy: Proxy, tmp_path: Path, record: Record) -> None:
    """The id that the client gives to its caller rates this answer: whole or streamed, or both."""
    modes, shown = [mode for mode in ("whole", "streamed") if not drive.driver.lack(mode, way)], []
    for mode in modes:
        talk = await opened(drive, proxy, way, tmp_path / mode, stream=mode == "streamed")
        row = await talk.ask()
        if talk.id is not None:
            before = await talk.ratings()
            status, told = await proxy.rate(completion_id=talk.id, rating="bad", comment="no")
            assert status == 201, (talk.id, told)
            assert await talk.ratings() == {**before, row["id"]: (-1.0, "no")}
            shown.append(mode)
    assert bool(shown) != bool(drive.driver.lack("id", way))
    record("cannot" if not shown else "right" if shown == modes else f"{shown[0]} only")


@asking_cases
@pytest.mark.parametrize("cell", ["side"])
async def test_side(
    drive: Drive,
    way: str,
    cell: str,
    proxy: Proxy,
    tmp_path: Path,
    record: Record,
    record_property: Callable[[str, object], None],
) -> None:
    """What a client asks for itself counts as a side turn, and no rating means it, typed in the chat or elsewhere."""
    side = drive.driver.side
    how = {"stream": not drive.driver.lack("streamed", way), "tools": not drive.driver.lack("tools", way)}
    talk = NumberedConversation(drive, proxy, way, folder=tmp_path / "work", side=True, **how)
    await talk.start()
    ratings: Ratings = {}
    for tool in (False, True) if "tool" in side else (False,):
        row = await talk.ask(tool=tool)
        assert (await proxy.rate(completion_id="last", rating="bad"))[0] == 201
        ratings[row["id"]] = (-1.0, None)
        assert await talk.ratings() == ratings
    row = await talk.ask(tokens=side.get("tokens"))
    if "types" in side:
        row = await talk.type(side["types"]) or row
    assert (await proxy.rate(completion_id="last", rating="bad"))[0] == 201
    ratings[row["id"]] = (-1.0, None)
    assert await talk.ratings() == ratings
    ratings = await _after_good(talk, row, ratings)
    row = await talk.ask()
    assert (await proxy.rate(completion_id="last", rating="good"))[0] == 201
    assert await talk.ratings() == {**ratings, row["id"]: (1.0, None)}
    said = await talk.command("bad too long")
    assert "rated bad, because “too long”" in said, said
    ratings[row["id"]] = (-1.0, "too long")
    assert await talk.ratings() == ratings
    if "tokens" in side:  # it sums up when the line is typed
        row = await talk.ask(tokens=side["tokens"])
        ratings = await _after_good(talk, row, ratings)
    await talk.wait()
    rules = Counter(f"{row['turn']} {row['turn_rule']}" for row in talk.own)
    record_property("side", f"{way}|{json.dumps(rules)}")
    assert talk.own, "it has asked nothing for itself"
    assert all(row["turn"] == "side" for row in talk.own), rules
    record("right")


async def _after_good(talk: NumberedConversation, row: dict[str, Any], ratings: Ratings) -> Ratings:
    """The ratings after `/rl good` about an answer that the client may have summed up: then it stands nowhere above the
    line, nothing is rated, and the person is told."""
    text = await talk.command("good")
    if "rated good" in text:
        ratings = {**ratings, row["id"]: (1.0, None)}
    else:
        assert "nothing was rated" in text, text
    assert await talk.ratings() == ratings
    return ratings


def test_what_a_head_says(tmp_path: Path) -> None:
    """Every driver has one, pins its packages, and names cells that there are."""
    cells = {"whole", "streamed", "tools", "rated", "last", "id"}
    for driver in drivers():
        assert driver.side.keys() <= SIDE and ("asks" in driver.side or not driver.side), driver.id
        assert all("==" in one for one in driver.pypi) and driver.packages, driver.id
        assert {key.rpartition(".")[2] for key in driver.lacks} <= cells, driver.id
        assert not ({"whole", "streamed"} <= driver.lacks.keys())
