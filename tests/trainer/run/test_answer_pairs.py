"""Which prompts show what a version changed, and what is measured on them."""

import json
from dataclasses import replace

import pytest

from tests.harness import tiny
from tests.trainer.runs import go, second
from trainer.io.encrypted_files import Seal
from trainer.io.progress import Progress, Stop
from trainer.loop import run
from trainer.policy.packing import Tokens
from trainer.run import answer_pairs
from trainer.run.answer_pairs import RATED_TOKENS, AnswerPair, choose, figures


@pytest.fixture(scope="module")
def samples(model):
    return tiny.rated(model, 20)


def test_held_back_and_disliked_prompts_are_asked_first_and_each_once(samples):
    held = [replace(sample, is_held_back=True) for sample in samples[2:6]]  # three liked ones, one disliked
    chosen = choose([*samples[6:], *held, replace(held[0], rating="rt-again")])
    assert [sample.rating for sample in chosen][:4] == ["rt-5", "rt-2", "rt-3", "rt-4"]
    assert [sample.rating for sample in chosen][4:] == ["rt-6", "rt-7"] and all(s.reward < 0 for s in chosen[4:])


def test_long_prompts_are_asked_in_smaller_number(samples):
    long = [replace(s, tokens=replace(s.tokens, prompt=(i, *range(2999)))) for i, s in enumerate(samples)]
    assert len(choose(long)) == 2
    too_long = replace(samples[0], tokens=replace(samples[0].tokens, prompt=tuple(range(9000))))
    assert choose([too_long]) == []


def test_figures_are_those_of_the_answers(samples):
    whole = tuple(range(RATED_TOKENS))
    sides = [(whole, (1, 2, 3, 4)), ((5, 6), (5, 6))]
    measured = figures([AnswerPair(samples[0], *side) for side in sides])
    assert measured["tokens_before"] == (RATED_TOKENS + 2) / 2 and measured["tokens_after"] == 3
    assert (measured["ended_before"], measured["ended_after"], measured["different"]) == (1, 2, 1)


def lines_of(folder, key=None):
    return [json.loads(line) for line in Seal(key).read(folder / answer_pairs.FILE).splitlines()]


def test_a_version_that_passed_leaves_both_answers_and_the_next_one_begins_with_the_last(tmp_path, model, lines, first):
    folder = tiny.run_folder(tmp_path / "run", model, lines, overrides={"learning_rate": 1e-2, "drift_bound": 10.0})
    result, _ = go(folder)
    pairs = lines_of(folder)
    assert {pair["completion"] for pair in pairs} <= {line["completion"] for line in lines} and len(pairs) == 6
    assert result["changes"]["prompts"] == 6 and result["changes"]["held_back"] == 2
    assert any(pair["parent_answer"] != pair["answer"] for pair in pairs)
    manifest = json.loads((tmp_path / "out" / "v0001" / "manifest.json").read_bytes())
    assert manifest["changes"] == result["changes"]
    rewards = {line["completion"]: line["reward"] for line in lines}
    assert [rewards[pair["completion"]] for pair in pairs] == sorted(rewards[pair["completion"]] for pair in pairs)
    again = tiny.sample_lines(model, version=1, adapter=first, seed=0)
    second(tmp_path / "two", model, again, first)
    after = {pair["completion"][-2:]: pair["answer"] for pair in pairs}
    shared = [pair for pair in lines_of(tmp_path / "two" / "run") if pair["completion"][-2:] in after]
    assert shared and all(pair["parent_answer"] == after[pair["completion"][-2:]] for pair in shared)


def test_a_refused_candidate_leaves_none(tmp_path, model, lines):
    folder = tiny.run_folder(tmp_path / "run", model, lines, gate=tiny.LOOSE | {"min_entropy_ratio": 100.0})
    result, _ = go(folder)
    assert result["status"] == "rejected" and not (folder / answer_pairs.FILE).exists() and "changes" not in result


def test_in_a_sealed_home_they_are_sealed(tmp_path, model, lines):
    folder, key = tiny.run_folder(tmp_path / "run", model, lines), b"k" * 32
    Seal(key).write(folder / "samples.jsonl", (folder / "samples.jsonl").read_bytes())
    Seal(key).write(folder / "calibration.jsonl", b"")
    with Progress(folder) as progress:
        assert run(folder, progress, Stop(), Seal(key))["status"] == "passed"
    assert b"completion" not in (folder / answer_pairs.FILE).read_bytes()
    assert len(lines_of(folder, key)) == 6


def test_the_difference_is_none_for_the_same_and_all_for_what_shares_nothing(samples):
    tokens = Tokens((1,), (2,))
    assert AnswerPair(samples[0], tokens.reply, tokens.reply).difference == 0
    assert AnswerPair(samples[0], (1, 2), (3, 4)).difference == 1
