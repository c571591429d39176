"""Would a run take answers about pictures? What the weights say to them, before anybody has rated."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from scripts.models import tiny_seeing
from tests.harness import seeing, tiny
from trainer import probe

RED = seeing.pictures_of_lines()[0]


@pytest.fixture(scope="module", params=sorted(tiny_seeing.KINDS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seeing.make(request.param, tmp_path_factory.mktemp("models") / request.param)


def lines(model: Path, shift: float = 0.0) -> list[dict[str, Any]]:
    """Unrated answers about a picture; the server's log-probs are `shift` nats off."""
    made = [seeing.line(model, n, (RED,), 0.0) for n in range(20, 26)]
    return [line | {"logprobs": [min(value - shift, 0.0) for value in line["logprobs"]]} for line in made]


def look(model: Path, lines: list[dict[str, Any]], *, score: bool = True) -> dict[str, Any]:
    pictures = {seeing.name_of(RED): base64.b64encode(RED).decode()}
    return probe.look(model, [], threads=1, score=score, lines=lines, pictures=pictures)


def test_those_that_train_are_taken(model: Path) -> None:
    found = look(model, lines(model))
    assert found["refused"] == [None] * 6 and found["doubt"] is None


def test_a_server_that_shows_pictures_otherwise_is_seen_by_its_log_probs(model: Path) -> None:
    found = look(model, lines(model, shift=0.8))
    assert all("nats a token from the weights'" in reason for reason in found["refused"]), found["refused"]


def test_and_by_its_tokens_without_any_weights(model: Path) -> None:
    odd = lines(model)
    for line in odd[:3]:
        line["prompt_token_ids"].remove(seeing.reference(model).replaced)
    found = look(model, odd, score=False)
    assert all("the server read other tokens for picture 1 of 1" in reason for reason in found["refused"][:3])
    assert found["refused"][3:] == [None] * 3


def test_a_model_that_reads_text_alone_says_so(tmp_path: Path) -> None:
    model = tiny.make_model(tmp_path / "model")
    found = look(model, [line | {"messages": seeing.question(RED)} for line in tiny.sample_lines(model)], score=False)
    assert all("no processor that reads pictures" in reason for reason in found["refused"])
