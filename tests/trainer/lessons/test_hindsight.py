"""Hindsight: each token is pushed by how much likelier the next message makes it, and by nothing else."""

import json
from dataclasses import replace

import numpy as np
import pytest

from config import presets
from tests.harness import tiny
from trainer import loop
from trainer.io.progress import Progress, Stop
from trainer.lessons import advantages, hindsight
from trainer.lessons.chat_template import Template
from trainer.lessons.prompts import HINDSIGHT, teacher_words, with_hint
from trainer.policy.packing import Tokens


def pushes(tmp_path, model, samples, **overrides):
    scorer = tiny.scorer(tmp_path, model)
    preset = presets.resolve("balanced", overrides)
    scored = tiny.read(scorer, samples)
    with Progress(tmp_path) as progress:
        found = hindsight.hindsight_advantages(preset, Template(scorer.policy.tokenizer), scored, scorer, progress)
    return found, scorer, [s.old for s in scored]


def test_each_token_is_pushed_by_the_difference_of_its_log_probs(tmp_path, model):
    samples = [replace(s, hindsight="shorter, please", weight=0.5) for s in tiny.rated(model, 4, tell=False)]
    found, scorer, old = pushes(tmp_path, model, samples, w_distill=1.0, advantage_clip=2.0)
    template = Template(scorer.policy.tokenizer)
    for sample, before in zip(samples, old, strict=True):
        prompt = template.prompt(with_hint(sample.messages, "shorter, please", HINDSIGHT))
        (after,) = scorer.score_old([Tokens(prompt, sample.tokens.reply, sample.tokens.temperature)])
        np.testing.assert_allclose(found[sample.rating], 0.5 * np.clip(after.plain - before.plain, -2, 2), atol=1e-5)
        assert np.ptp(found[sample.rating]) > 0


def test_a_looping_reply_is_never_said_more_often(tmp_path, model):
    samples = [replace(s, hindsight="great", flags=("looping",)) for s in tiny.rated(model, 4, tell=False)]
    found, _, _ = pushes(tmp_path, model, samples)
    assert found and all((one <= 0).all() for one in found.values())


def test_what_does_not_fit_pushes_nothing(tmp_path, model):
    samples = [replace(s, hindsight="x " * 500) for s in tiny.rated(model, 2, tell=False)]
    found, _, _ = pushes(tmp_path, model, samples, max_seq_len=64)
    assert found == {} and "does not teach" in (tmp_path / "progress.jsonl").read_text()


@pytest.mark.parametrize("objective", ["mis-po", "grpo", "combine"])
def test_it_has_no_rating_and_changes_none_of_the_others(tmp_path, model, objective):
    rated = tiny.rated(model, 8, tell=False)
    preset = presets.resolve("balanced", {"objective": objective})
    spec = tiny.scorer(tmp_path, model).spec
    with_it = [*rated, *(replace(s, rating=f"h-{s.rating}", reward=0.0, hindsight="so?") for s in rated)]
    values, _ = advantages.rating_advantages(replace(spec, baseline=0.5), preset, with_it)
    alone, _ = advantages.rating_advantages(replace(spec, baseline=0.5), preset, rated)
    assert values == alone | {s.rating: 0.0 for s in with_it[len(rated) :]}


def test_a_teacher_is_told_of_a_comment_before_what_was_said_next():
    assert teacher_words({"comment": "c", "reward": -1.0, "hindsight": "h"})[0] == "c"
    assert teacher_words({"comment": None, "reward": 0.0, "hindsight": " h "}) == ("h", HINDSIGHT)
    assert teacher_words({"comment": "praise", "reward": 1.0, "hindsight": "  "}) is None
    assert teacher_words({"reward": 0.0, "hindsight": 7}) is None


def test_a_run_of_hindsight_alone_trains_and_moves_no_baseline(tmp_path, model):
    lines = [
        line | {"reward": 0.0, "weight": 0.5, "human": False, "followed": True, "hindsight": "shorter, please"}
        for line in tiny.sample_lines(model)
    ]
    folder = tiny.run_folder(tmp_path / "run", model, [line | {"split": "train"} for line in lines], baseline=0.25)
    with Progress(folder) as progress:
        result = loop.run(folder, progress, Stop())
    events = [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]
    assert result["status"] == "passed", result["reason"]
    assert {e["value"] for e in events if e["event"] == "choice" and e["name"] == "hindsight"} == {len(lines)}
    assert result["baseline_after"] == 0.25
