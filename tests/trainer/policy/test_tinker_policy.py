"""Steps taken by a Tinker server: its gradient is ours, and a run there is stopped, tried again, and gone on from.

The client is the real `tinker` package, the server a fake with a real model. With OPEN_RL naming a checkout of
gke-labs/open-rl (and a client of 0.18, which speaks JSON as that server does), the same gradient comes from there.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from config import presets
from scripts.fakes.tinker import FakeTinker
from tests.harness import tinker_server, tiny
from tests.trainer.runs import StopAfter, of, tensors
from trainer import loop, objectives
from trainer.formats.manifest import verify
from trainer.io.progress import Progress, Stop, Stopped
from trainer.io.run_folder import RunError
from trainer.mis_po import Terms
from trainer.policy import packing
from trainer.policy.packing import Packed, Tokens
from trainer.policy.policy import Policy

pytestmark = [
    pytest.mark.scale,
    pytest.mark.skipif(tinker_server.lacks() is not None, reason=str(tinker_server.lacks())),
    pytest.mark.filterwarnings("ignore"),  # the package's own
]
if tinker_server.lacks() is None:
    from trainer.policy.tinker_client import TinkerClient, TinkerServer
    from trainer.policy.tinker_policy import ORIGIN, TinkerPolicy

PRESET = presets.resolve("balanced", {"rank": 4, "objective": "mis-po-tokens"})
CLOSE = 1e-5


@pytest.fixture
def server(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTinker]:
    monkeypatch.setenv("TINKER_API_KEY", "tml-a-key")
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    thread = tinker_server.TinkerThread(model, tmp_path / "server", key="tml-a-key")
    yield thread.start()
    thread.stop()


def samples(seed: int = 0, temperature: float = 1.0) -> Packed:
    rng = np.random.default_rng(seed)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(int(i) for i in rng.integers(3, 250, count))

    return packing.pack([Tokens(ids(int(n)), ids(int(t)), temperature) for n, t in ((5, 9), (12, 4), (3, 15), (7, 1))])


def terms(packed: Packed, old: Any, ref: Any, seed: int = 1) -> Terms:
    """As a run makes them: likes and dislikes, and tokens that the filter dropped."""
    rng, n = np.random.default_rng(seed), len(packed.target)
    share = np.repeat([1 / (4 * length) for length in packed.lengths], packed.lengths)
    advantage = np.repeat([1.0, -1.0, 0.7, -0.4], packed.lengths)
    keep = (rng.random(n) > 0.2).astype(np.float64)
    return Terms(old=old, ref=ref, keep=keep, advantage=advantage, share=share, is_own=np.ones(n))


def ours(policy: Policy, packed: Packed, constants: Terms) -> dict[str, Any]:
    policy.backward(packed, constants, objectives.make_loss(PRESET))
    grads: dict[str, Any] = {name: p.grad.numpy().copy() for name, p in policy.trained.items()}  # type: ignore[attr-defined]
    return grads


def open_there(server: TinkerServer, model: Path, folder: Path, parent: Path | None = None) -> TinkerPolicy:
    folder.mkdir(parents=True, exist_ok=True)
    return TinkerPolicy(model, PRESET, server=server, run_folder=folder, parent=parent, threads=1, seed=3)


def distance(first: dict[str, Any], second: dict[str, Any]) -> float:
    """The largest difference, over the largest entry."""
    assert first.keys() == second.keys()
    largest = max(float(np.abs(value).max()) for value in second.values())
    assert largest > 0
    return max(float(np.abs(first[name] - second[name]).max()) for name in first) / largest


@pytest.mark.parametrize("moved", [False, True], ids=["at the start", "after two steps"])
def test_its_gradient_is_ours(server: FakeTinker, model: Path, tmp_path: Path, moved: bool) -> None:
    there = open_there(TinkerServer(server.url, str(model)), model, tmp_path / "run")
    packed = samples()
    local = tiny.TorchPolicy(model, PRESET, parent=tmp_path / "run" / "tinker" / "start", threads=1, seed=0)
    old = local.log_probs(packed).plain
    with local.wearing(None):
        ref = local.log_probs(packed).plain
    nothing = np.zeros(len(packed.target))
    for _ in range(2 if moved else 0):
        there.backward(packed, terms(packed, nothing, nothing), objectives.make_loss(PRESET))
        assert np.isfinite(there.step(1e-2, 1.0))
    local.wear(there.adapter())
    if moved:
        assert float(np.abs(local.log_probs(packed).plain - old).max()) > 0.05, "it has moved"
    expected = ours(local, packed, terms(packed, old, ref))
    sums = there.backward(packed, terms(packed, nothing, nothing), objectives.make_loss(PRESET))  # its own ℓ_old, ℓ_ref
    of_each = [
        {name: np.zeros(p.shape) if p.grad is None else p.grad.numpy() for name, p in trained.trained.items()}
        for trained in server.models.values()
    ]
    (grads,) = [grads for grads in of_each if any(grad.any() for grad in grads.values())]  # of the one that trains
    gap = distance(grads, expected)
    print(f"gradient, largest difference over largest entry: {gap:.2e}; kl_ref {sums['kl_ref']:.3f}")
    assert gap <= CLOSE


def test_a_gradient_that_was_left_behind_is_not_added(server: FakeTinker, model: Path, tmp_path: Path) -> None:
    """A run that moved too far goes back before it steps; its next try begins anew."""
    there = open_there(TinkerServer(server.url, str(model)), model, tmp_path / "run")
    packed, start = samples(), there.adapter()
    nothing = np.zeros(len(packed.target))
    loss = objectives.make_loss(PRESET)
    there.backward(packed, terms(packed, nothing, nothing), loss)
    there.step(1e-2, 1.0)
    once = there.adapter()
    there.backward(packed, terms(packed, nothing, nothing), loss)  # and no step
    there.wear(start)
    there.restore({})
    there.backward(packed, terms(packed, nothing, nothing), loss)
    there.step(1e-2, 1.0)
    assert distance(there.adapter(), once) <= CLOSE
    there.wear({name: (start[name] + once[name]) / 2 for name in once})
    with pytest.raises(RunError, match="does not have the adapter that is worn here"):
        there.backward(packed, terms(packed, nothing, nothing), loss)


def test_a_norm_that_is_not_told(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-a-key")
    thread = tinker_server.TinkerThread(model, tmp_path / "server", tells_norm=False)
    try:
        there = open_there(TinkerServer(thread.start().url, str(model)), model, tmp_path / "run")
        packed = samples()
        nothing = np.zeros(len(packed.target))
        there.backward(packed, terms(packed, nothing, nothing), objectives.make_loss(PRESET))
        assert 0 < there.step(1e-3, 1.0) < np.inf
    finally:
        thread.stop()


# --- whole runs ---------------------------------------------------------------------------------------------------


def go(folder: Path, server: FakeTinker, model: Path, stop: Stop | None = None) -> tuple[Any, list[dict[str, Any]]]:
    out = io.StringIO()
    with Progress(folder, out) as progress:
        result = loop.run(folder, progress, stop or Stop(), tinker=TinkerServer(server.url, str(model), progress.alive))
    return result, [json.loads(line) for line in out.getvalue().splitlines()]


def choices(events: list[dict[str, Any]]) -> dict[str, Any]:
    return {event["name"]: event["value"] for event in of(events, "choice")}


def second(path: Path, model: Path, lines: Any, first: Path) -> Path:
    spec = {"version": 2, "parent": 1, "adapters": {"1": str(first)}, "out": str(path / "out" / "v0002")}
    return tiny.run_folder(path / "run2", model, lines, run=2, **spec)


def test_a_run_and_the_next(server: FakeTinker, model: Path, lines: Any, tmp_path: Path) -> None:
    folder = tiny.run_folder(tmp_path / "run1", model, lines)
    result, events = go(folder, server, model)
    assert result["status"] == "passed", result["reason"]
    out = Path(result["adapter"])
    assert verify(out)["objective"] == "mis-po-tokens" and (out / ORIGIN).is_file()
    assert choices(events)["tinker"] == server.url and choices(events)["framework"] == "torch"
    assert of(events, "gate"), "judged here"
    stepped = [body for name, body in server.calls if name == "optim_step"]
    assert len(stepped) == int(result["metrics"]["steps"]) and all(
        body["adam_params"]["grad_clip_norm"] for body in stepped
    )
    back = load_file(out / "adapter_model.safetensors")
    assert any(np.abs(value).max() > 0 for name, value in back.items() if "lora_B" in name), "it learned something"

    later, events = go(
        second(tmp_path, model, tiny.sample_lines(model, version=1, adapter=out, seed=1), out), server, model
    )
    assert later["status"] in ("passed", "rejected"), later["reason"]
    origin = json.loads((out / ORIGIN).read_text())["state"]
    assert any(name == "load_weights" and body["path"] == origin for name, body in server.calls), "from v1's own state"


def test_a_stopped_run_goes_on_as_if_nothing_had_happened(
    server: FakeTinker, model: Path, lines: Any, tmp_path: Path
) -> None:
    whole = tiny.run_folder(tmp_path / "whole" / "run1", model, lines)
    expected, _ = go(whole, server, model)
    folder, stop = tiny.run_folder(tmp_path / "stopped" / "run1", model, lines), Stop()
    with StopAfter(folder, stop, 1) as progress, pytest.raises(Stopped):
        loop.run(folder, progress, stop, tinker=TinkerServer(server.url, str(model)))
    result, events = go(folder, server, model)
    assert choices(events)["resume"] == 1 and result["status"] == expected["status"] == "passed"
    assert distance(dict(tensors(Path(result["adapter"]))), dict(tensors(Path(expected["adapter"])))) <= CLOSE


def test_a_second_try_begins_at_the_start(server: FakeTinker, model: Path, lines: Any, tmp_path: Path) -> None:
    gate = tiny.LOOSE | {"base_nll_rise": -1.0}
    folder = tiny.run_folder(tmp_path / "run1", model, lines, gate=gate)
    result, events = go(folder, server, model)
    assert result["status"] == "rejected" and result["retried"] and result["back"] is None, "no half way there"
    assert [event.get("again") is not None for event in of(events, "phase") if event["phase"] == "train"] == [
        False,
        True,
    ]
    assert any(name == "load_weights" and body["path"].endswith("-start") for name, body in server.calls)


def test_comments_teach_nothing_there_and_the_run_says_so(
    server: FakeTinker, model: Path, lines: Any, tmp_path: Path
) -> None:
    commented = [line | {"comment": "Say it in capitals."} if line["reward"] < 0 else line for line in lines]
    _, events = go(tiny.run_folder(tmp_path / "run1", model, commented), server, model)
    assert any("teach nothing" in event["message"] for event in of(events, "warning"))


@pytest.mark.parametrize("call", ["create_model", "forward_backward", "optim_step", "save_weights_external"])
def test_what_the_server_refuses_fails_the_run_in_words(
    server: FakeTinker, model: Path, lines: Any, tmp_path: Path, call: str
) -> None:
    server.refuses = {call}
    result, _ = go(tiny.run_folder(tmp_path / "run1", model, lines), server, model)
    assert (
        result["status"] == "failed"
        and server.url in result["reason"]
        and f"{call} is out of order" in result["reason"]
    )


def test_a_version_from_elsewhere_is_not_gone_on_from(
    server: FakeTinker, model: Path, lines: Any, first: Path, tmp_path: Path
) -> None:
    result, _ = go(second(tmp_path, model, lines, first), server, model)
    assert result["status"] == "failed" and "takes no adapter from outside" in result["reason"]
    assert "rlproxy reset" in result["reason"] and not server.models


# --- a server that others wrote -----------------------------------------------------------------------------------


@pytest.fixture
def open_rl(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TinkerServer]:
    """Its own LoRA dropout of 0.05 is off: with it no two gradients are equal."""
    checkout = os.environ.get("OPEN_RL")
    if not checkout:
        pytest.skip("OPEN_RL names no checkout of gke-labs/open-rl")
    monkeypatch.setenv("TINKER_API_KEY", "tml-dummy-key")
    script = (
        "import sys, trainer, uvicorn;"
        "trainer.LoraConfig.model_fields['lora_dropout'].default = 0.0; trainer.LoraConfig.model_rebuild(force=True);"
        "uvicorn.run('gateway:app', host='127.0.0.1', port=int(sys.argv[1]), log_level='warning')"
    )
    source = Path(checkout) / "src" / "server"
    port = 18200 + os.getpid() % 500
    environment = {
        **os.environ,
        "BASE_MODEL": str(model),
        "OPEN_RL_TMP_DIR": str(tmp_path / "open-rl"),
        "PYTHONPATH": str(source),
    }
    command = [sys.executable, "-c", script, str(port)]
    with (tmp_path / "open-rl.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=source, env=environment, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert process.poll() is None, (tmp_path / "open-rl.log").read_text()[-3000:]
            try:
                with urllib.request.urlopen(f"{url}/api/v1/healthz", timeout=1):
                    break
            except OSError:
                time.sleep(0.2)
        yield TinkerServer(url, str(model))
    finally:
        process.kill()
        process.wait()


def gradient_by_a_step(client: TinkerClient, before: dict[str, Any], folder: Path) -> dict[str, Any]:
    """No server tells its gradient, but a step of AdamW does: with an ε far above it, the step is rate/ε times it."""
    huge = 1e6
    parameters = client._tinker.types.AdamParams(learning_rate=huge, eps=huge, grad_clip_norm=0.0)
    client._wait(client._client.optim_step(parameters))
    client.fetch("after", client.save("after"), folder)
    after = load_file(folder / "adapter_model.safetensors")
    return {name: before[name] - value for name, value in after.items()}


def test_the_gradient_of_open_rl_is_ours(open_rl: TinkerServer, model: Path, tmp_path: Path) -> None:
    there = open_there(open_rl, model, tmp_path / "run")
    start = tmp_path / "run" / "tinker" / "start"
    packed = samples()
    local = tiny.TorchPolicy(model, PRESET, parent=start, threads=1, seed=0)
    plain = local.log_probs(packed).plain
    expected = ours(local, packed, terms(packed, plain, plain))
    nothing = np.zeros(len(packed.target))
    there.backward(packed, terms(packed, nothing, nothing), objectives.make_loss(PRESET))
    grads = gradient_by_a_step(there._remote, load_file(start / "adapter_model.safetensors"), tmp_path / "after")
    named = {name.replace(".default.", "."): value for name, value in expected.items()}
    gap = distance(grads, named)
    print(f"gradient of open-rl, largest difference over largest entry: {gap:.2e}")
    assert gap <= CLOSE


def test_a_run_at_open_rl(open_rl: TinkerServer, model: Path, lines: Any, tmp_path: Path) -> None:
    out = io.StringIO()
    folder = tiny.run_folder(tmp_path / "run1", model, lines)
    with Progress(folder, out) as progress:
        result = loop.run(folder, progress, Stop(), tinker=open_rl)
    assert result["status"] == "passed", result["reason"]
    assert torch.isfinite(torch.tensor(result["metrics"]["kl_ref"])) and verify(Path(result["adapter"]))["run"] == 1
