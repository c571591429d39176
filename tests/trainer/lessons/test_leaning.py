"""A policy leans where a taste shows all over a reply, and nowhere else."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest

from config import presets
from tests.harness import tiny
from trainer.io.progress import Progress
from trainer.lessons import leaning

K = 5
LOW, HIGH = (40, 48), (100, 108)  # letters that disliked and liked replies are made of


def written(model, count=32, liked=0.5, mixed=0.3, seed=0):
    """Replies whose ratings show in most of their letters, and not in the last one."""
    rng, found = np.random.default_rng(seed), []
    for at, sample in enumerate(tiny.rated(model, count, tell=False, seed=seed)):
        good = at < count * liked
        odd = rng.random(10) < mixed
        reply = np.where(odd, rng.integers(40, 108, 10), rng.integers(*(HIGH if good else LOW), 10))
        reply[-1] = 75
        tokens = replace(sample.tokens, reply=tuple(reply.tolist()))
        found.append(replace(sample, reward=1.0 if good else -1.0, tokens=tokens))
    return found


def taught(folder, model, samples, explained_by_words=0.0, **overrides):
    """Return the lessons by rating, and the choices that were announced."""
    preset = presets.resolve("balanced", {"teacher_k": K} | overrides)
    out = io.StringIO()
    folder.mkdir(exist_ok=True)
    with Progress(folder, out) as progress:
        found = leaning.leaning_targets(
            preset, samples, {s.rating: s.reward for s in samples}, tiny.scorer(folder, model), progress,
            explained_by_words=explained_by_words,
        )  # fmt: skip
    return found, [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_taste_that_shows_in_the_mean_is_taught_by_leaning(tmp_path, model):
    samples = written(model)
    found, told = taught(tmp_path, model, samples)
    assert [(e["name"], e["value"]) for e in told] == [("pushed", "by leaning")]
    assert found.keys() == {s.rating for s in samples}
    scorer = tiny.scorer(tmp_path / "own", model)
    tokens = [s.tokens for s in samples]
    own = scorer.expect(tokens, K)
    for sample, expects in zip(samples, own, strict=True):
        leant = found[sample.rating]
        assert leant.ids.shape == leant.log_probs.shape == (10, K)
        assert not np.allclose(leant.log_probs, expects.log_probs, atol=1e-3)


def test_the_direction_is_from_what_was_disliked_to_what_was_liked(tmp_path, model):
    samples = written(model)
    liked = np.array([s.reward > 0 for s in samples])
    scorer = tiny.scorer(tmp_path, model)
    one = leaning._direction(scorer, samples, liked)
    other = leaning._direction(scorer, samples, ~liked)
    np.testing.assert_allclose(one, -other, atol=1e-5)
    order = np.random.default_rng(1).permutation(len(samples))  # whatever micro-batches they come in
    again = leaning._direction(scorer, [samples[i] for i in order], liked[order])
    np.testing.assert_allclose(again, one, atol=1e-5)


def test_a_taste_against_a_word_that_explains_more_is_not(tmp_path, model):
    assert taught(tmp_path / "1", model, written(model), explained_by_words=1.0) == ({}, [])
    assert taught(tmp_path / "2", model, written(model), explained_by_words=0.3)[0]


def test_a_taste_that_shows_at_the_end_is_not(tmp_path, model):
    assert taught(tmp_path, model, tiny.rated(model, 32, liked=0.5)) == ({}, [])


def test_ratings_at_random_are_not(tmp_path, model):
    rng = np.random.default_rng(5)
    leant = 0
    for seed in range(10):
        samples = tiny.rated(model, 32, tell=False, seed=seed)
        values = rng.permutation([1.0, -1.0] * 16)
        samples = [replace(s, reward=v) for s, v in zip(samples, values, strict=True)]
        leant += bool(taught(tmp_path / str(seed), model, samples)[0])
    assert leant <= 1


@pytest.mark.parametrize(
    ("means", "ends", "leans"),
    [
        (0.60, 0.51, True),  # speaks to the reader, 135M: leaning taught it
        (0.50, 0.00, False),  # short sentences, 0.5B: leaning undid them
        (0.49, 0.12, False),
        (0.43, 0.82, False),  # the end shows it better: by token
    ],
)
def test_a_tone_is_there_to_the_end(means, ends, leans):
    assert leaning.is_tone(means, ends, presets.resolve("balanced", {}).credit) is leans


@pytest.mark.parametrize(
    "why",
    [
        "a comment",
        "a correction",
        "a judge's label",
        "one prompt twice",
        "two replies of one conversation",
        "another weight",
        "few of one sign",
        "another objective",
        "none",
        "even",
    ],
)
def test_other_feedback_teaches_in_its_own_way(tmp_path, model, why):
    samples, overrides = written(model), {}
    match why:
        case "a comment":
            samples[-1] = replace(samples[-1], comment="shorter")
        case "a correction":
            samples[-1] = replace(samples[-1], correction="so")
        case "a judge's label":
            samples[-1] = replace(samples[-1], human=False)
        case "one prompt twice":
            prompt = samples[0].tokens.prompt
            samples[-1] = replace(samples[-1], tokens=replace(samples[-1].tokens, prompt=prompt))
        case "two replies of one conversation":
            first, last = samples[0], samples[-1]
            prompt = (*first.tokens.prompt, *first.tokens.reply, 5)
            talk = {"messages": ({"role": "user", "content": "hi"},)}
            samples[0] = replace(first, **talk)
            samples[-1] = replace(last, tokens=replace(last.tokens, prompt=prompt), **talk)
        case "another weight":
            samples[-1] = replace(samples[-1], weight=0.5)
        case "few of one sign":
            samples = samples[:16] + samples[16 : 15 + leaning.LEAST]
        case "another objective":
            overrides = {"objective": "combine"}
        case "none":
            samples = []
        case "even":
            overrides = {"credit": 1.0}
    assert taught(tmp_path, model, samples, **overrides) == ({}, [])


def test_who_says_neither_is_on_no_side(tmp_path, model):
    """Three stars are under the average of those who mostly like what they read, and no dislike all the same."""
    samples = written(model)
    neutral = [replace(s, rating=f"n{s.rating}", reward=0.0, messages=(), tokens=replace(s.tokens, prompt=(9, 9, at)))
               for at, s in enumerate(samples[:4])]  # fmt: skip
    preset = presets.resolve("balanced", {"teacher_k": K})
    values = {s.rating: s.reward - 0.2 for s in [*samples, *neutral]}
    with Progress(tmp_path, io.StringIO()) as progress:
        found = leaning.leaning_targets(preset, [*samples, *neutral], values, tiny.scorer(tmp_path, model), progress)
    assert found.keys() == {s.rating for s in samples}


def test_a_run_spends_a_share_of_what_is_left_of_the_sense_that_a_version_may_lose():
    assert leaning.budget(0.0, 0.3) == pytest.approx(leaning.SPENDS * 0.3)
    assert 0 < leaning.budget(0.4, 0.3) < leaning.budget(0.1, 0.3)
    assert leaning.budget(0.9, 0.3) > 0 == leaning.budget(1.0, 0.3)
