"""What all rooms' tests share: the small real model, a whole proxy, and no test that fails for a busy machine.

A fixture imports what it needs itself: tests of the trainer run without a proxy's packages, and load none of them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
import structlog

from scripts.harness import newer_schema
from scripts.harness.tiny_model import make_tiny_model
from tests.harness.older_home import older_home

if TYPE_CHECKING:
    from scripts.fakes.backend import FakeBackend
    from scripts.fakes.ollama import FakeOllama
    from scripts.harness.in_process import Proxy
    from scripts.harness.postgres import PostgresServer
    from store.store import Store
    from tests.harness.chats import Chats
    from tests.harness.held_checks import Held
    from tests.harness.s3_server import S3Server

EMPTY_DATABASE = "rlproxy_empty"  # with our tables; each test gets a copy
NO_PSYCOPG = "psycopg is not installed: `pip install 'rlproxy[postgres]'`"
HERE = Path(__file__).resolve().parent

hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")

# Folders of tests lie in memory where there is room: waiting for a disk's fsync was half of the time of most of them.
MEMORY = Path("/dev/shm")
if (
    MEMORY.is_dir()
    and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    and shutil.disk_usage(MEMORY).free > 4 * 2**30
    and os.access(MEMORY, os.W_OK)
):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# Errors are logged as `rlproxy serve` logs them: rich's tracebacks take a third of a second each.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)

# A shell that puts a job into the background has it ignore Ctrl-C, and so would every process that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def weights() -> Path:
    """The folder of the small real model; `scripts/test` has fetched it before."""
    from trainer.formats.weights import resolve

    return resolve().path


@pytest.fixture(scope="session", autouse=True)
def models_of_servers(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Model servers of tests keep their files among the tests' own: rlproxy opens what they name nowhere else."""
    os.environ["OLLAMA_MODELS"] = str(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session", autouse=True)
def databases_copied() -> Iterator[None]:
    """A new database is made at once, where any test here makes one."""
    if "store.store" not in sys.modules:
        yield
        return
    from tests.harness.new_databases import copied

    with copied():
        yield


@pytest.fixture(scope="session")
def tiny_weights(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(weights, tmp_path_factory.mktemp("tiny"))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    from store.store import Store

    opened = await Store.open(tmp_path)
    yield opened
    await opened.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server; the test is skipped where there are no binaries of one."""
    pytest.importorskip("psycopg_pool", reason=NO_PSYCOPG)
    from scripts.harness.postgres import LACKS, PostgresServer, find_binaries
    from store.postgres import schema
    from store.postgres.connection import PostgresConnection

    if (binaries := find_binaries()) is None:
        pytest.skip(LACKS)
    server = PostgresServer(binaries)
    try:
        server.start()
        server.execute(f"CREATE DATABASE {EMPTY_DATABASE}")
        with closing(PostgresConnection(server.url(EMPTY_DATABASE))) as db:
            schema.migrate(db)
        yield server
    finally:
        server.close()


@pytest.fixture
def durable() -> Iterator[PostgresServer]:
    """A server of the test's own, which may be killed: it waits for its disk."""
    pytest.importorskip("psycopg_pool", reason=NO_PSYCOPG)
    from scripts.harness.postgres import LACKS, PostgresServer, find_binaries

    if (binaries := find_binaries()) is None:
        pytest.skip(LACKS)
    server = PostgresServer(binaries, durable=True)
    server.start()
    yield server
    server.close()


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    """The address of a database with our tables and nothing in them."""
    name = postgres.create(EMPTY_DATABASE)
    yield postgres.url(name)
    postgres.drop(name)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """Checks of a database, which wait."""
    from tests.harness.held_checks import Held

    held = Held(monkeypatch)
    yield held
    held.go.set()


@pytest.fixture
async def backend() -> AsyncIterator[FakeBackend]:
    from scripts.fakes.backend import FakeBackend

    fake = FakeBackend()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def ollama(tmp_path: Path) -> AsyncIterator[FakeOllama]:
    """A newcomer's, with a model that tells what it was made from."""
    from scripts.fakes.ollama import FakeOllama
    from tests.harness.newcomer import LLAMA

    fake = FakeOllama(tmp_path / "ollama")
    fake.about = LLAMA
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def proxy(tmp_path: Path, backend: FakeBackend) -> AsyncIterator[Proxy]:
    """On loopback, with a fake backend and a fake trainer behind it."""
    from scripts.fakes.launcher import FakeLauncher
    from scripts.harness.in_process import Proxy

    proxy = Proxy(tmp_path / "home", backend, FakeLauncher())
    await proxy.start()
    yield proxy
    await proxy.stop()


@pytest.fixture
async def cli(proxy: Proxy) -> Proxy:
    """A proxy that commands of the same home find."""
    from proxy.core.address_file import ADDRESS_FILE

    (proxy.home / ADDRESS_FILE).write_text(json.dumps({"url": proxy.url, "pid": os.getpid()}))
    return proxy


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there is found however busy the machine is; what is not there is soon given up."""
    import aiohttp

    monkeypatch.setattr("proxy.feedback.webhooks.resolve.WAIT_S", 0.3)
    monkeypatch.setattr("proxy.feedback.webhooks.links.WAIT_S", 0.3)
    monkeypatch.setattr("proxy.feedback.webhooks.routes.BUDGET_S", 60.0)
    monkeypatch.setattr("proxy.feedback.webhooks.fetch_text.TIMEOUT", aiohttp.ClientTimeout(total=60))


@pytest.fixture
async def chats(proxy: Proxy, unhurried: None) -> AsyncIterator[Chats]:
    """The proxy with every platform configured, and the platforms' own APIs behind it."""
    from scripts.fakes.platforms.chat_platforms import FakeChatPlatforms
    from tests.harness.chats import Chats, settings_of_platforms

    platforms = FakeChatPlatforms()
    await platforms.start()
    proxy.flags |= settings_of_platforms(platforms.url)
    await proxy.stop()
    await proxy.start()
    yield Chats(proxy, platforms)
    await platforms.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole systems first: these files take longest, and nobody should wait for the last of them alone."""
    items.sort(
        key=lambda item: 0 if item.path.is_relative_to(HERE / "scripts") else len(item.path.relative_to(HERE).parts)
    )


@pytest.fixture
def newest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The number of the store's schema, which is newer than the product's in this test."""
    with newer_schema.installed(newer_schema.write(tmp_path_factory.mktemp("newer") / "migrations")) as number:
        yield number


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """The database of a home that an earlier rlproxy left; a test names it before `newest`."""
    return older_home(tmp_path / "home")


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """S3 on loopback, with an empty bucket; this process has its credentials."""
    from tests.harness.s3_server import S3Server

    server = S3Server()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    server.create()
    yield server
    server.stop()
