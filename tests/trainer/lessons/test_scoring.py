"""The passes without a gradient, on a tiny model: each token is read once, whoever asks."""

from pathlib import Path

import numpy as np
import pytest

from tests.harness import tiny
from trainer.io.cache import Cache
from trainer.io.progress import Stop
from trainer.io.run_folder import RunSpec
from trainer.lessons import scoring
from trainer.lessons.scoring import Scorer
from trainer.policy.packing import Tokens

REPLIES = [Tokens((1, 50, 60), (70, 80, 90, 2), 0.8), Tokens((1, 51), (71, 2)), Tokens((1, 50, 60), (70, 81, 2), 0.8)]
LEFT = Tokens((1, 52, 53), (72, 73, 2), 0.5)


@pytest.fixture
def policy(tmp_path):
    return tiny.policy(tiny.make_model(tmp_path / "tiny"))


def scorer(policy, folder, parent=0):
    spec = RunSpec(1, "tiny", "tiny", parent + 1, parent, Path("new"), {parent: Path("old")} if parent else {})
    return Scorer(policy, spec, Cache(folder), Stop())


def counted(policy, monkeypatch):
    """Tokens of replies that the model's body was run for."""
    body, read = policy._hidden, []

    def hidden(packed, **given):
        read.append(len(packed.target))
        return body(packed, **given)

    monkeypatch.setattr(policy, "_hidden", hidden)
    return read


def expected(policy, folder, also):
    """Each computed by itself."""
    alone = scorer(policy, folder)
    told = alone.expect(REPLIES, 8, required_ids=also)
    return alone.score_old([*REPLIES, LEFT]), alone.states(REPLIES), told


def test_what_is_read_once_is_not_read_again(policy, tmp_path, monkeypatch):
    plain, states, told = expected(policy, tmp_path / "alone", [7])
    read, made = counted(policy, monkeypatch), scorer(policy, tmp_path / "made")
    for one, other in zip(made.score_old([*REPLIES, LEFT], remember=REPLIES), plain, strict=True):
        for mine, theirs in zip(one, other, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-5)
    assert sum(read[:-1]) == sum(len(one.reply) + 1 for one in REPLIES)  # and after the last token
    assert read[-1] == len(LEFT.reply)
    read.clear()
    for mine, theirs in zip(made.states(REPLIES), states, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
    again = made.expect(REPLIES, 8, required_ids=[7])
    for mine, theirs in zip(again, told, strict=True):
        assert (mine.ids[:, 0] == 7).all()
        np.testing.assert_allclose(mine.log_probs, theirs.log_probs, atol=1e-5)
    # A run that goes on has these in its folder, and reads for the states alone: the same ones to the last bit.
    goes_on = scorer(policy, tmp_path / "made")
    goes_on.score_old([*REPLIES, LEFT], remember=REPLIES)
    assert sum(read) == sum(len(one.reply) + 1 for one in REPLIES)
    for mine, theirs in zip(goes_on.states(REPLIES[1:]), made.states(REPLIES)[1:], strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_the_base_is_not_taken_for_the_parent(policy, tmp_path):
    policy.wear({name: tensor + 0.1 for name, tensor in policy.adapter().items()})
    made = scorer(policy, tmp_path, parent=1)
    before = made.score_reference(REPLIES)
    made.score_old(REPLIES, remember=REPLIES)
    again = scorer(policy, tmp_path / "again", parent=1)
    again.known_states.update(made.known_states)
    for one, other in zip(again.score_reference(REPLIES), before, strict=True):
        assert one.plain.tolist() == other.plain.tolist()
    assert not np.allclose(again.score_old(REPLIES, remember=REPLIES)[0].plain, before[0].plain, atol=1e-3)


def test_past_what_may_be_remembered_it_is_read_again(policy, tmp_path, monkeypatch):
    plain, states, _ = expected(policy, tmp_path / "alone", ())
    made = scorer(policy, tmp_path / "made")
    monkeypatch.setattr(scoring, "REMEMBERED", states[0].nbytes + 1)
    for one, other in zip(made.score_old([*REPLIES, LEFT], remember=REPLIES), plain, strict=True):
        np.testing.assert_allclose(one.plain, other.plain, atol=1e-5)
    assert len(made.known_states) == 1
    for mine, theirs in zip(made.states(REPLIES), states, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
