"""How a server was started, read from real processes' command lines."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from proxy.cli.init.commands import argument, option
from proxy.cli.init.discovery import ListedModel, look
from scripts.fakes.llamacpp import FakeLlama
from scripts.fakes.mlx import FakeMlx


@asynccontextmanager
async def running(*line: str) -> AsyncIterator[None]:
    """A process with these words in its command line."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)", *line, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()
    try:
        yield
    finally:
        process.kill()
        await process.wait()


async def test_the_model_of_mlx_and_the_file_of_a_router(tmp_path: Path) -> None:
    presets = tmp_path / "presets.ini"
    presets.write_text("[a]\nmodel = a.gguf\n")
    mlx, router = FakeMlx(), FakeLlama(presets)
    await mlx.start()
    await router.start()
    ports = [server.url.rpartition(":")[2] for server in (mlx, router)]
    try:
        async with (
            running("mlx_lm.server", "--model", "mlx-community/Qwen3-8B-4bit", f"--port={ports[0]}"),
            running("llama-server", "--models-preset", str(presets), "--port", ports[1]),
        ):
            one, two = await look([mlx.url, router.url])
        assert one.models == (ListedModel("mlx-community/Qwen3-8B-4bit"),) and not one.note
        assert two.presets == str(presets) and not two.note
        (one,) = await look([mlx.url])
        assert one.models == () and one.note
    finally:
        await mlx.stop()
        await router.stop()


async def test_another_port_another_program_another_machine() -> None:
    async with running("mlx_lm.server", "--model", "m", "--port", "4711"):
        assert option("http://127.0.0.1:4711", "mlx_lm", "--model") == "m"
        assert option("http://127.0.0.1:4712", "mlx_lm", "--model") is None
        assert option("http://127.0.0.1:4711", "llama-server", "--model") is None
        assert option("http://10.0.0.7:4711", "mlx_lm", "--model") is None


def test_arguments() -> None:
    assert argument(["x", "--port", "1"], "--port") == argument(["--port=1"], "--port") == "1"
    assert argument(["x", "--port"], "--port") is None and argument([], "--port") is None
