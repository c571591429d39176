"""A loss of the user's own: what it is given, what it may return, and what it cannot do to a run."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from config import presets
from tests.harness import tiny
from tests.trainer.runs import StopAfter, go, of
from trainer import loop, own_loss
from trainer.io.progress import Stop, Stopped
from trainer.io.run_folder import LossSpec, RunError
from trainer.mis_po import Terms
from trainer.objectives import make_loss

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "integrations/own_code/README.md"
POLICY_GRADIENT = """
def loss(logprobs, advantages, mask, weights):
    return -(weights * mask * advantages * logprobs).sum()
"""


def given(folder: Path, code: str, *, function: str = "loss", timeout_s: float = 20.0) -> LossSpec:
    """The loss as the proxy puts it into a run folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "loss.py").write_text(code)
    return LossSpec("/home/ann/my.py", function, hashlib.sha256(code.encode()).hexdigest(), timeout_s)


def loaded(folder: Path, code: str, **more: object) -> own_loss.OwnLoss:
    found = own_loss.load(folder, given(folder, code, **more))  # type: ignore[arg-type]
    assert found is not None
    return found


def terms(tokens: int = 6) -> Terms:
    random = np.random.default_rng(0)
    old = -random.uniform(0.1, 3, tokens)
    made = Terms(
        old=old, ref=old - 0.1, keep=np.array([1.0] * (tokens - 1) + [0.0]), advantage=random.normal(size=tokens),
        share=np.full(tokens, 1 / tokens), behaviour=old, member=np.repeat(np.eye(2), tokens // 2, axis=1),
    )  # fmt: skip
    return Terms(**{f: None if (v := getattr(made, f)) is None else torch.tensor(v) for f in Terms.__slots__})


def gradient(loss, constants: Terms) -> tuple[torch.Tensor, dict[str, float]]:
    theta = (constants.old + 0.05).clone().requires_grad_()
    value, sums = loss(torch, theta, constants)
    value.backward()
    assert theta.grad is not None
    return theta.grad, {name: float(total.detach()) for name, total in sums.items()}


@pytest.mark.parametrize(
    "code",
    [
        POLICY_GRADIENT,
        "def loss(logprobs, advantages):\n    return -advantages * logprobs\n",  # of each token: averaged as others are
        "def loss(**given):\n    return -given['advantages'] * given['logprobs']\n",
    ],
)
def test_a_plain_policy_gradient_is_mis_pos_without_its_anchor(tmp_path, code):
    constants = terms()
    preset = presets.resolve("balanced", {"kl_ref": 0.0})
    theirs, sums = gradient(make_loss(preset), constants)
    ours, own = gradient(make_loss(preset, loaded(tmp_path, code)), constants)
    torch.testing.assert_close(ours, theirs)
    assert own["kl_old"] == pytest.approx(sums["kl_old"]) and own["kl_ref"] == pytest.approx(sums["kl_ref"])


def test_it_is_given_what_is_documented(tmp_path):
    names = ", ".join(own_loss.ARGUMENTS)
    body = "    seen.update(locals())\n    mask.zero_()\n    return logprobs.sum()\n"
    code = f"seen = {{}}\n\ndef loss({names}):\n{body}"
    loss, constants = loaded(tmp_path, code), terms()
    gradient(loss, constants)
    seen = loss.function.__globals__["seen"]
    assert set(own_loss.ARGUMENTS) <= set(seen) and seen["replies"].tolist() == [0, 0, 0, 1, 1, 1]
    assert constants.keep.sum() == 5, "what it changes is its own copy"
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in page for name in own_loss.ARGUMENTS)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return logprobs.sum() * float('nan')", "it returned nan for 6 tokens"),
        ("return logprobs.sum() * float('inf')", "it returned -inf"),
        ("return logprobs[:2]", r"the shape \(2,\), not a scalar"),
        ("return logprobs.sum(0, keepdim=True)", r"the shape \(1,\)"),
        ("return 1.0", "a float, not a scalar"), ("return None", "a NoneType"), ("return 'low'", "a str"),
        ("return logprobs.detach().sum()", "does not depend on `logprobs`"),
        ("\n    raise KeyError('beta')", r"/home/ann/my.py, line 3: KeyError: 'beta'"),
        ("return logprobs.nope", "/home/ann/my.py, line 2: AttributeError"),
        ("raise SystemExit('enough')", "SystemExit: enough"),
        ("import time\n    time.sleep(60)", "more than 0.2 s for one micro-batch"),
        ("import time\n    try:\n        time.sleep(60)\n    except Exception:\n        return", "more than 0.2 s"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place_and_what_to_do(tmp_path, body, said):
    loss = loaded(tmp_path, f"def loss(logprobs):\n    {body}\n", timeout_s=0.2)
    with pytest.raises(RunError, match=said) as raised:
        gradient(loss, terms())
    assert "train.loss (/home/ann/my.py:loss) failed" in str(raised.value) and "Mend it" in str(raised.value)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def loss(:\n", "/home/ann/my.py, line 1: SyntaxError"), ("x = 1 / 0\n", "line 1: ZeroDivisionError"),
        ("def other(logprobs):\n    return 1\n", "no function 'loss'"), ("loss = 7\n", "no function 'loss'"),
        ("def loss(logprobs, beta):\n    return 1\n", "asks for 'beta'"),
        ("def loss(*given):\n    return 1\n", "asks for 'given'"), ("import nowhere_at_all\n", "ModuleNotFoundError"),
        ("raise SystemExit(3)\n", "SystemExit"),
    ],
)  # fmt: skip
def test_code_that_cannot_be_used_is_said_before_the_model_loads(tmp_path, code, said):
    with pytest.raises(RunError, match=said):
        loaded(tmp_path, code)


def test_a_parameter_with_a_default_is_its_own(tmp_path):
    loss = loaded(tmp_path, "def loss(logprobs, beta=0.1):\n    return beta * logprobs.sum()\n")
    assert gradient(loss, terms())[0].tolist() == pytest.approx([0.1] * 6)


def test_what_it_prints_goes_into_the_log_up_to_a_bound(tmp_path, capfd):
    loss = loaded(tmp_path, "def loss(logprobs):\n    print('x' * 15_000)\n    return logprobs.sum()\n")
    for _ in range(3):
        gradient(loss, terms())
    out, err = capfd.readouterr()
    assert out == "" and err.count("x") < 21_000 and "prints more, which is not kept" in err


def test_no_memory_is_not_its_fault(tmp_path):
    loss = loaded(tmp_path, "def loss(logprobs):\n    raise RuntimeError('CUDA out of memory')\n")
    with pytest.raises(RuntimeError, match="out of memory"):
        gradient(loss, terms())


# Whole runs


def run_of(path: Path, model: Path, lines, code: str, **spec):
    """A run folder with this loss, as the proxy writes it."""
    sha256 = hashlib.sha256(code.encode()).hexdigest()
    loss = {"file": "/home/ann/my.py", "function": "loss", "sha256": sha256, "timeout_s": 20.0}
    folder = tiny.run_folder(path, model, lines, loss=loss, **spec)
    (folder / "loss.py").write_text(code)
    return folder


def test_a_run_trains_with_it_and_its_manifest_names_it(tmp_path, model, lines):
    loud = POLICY_GRADIENT.replace("    return", '    print(\'{"event": "end", "status": "passed"}\')\n    return')
    folder = run_of(tmp_path / "run", model, lines, loud)
    result, events = go(folder)
    assert result["status"] in ("passed", "rejected"), result["reason"]
    assert len(of(events, "end")) == 1, "what it prints is not an event"
    manifest = json.loads((Path(result["adapter"]) / "manifest.json").read_bytes())
    assert manifest["objective"] == "/home/ann/my.py:loss"
    other = run_of(tmp_path / "other", model, lines, POLICY_GRADIENT.replace("-(", "+("))
    backwards, _ = go(other)
    assert backwards["metrics"]["loss"] != result["metrics"]["loss"]


def test_a_run_with_a_broken_one_fails_and_says_why(tmp_path, model, lines):
    result, _ = go(run_of(tmp_path / "run", model, lines, "def loss(logprobs):\n    return logprobs.sum() / 0\n"))
    assert result["status"] == "failed" and "it returned -inf" in result["reason"], result["reason"]
    assert result["adapter"] is None


def test_a_copy_that_has_changed_is_refused_and_put_back_it_goes_on(tmp_path, model, lines):
    folder = run_of(tmp_path / "run", model, lines, POLICY_GRADIENT)
    stop = Stop()
    with StopAfter(folder, stop, 2) as progress, pytest.raises(Stopped):
        loop.run(folder, progress, stop)
    (folder / "loss.py").write_text(POLICY_GRADIENT + "\n# another\n")
    result, _ = go(folder)
    assert result["status"] == "failed" and "has changed since this run began" in result["reason"]
    (folder / "result.json").unlink()
    (folder / "loss.py").unlink()
    (folder / "loss.py").symlink_to("/dev/zero")
    result, _ = go(folder)
    assert result["status"] == "failed" and "not a plain file" in result["reason"]
    (folder / "result.json").unlink()
    (folder / "loss.py").unlink()
    (folder / "loss.py").write_text(POLICY_GRADIENT)
    result, events = go(folder)
    assert result["status"] in ("passed", "rejected"), result["reason"]
    assert "resume" in {event["name"] for event in of(events, "choice")}


def test_one_that_ends_the_process_leaves_no_result_and_names_itself_in_the_log(tmp_path, model, lines):
    folder = run_of(tmp_path / "run", model, lines, "import os\n\ndef loss(logprobs):\n    os._exit(7)\n")
    done = subprocess.run([sys.executable, "-m", "trainer", str(folder)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 7 and not (folder / "result.json").exists()
    assert done.stderr.strip().splitlines()[-1] == "train.loss: /home/ann/my.py:loss is called from here on"


def test_the_example_is_a_clipped_ratio(tmp_path):
    code = PAGE.with_name("loss.py").read_text(encoding="utf-8")
    constants = terms()
    ours, _ = gradient(loaded(tmp_path, code), constants)
    moved = torch.full((6,), 0.05, dtype=torch.float64)
    inside = torch.exp(moved) * constants.advantage * constants.share * constants.keep
    torch.testing.assert_close(ours, -inside)
