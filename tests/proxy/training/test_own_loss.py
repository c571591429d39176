"""A loss of the user's own, as the proxy hands it to a run."""

from __future__ import annotations

import hashlib
from pathlib import Path

import orjson
import pytest

from config.errors import SettingsError
from config.settings import load
from scripts.harness.in_process import Proxy
from tests.harness.runs import until
from trainer.io.run_folder import read_spec

CODE = b"def loss(logprobs, advantages):\n    return -advantages * logprobs\n"


async def rated(proxy: Proxy, count: int = 4) -> None:
    for at in range(count):
        await proxy.chat(f"{at}")
        await proxy.rate(completion_id="last", rating="good" if at % 2 else "bad")


async def test_a_run_gets_a_copy_and_says_which(proxy: Proxy, tmp_path: Path) -> None:
    file = tmp_path / "my.py"
    file.write_bytes(CODE)
    await proxy.stop()
    await proxy.start(train__loss=f"{file}:loss", train__loss_timeout_s=5)
    await rated(proxy)
    await until(proxy, live=1)
    (folder,) = proxy.launcher.started
    hash = hashlib.sha256(CODE).hexdigest()
    assert (folder / "loss.py").read_bytes() == CODE
    spec = orjson.loads((folder / "run.json").read_bytes())
    assert spec["loss"] == {"file": str(file), "function": "loss", "sha256": hash, "timeout_s": 5.0}
    assert {"name": "train.loss", "value": hash, "why": f"the sha256 of {file}"} in spec["choices"]
    found = read_spec(folder).loss
    assert found is not None and found.name == f"{file}:loss"


async def test_without_its_file_nothing_trains_and_the_status_says_why(proxy: Proxy, tmp_path: Path) -> None:
    file = tmp_path / "my.py"
    await proxy.stop()
    await proxy.start(train__loss=f"{file}:loss")
    await rated(proxy)
    assert "train.loss" in (await proxy.get("/rl/status"))["training"]["waits_for"]
    status, said = await proxy.post("/rl/train")
    assert status == 409 and "No such file" in said["error"]["message"]
    assert (await proxy.get("/rl/status"))["ratings"]["fresh"] == 4
    file.mkdir()
    assert "Is a directory" in (await proxy.get("/rl/status"))["training"]["waits_for"]
    file.rmdir()
    file.write_bytes(CODE)
    await proxy.post("/rl/train")  # unless one has begun by itself
    await until(proxy, live=1)


@pytest.mark.parametrize("wrong", ["my.py", "my.txt:loss", "my.py:1oss", ":loss", "my.py:"])
def test_a_setting_that_names_no_function_is_refused(wrong: str) -> None:
    for setting in ("train.loss", "train.reward"):
        with pytest.raises(SettingsError, match="a Python file and a function in it"):
            load({setting: wrong}, environ={})
