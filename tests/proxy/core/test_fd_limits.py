"""Out of file descriptors, with a real process: what has begun goes on, who comes waits or is told, all recovers."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
from pathlib import Path

import aiohttp
import psutil

from scripts.fakes.backend import MODEL, FakeBackend
from scripts.harness.serving import Serving

ENOUGH_S = 60.0


async def asked(url: str, said: str) -> tuple[int, bytes]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": said}], "stream": True}
    timeout = aiohttp.ClientTimeout(total=ENOUGH_S)
    async with aiohttp.ClientSession(timeout=timeout) as http, http.post(url, json=body) as response:
        return response.status, await response.read()


async def test_out_of_file_descriptors(tmp_path: Path) -> None:
    backend = FakeBackend()
    backend.pause_s = 0.25
    await backend.start()
    flags = ("--backend", "openai", "--backend-url", backend.url, "--model", MODEL)
    served = Serving(tmp_path / "home", tmp_path / "no-weights", *flags)
    await served.start()
    pid = served.process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    try:
        await served.status()  # on a connection that stays
        body = {"model": MODEL, "messages": [{"role": "user", "content": "a b c d e f g h"}], "stream": True}
        streams = [await served.http.post("/v1/chat/completions", json=body) for _ in range(3)]
        await served.status()
        short = psutil.Process(pid).num_fds() + 1  # room for a client, none for its way to the backend
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (short, limits[1]))

        url = f"{served.url}/v1/chat/completions"
        late = [asyncio.create_task(asked(url, f"late {n}")) for n in range(4)]
        async with asyncio.timeout(ENOUGH_S):
            while "file descriptors are in use" not in ((await served.status())["problem"] or ""):
                await asyncio.sleep(0.05)
        for stream in streams:
            assert (await stream.read()).endswith(b"data: [DONE]\n\n")
        statuses = [status for status, _ in await asyncio.gather(*late)]  # each in its turn: nobody hangs
        assert set(statuses) <= {200, 503}

        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        assert (await asked(url, "after"))[0] == 200
        assert (await served.status())["counts"]["done"] == 4 + statuses.count(200)
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        assert await served.stop() == 0, served.log
        await backend.stop()
    assert served.log.count("out of file descriptors") >= 1


async def no_way_is_open(pid: int, backend: FakeBackend) -> None:
    """A connection that was used a moment ago is kept for the next request, which then needs no file."""
    port = int(backend.url.rpartition(":")[2])
    async with asyncio.timeout(ENOUGH_S):
        while any(one.raddr and one.raddr.port == port for one in psutil.Process(pid).net_connections("tcp")):
            await asyncio.sleep(0.05)


def lowest_free(pid: int) -> int:
    """The number that its next file would have: with this as the limit it opens none."""
    taken = {int(fd.name) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    return next(number for number in range(len(taken) + 1) if number not in taken)


async def test_who_finds_no_way_to_the_backend_is_told_why(tmp_path: Path) -> None:
    backend = FakeBackend()
    await backend.start()
    flags = ("--backend", "openai", "--backend-url", backend.url, "--model", MODEL)
    served = Serving(tmp_path / "home", tmp_path / "no-weights", *flags)
    await served.start()
    pid = served.process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    try:
        await served.status()
        await no_way_is_open(pid, backend)
        await served.status()  # on a connection that stays
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest_free(pid), limits[1]))
        body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
        async with served.http.post("/v1/chat/completions", json=body) as response:
            error = (await response.json())["error"]
            assert (response.status, error["code"]) == (503, "out_of_files") and response.headers["retry-after"]
            assert "ulimit -n" in error["message"] and str(limits[0]) not in error["message"]
        assert "file descriptors are in use" in (await served.status())["problem"]
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        assert (await served.chat("again", model=MODEL))[0]["choices"]
        assert (await served.status())["counts"] | {"captured_today": 0} == {
            "pending": 0, "done": 1, "partial": 0, "error": 1, "good": 0, "bad": 0, "captured_today": 0,
        }  # fmt: skip
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        assert await served.stop() == 0, served.log
        await backend.stop()


def test_as_many_as_the_system_allows() -> None:
    code = "import resource as r; from proxy.core.sharing.fd_limits import raise_limit\n"
    code += "h = r.getrlimit(r.RLIMIT_NOFILE)[1]\n"
    code += "r.setrlimit(r.RLIMIT_NOFILE, (64, h)); raise_limit()\n"
    code += "print(r.getrlimit(r.RLIMIT_NOFILE)[0] == min(h, 65536))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


async def test_who_only_connects_keeps_nobody_out(tmp_path: Path) -> None:
    """Far more connections than there are descriptors, none of which asks anything, and half a head on each."""
    backend = FakeBackend()
    await backend.start()
    flags = ("--backend", "openai", "--backend-url", backend.url, "--model", MODEL)
    served = Serving(tmp_path / "home", tmp_path / "no-weights", *flags)
    await served.start()
    pid = served.process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    host, port = served.url.removeprefix("http://").split(":")
    writers: list[asyncio.StreamWriter] = []
    backend.hold.clear()
    asking = asyncio.create_task(served.chat("since before they came", model=MODEL))
    try:
        async with asyncio.timeout(ENOUGH_S):
            while not backend.requests:
                await asyncio.sleep(0.01)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (256, limits[1]))
        for _ in range(600):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\n")
            writers.append(writer)
            if len(writers) % 100 == 0:  # anybody else is let in meanwhile
                assert (await asked(f"{served.url}/rl/keys", "x"))[0] == 400
        backend.hold.set()
        assert (await asking)[0]["choices"], "what is under way goes on"
        async with asyncio.timeout(ENOUGH_S):
            while psutil.Process(pid).num_fds() > 128:
                await asyncio.sleep(0.05)
    finally:
        backend.hold.set()
        for writer in writers:
            writer.transport.abort()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        assert await served.stop() == 0, served.log
        await backend.stop()
