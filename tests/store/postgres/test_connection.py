"""Values, and what a broken connection leaves."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from psycopg.errors import LockNotAvailable

from scripts.harness.postgres import PostgresServer
from scripts.harness.records import end, new, put, rating
from store.errors import StoreAway, StoreError
from store.postgres import server
from store.postgres.connection import PostgresConnection
from store.records import CompletionQuery
from store.store import Store

pytestmark = pytest.mark.postgres
ROOT = Path(__file__).parents[3]


class LossyLink:
    """A way to the server on which the answer to one commit gets lost, and the connection with it."""

    def __init__(self, url: str) -> None:
        self.cut = True
        parts = urlsplit(url)
        self._address = ("127.0.0.1", parts.port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listening]
        self.url = url.replace(f":{parts.port}/", f":{self._listening.getsockname()[1]}/")
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._address)
                self._sockets += [client, server]
                lossy = threading.Event()
                threading.Thread(target=self._to_server, args=(client, server, lossy), daemon=True).start()
                threading.Thread(target=self._to_client, args=(client, server, lossy), daemon=True).start()

    def _to_server(self, client: socket.socket, server: socket.socket, lossy: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if self.cut and b"COMMIT" in data:
                    self.cut = False
                    lossy.set()
                server.sendall(data)

    def _to_client(self, client: socket.socket, server: socket.socket, lossy: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if lossy.is_set():
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(data)

    def close(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def test_a_lock_that_comes_too_late_leaves_nothing_behind(database: str) -> None:
    with closing(PostgresConnection(database)) as first, closing(PostgresConnection(database)) as second:
        second.execute("SET lock_timeout = '100ms'")
        first.execute("BEGIN IMMEDIATE")
        for _ in range(2):
            with pytest.raises(LockNotAvailable):
                second.execute("BEGIN IMMEDIATE")
            assert not second.in_transaction
        first.execute("COMMIT")
        second.execute("BEGIN IMMEDIATE")
        second.execute("INSERT INTO meta VALUES ('late', '1')")
        second.execute("COMMIT")
        assert first.execute("SELECT count(*) AS count FROM meta WHERE key = 'late'").fetchone()["count"] == 1


def test_a_commit_whose_answer_was_lost_has_succeeded(database: str) -> None:
    link = LossyLink(database)
    with closing(PostgresConnection(link.url)) as db:
        for value in (1, 2):
            db.execute("BEGIN IMMEDIATE")
            db.execute("INSERT INTO meta VALUES (?, ?)", (f"k{value}", str(value)))
            db.execute("COMMIT")
        assert not link.cut
        assert [row["value"] for row in db.execute("SELECT value FROM meta WHERE key LIKE 'k%' ORDER BY key")] == [
            "1",
            "2",
        ]
    link.close()


@pytest.mark.parametrize("text", ["a\0b", "\U0010fffd é", "x" * 100_000, "", "\\u0000"])
async def test_a_text_comes_back_as_it_was(database: str, tmp_path: Path, text: str) -> None:
    store = await Store.open(tmp_path, url=database)
    await put(store, "a", session=text, user=text, asked=text, typed=text)
    completion = await store.completions.get("a")
    assert completion is not None
    assert (completion.new.session, completion.new.user, completion.new.typed) == (text, text, text)
    assert [row.new.id for row in await store.completions.page(session=text)] == ["a"]
    await store.close()


async def test_names_longer_than_an_index_takes_are_stored(database: str, tmp_path: Path) -> None:
    store = await Store.open(tmp_path, url=database)
    name = os.urandom(20_000).hex()
    await put(store, "a", session=name, user=name)
    given = await store.ratings.rate(rating("a", rater=name, source_event_id=name))
    assert (await store.ratings.rate(rating("a", rater=name, source_event_id=name))).id == given.id
    await store.close()


async def test_the_search_knows_all_letters(database: str, tmp_path: Path) -> None:
    store = await Store.open(tmp_path, url=database)
    await store.completions.record([new("a", asked="Größe naïve"), new("b")], [end("a", text="Привет"), end("b")])
    for words, found in (("größe", ["a"]), ("NAIVE", ["a"]), ("прив", ["a"]), ("grün", []), ('"', []), ("o'x", [])):
        page = await store.inbox.page(CompletionQuery(search=words))
        assert [row.id for row in page.rows] == found, words
    await store.close()


async def test_two_relays_see_what_the_other_has_stored(database: str, tmp_path: Path) -> None:
    first = await Store.open(tmp_path / "1", url=database)
    second = await Store.open(tmp_path / "2", url=database)
    await put(first, "a")
    given = await second.ratings.rate(rating("a"))
    completion = await first.completions.get("a")
    assert completion is not None and [each.id for each in completion.ratings] == [given.id]
    assert (await first.ratings.rate(rating("a"))).duplicate
    await first.close()
    await second.close()


async def test_an_address_without_a_server_says_what_to_do_and_shows_no_password(tmp_path: Path) -> None:
    with pytest.raises(StoreAway, match=r"cannot be opened .* check store\.url") as caught:
        await Store.open(tmp_path, url="postgresql://me:hunter2@127.0.0.1:1/x")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(StoreError, match="not an address of PostgreSQL") as caught:
        await Store.open(tmp_path, url="mysql hunter2")
    assert "hunter2" not in str(caught.value)


async def test_a_wrong_password_is_said(postgres: PostgresServer, database: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="password authentication failed"):
        await Store.open(tmp_path, url=database.replace(postgres.password, "wrong"))


async def test_after_a_restart_of_the_server_all_goes_on(durable: PostgresServer, tmp_path: Path) -> None:
    store = await Store.open(tmp_path, url=durable.url(durable.create()))
    await put(store, "a")
    durable.kill()
    with pytest.raises(StoreAway):
        await store.meta.set("x", 1)
    with pytest.raises(StoreAway):
        await store.stats.counts()
    durable.start()
    await store.meta.set("x", 2)
    assert await store.meta.get("x") == 2
    assert await store.completions.get("a") is not None
    await store.close()


def test_the_server_gives_up_a_relay_that_is_cut_off(database: str) -> None:
    """`python -m scripts.chaos.cluster` cuts one off: without these another one learned after two hours."""
    names = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout")
    with closing(server.connect(database)) as connection:
        values = [connection.execute(f"SHOW {name}".encode()).fetchone() for name in names]
    assert [value[name] for value, name in zip(values, names, strict=True) if value is not None] == [
        "5", "2", "3", "10000",
    ]  # fmt: skip


def test_a_home_without_the_setting_loads_no_psycopg() -> None:
    code = "import store.store, sys; print([name for name in sys.modules if 'psycopg' in name])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
