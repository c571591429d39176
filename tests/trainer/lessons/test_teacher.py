"""What becomes of comments and corrections, on a tiny model: taught, imitated, or said why not."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from config import presets
from tests.harness import tiny
from trainer import loop
from trainer.io.cache import Cache
from trainer.io.progress import Progress, Stop, Stopped
from trainer.io.run_folder import RunSpec, read_spec
from trainer.launch import verify_adapter
from trainer.lessons import advantages, batch, lessons, samples, teacher
from trainer.lessons.chat_template import Template
from trainer.lessons.lesson import Lesson
from trainer.lessons.lessons import LessonContext
from trainer.lessons.line_members import BadLine
from trainer.lessons.scoring import Scorer
from trainer.policy import packing
from trainer.policy.policy import TokenDistribution
from trainer.run import steps

FAST = {"learning_rate": 3e-3, "passes": 4, "drift_bound": 10.0, "drift_taught": 10.0, "hinted_replies": 0}


@pytest.fixture
def policy(model):
    return tiny.policy(model)


def commented(lines, comment="use bullets"):
    """Every disliked one says why, and so does every liked one."""
    return [line | {"comment": comment} for line in lines]


def load(folder, policy):
    template = Template(policy.tokenizer)
    loaded, unusable = samples.load(folder / "samples.jsonl", template, max_seq_len=4096)
    assert not unusable
    return template, [s for s in loaded if not s.is_held_back]


def prepare(tmp_path, policy, loaded, template, stop=None, **overrides):
    preset = presets.resolve("balanced", {"rank": 4, "alpha": 8, "hinted_replies": 0} | overrides)
    spec = RunSpec(1, "tiny", "tiny", 1, 0, tmp_path, seed=3)
    with Progress(tmp_path) as progress:
        scorer = Scorer(policy, spec, Cache(tmp_path / "cache"), stop or Stop())
        taught = teacher.make_targets(preset, template, loaded, scorer, progress)
    events = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    return taught, [e["message"] for e in events if e["event"] == "warning"]


def go(folder):
    with Progress(folder) as progress:
        result = loop.run(folder, progress, Stop())
    return result, [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]


# --- the hint ---------------------------------------------------------------------------------------------------


def test_the_hint_goes_after_the_last_user_message():
    messages = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
        {"role": "assistant", "content": "", "tool_calls": []},
        {"role": "tool", "content": "four"},
    ]
    before = json.dumps(messages)
    hinted = teacher.hint(messages, "shorter")
    assert hinted[2] == {"role": "user", "content": "three\n\n[user's hint / instruction]\nshorter"}
    assert [m for i, m in enumerate(hinted) if i != 2] == [m for i, m in enumerate(messages) if i != 2]
    assert json.dumps(messages) == before
    parts = teacher.hint([{"role": "user", "content": [{"type": "text", "text": "one"}]}], "shorter")
    assert parts[0]["content"][-1] == {"type": "text", "text": "[user's hint / instruction]\nshorter"}
    with pytest.raises(BadLine, match="user message"):
        teacher.hint([{"role": "system", "content": "s"}], "shorter")


def test_only_what_a_disliked_sample_says_is_an_instruction(tmp_path, model, lines, policy):
    said = [
        lines[0] | {"comment": " \n"},  # disliked, and said nothing
        lines[1] | {"comment": "lovely"},  # liked
        lines[2] | {"comment": "  shorter ", "correction": "\t"},
        lines[3] | {"correction": "so"},
    ]
    folder = tiny.run_folder(tmp_path / "run", model, said)
    template, loaded = load(folder, policy)
    assert [s.comment for s in loaded] == [None, "lovely", "shorter", None]
    assert teacher.count(loaded) == (1, 1, 0)
    taught, warnings = prepare(tmp_path, policy, loaded, template)
    assert list(taught.hinted) == list(taught.distributions) == [lines[2]["rating"]]
    assert [extra.sample.rating for extra in taught.imitations] == [lines[3]["rating"]]
    assert warnings == []


def test_the_reply_stays_as_it_was_captured_under_the_hinted_prompt(tmp_path, model, lines, policy):
    folder = tiny.run_folder(tmp_path / "run", model, commented(lines[:1]))
    template, loaded = load(folder, policy)
    taught, _ = prepare(tmp_path, policy, loaded, template)
    (tokens,) = taught.hinted.values()
    assert tokens.reply == loaded[0].tokens.reply and tokens.temperature == 0.8
    assert "[user's hint / instruction]\nuse bullets" in template.text(tokens.prompt)


def test_the_hinted_prompt_has_what_the_template_was_given(tmp_path, model, lines, policy):
    policy.tokenizer.chat_template += "{% if enable_thinking is false %}no thoughts{% endif %}"
    line = commented(lines[:1])[0] | {"template_kwargs": {"enable_thinking": False}}
    ended = [*line["prompt_token_ids"], *policy.tokenizer("no thoughts", add_special_tokens=False)["input_ids"]]
    folder = tiny.run_folder(tmp_path / "run", model, [line | {"prompt_token_ids": ended}])
    template, loaded = load(folder, policy)
    taught, warnings = prepare(tmp_path, policy, loaded, template)
    (tokens,) = taught.hinted.values()
    assert template.text(tokens.prompt).endswith("no thoughts") and warnings == []


def test_a_prompt_that_the_template_does_not_give_is_said_once(tmp_path, model, lines, policy):
    served = [line | {"prompt_token_ids": line["prompt_token_ids"][1:]} for line in commented(lines)]
    template, loaded = load(tiny.run_folder(tmp_path / "run", model, served), policy)
    taught, warnings = prepare(tmp_path, policy, loaded, template)
    assert len(taught.distributions) == 6 and len(warnings) == 1 and "6 of 6" in warnings[0]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"messages": []}, "no user message"),
        ({"comment": "x" * 5000}, "max_seq_len"),
    ],
)
def test_a_comment_that_cannot_be_rendered_leaves_the_rating(tmp_path, model, lines, change, why):
    odd = [line | (change if i == 0 else {}) for i, line in enumerate(commented(lines))]
    folder = tiny.run_folder(tmp_path / "run", model, odd, overrides={"hinted_replies": 0})
    result, events = go(folder)
    assert result["status"] == "passed"
    assert result["metrics"]["taught"] == 5  # 6 of the 10 that train are disliked
    assert result["samples"][lines[0]["rating"]]["used"]
    assert any(why in e["message"] for e in events if e["event"] == "warning")


# --- the teacher ------------------------------------------------------------------------------------------------


def test_the_teachers_expectations_are_its_likeliest_tokens_and_leave_no_gradient(policy):
    rows = [packing.Tokens((1, 50), (70, 80, 2), 0.8), packing.Tokens((1, 50, 60), (71, 2), 1.0)]
    packed = packing.pack(rows)
    told = policy.teach(packed, 7)
    assert told.ids.shape == told.log_probs.shape == (5, 7)
    assert told.ids.dtype == np.int32 and told.log_probs.dtype == np.float32
    with torch.no_grad():
        logits = policy._causal(torch.tensor([[1, 50, 70, 80]])).logits[0, 1:] / 0.8
    expected = logits.log_softmax(-1).topk(7)
    np.testing.assert_allclose(told.log_probs[:3], expected.values.numpy(), atol=2e-5)
    assert (told.ids[:3] == expected.indices.numpy()).all()
    assert all(p.grad is None for p in policy.trained.values())
    assert policy.teach(packed, 1000).ids.shape == (5, 259)  # no more than there are
    also = [int(logits[0].argmin()), int(logits[0].argmax())]
    more = policy.teach(packed, 7, also)
    assert more.ids.shape == (5, 7) and set(more.ids[0][:2].tolist()) == set(also)
    assert more.ids[0][2:].tolist() == [i for i in told.ids[0].tolist() if i not in also][:5]
    np.testing.assert_allclose(
        more.log_probs[:3], logits.log_softmax(-1).gather(-1, torch.from_numpy(more.ids[:3]).long()), atol=2e-5
    )


def test_distillation_moves_the_policy_towards_its_teacher(tmp_path, model, lines):
    overrides = FAST | {"objective": "distill", "passes": 8, "rate_taught": 1.0}
    folder = tiny.run_folder(tmp_path / "run", model, commented(lines), overrides=overrides)
    result, events = go(folder)
    assert result["status"] == "passed", result["reason"]
    policy = tiny.policy(model)
    template, loaded = load(folder, policy)
    taught, _ = prepare(tmp_path, policy, loaded, template)
    disliked = [s for s in loaded if s.rating in taught.distributions]
    assert len(disliked) == 6

    def divergence():
        at, found = packing.pack([s.tokens for s in disliked]), []
        own = policy.teach(at, 259)
        told = [taught.distributions[s.rating] for s in disliked]
        for ids, want, mine_ids, mine in zip(
            np.concatenate([t.ids for t in told]), np.concatenate([t.log_probs for t in told]), *own, strict=True
        ):
            place = np.argsort(mine_ids)[ids]
            found.append(float((np.exp(want) * (want - mine[place])).sum()))
        return np.mean(found)

    before = divergence()
    with policy.wearing(tmp_path / "out" / "v0001"):
        after = divergence()
    assert before > 0.05
    assert after < 0.6 * before
    steps = [e["kl_teacher"] for e in events if e["event"] == "step"]
    assert steps[-1] < steps[0]


def test_what_was_asked_of_the_teacher_is_asked_once(tmp_path, model, lines, policy, monkeypatch):
    template, loaded = load(tiny.run_folder(tmp_path / "run", model, commented(lines)), policy)
    first, _ = prepare(tmp_path, policy, loaded, template, hinted_replies=16)
    monkeypatch.setattr(policy, "teach", lambda *_: pytest.fail("asked again"))
    monkeypatch.setattr(policy, "generate", lambda *_, **__: pytest.fail("written again"))
    again, _ = prepare(tmp_path, policy, loaded, template, hinted_replies=16)
    assert first.distributions
    for rating, distribution in first.distributions.items():
        np.testing.assert_array_equal(distribution.ids, again.distributions[rating].ids)
        np.testing.assert_array_equal(distribution.log_probs, again.distributions[rating].log_probs)
    assert [e.tokens for e in first.imitations] == [e.tokens for e in again.imitations]


def test_a_stop_keeps_the_batches_that_the_teacher_has_written(tmp_path, model, lines, policy, monkeypatch):
    two = [
        line | {"sampling": {"temperature": temperature}, "exact": False}
        for line, temperature in zip(commented(lines[:3:2]), (0.5, 0.8), strict=True)
    ]
    template, loaded = load(tiny.run_folder(tmp_path / "run", model, two), policy)
    asked, stop = [], Stop()

    def generate(prompts, *, temperature, **_):
        asked.append(temperature)
        stop.ask("paused")
        return [[*template.reply("a fine reply", ended=False), template.end]] * len(prompts)

    monkeypatch.setattr(policy, "generate", generate)
    with pytest.raises(Stopped):
        prepare(tmp_path, policy, loaded, template, stop, hinted_replies=16)
    assert asked == [0.5]
    taught, _ = prepare(tmp_path, policy, loaded, template, hinted_replies=16)
    assert asked == [0.5, 0.8] and len(taught.imitations) == 2


def test_of_the_teachers_own_replies_only_sane_ones_teach(tmp_path, model, lines, policy, monkeypatch):
    template, loaded = load(tiny.run_folder(tmp_path / "run", model, commented(lines)), policy)
    end = template.end
    good = [*template.reply("a fine reply", ended=False), end]
    echo = [*template.reply("[User's hint / instruction]\nuse", ended=False), end]
    replies = [good, good[:-1], [70, 71, 72, 73] * 8 + [end], [*template.reply("  ", ended=False), end], echo, good]
    asked = []

    def generate(prompts, **_):
        asked.extend(prompts)
        return replies[: len(prompts)]

    monkeypatch.setattr(policy, "generate", generate)
    taught, _ = prepare(tmp_path, policy, loaded, template, hinted_replies=16)
    assert all("use bullets" in template.text(p) for p in asked)
    extra, other = taught.imitations  # the first and the sixth
    assert other.tokens.reply == extra.tokens.reply
    assert extra.tokens.prompt == loaded[0].tokens.prompt  # without the hint
    assert extra.tokens.reply == tuple(good) and extra.advantage == 0
    assert extra.teacher.ids.shape == (len(good), 100)


def test_the_beginning_of_a_long_reply_teaches_and_a_short_one_has_to_end():
    template = Template(tiny.tokenizer())
    words = [*template.reply("a fine and long reply of many words ", ended=False)]
    long = np.random.default_rng(1).integers(5, 95, teacher.MOST_TOKENS).tolist()
    assert teacher._is_sane([*words, template.end], template)
    assert not teacher._is_sane(words, template)
    assert teacher._is_sane(long, template)


def test_where_memory_is_short_the_teacher_writes_fewer_replies_at_a_time(tmp_path, model, lines, policy, monkeypatch):
    """A run that would train in small micro-batches does not end before its first step."""
    template, loaded = load(tiny.run_folder(tmp_path / "run", model, commented(lines)), policy)
    short = [*template.reply("a fine reply", ended=False), template.end]
    asked = []

    def generate(input_ids, **_):
        asked.append(len(input_ids))
        if len(input_ids) > 2 or len(asked) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return torch.cat([input_ids, torch.tensor([short] * len(input_ids))], 1)

    monkeypatch.setattr(policy.model, "generate", generate)
    taught, _ = prepare(tmp_path, policy, loaded, template, hinted_replies=6)
    assert asked == [6, 3, 1, 2, 3, 1, 2]  # the first one alone did not fit either
    assert len(taught.imitations) == 5
    chosen = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    assert [(e["value"], "memory was too short for 1" in e["why"]) for e in chosen if e["event"] == "choice"] == [
        (5, True)
    ]


def test_the_teacher_writes_no_hotter_than_the_model_is(tmp_path, model, lines, policy, monkeypatch):
    """At temperature 3 it says nothing that a person has asked for, and the gate would take that for a style."""
    hot = [
        line | {"sampling": {"temperature": 3.0 if i else 0.5}, "exact": False}
        for i, line in enumerate(commented(lines[:1] + lines[2:3]))
    ]
    template, loaded = load(tiny.run_folder(tmp_path / "run", model, hot), policy)
    asked = []

    def generate(prompts, *, temperature, **_):
        asked.append(temperature)
        return [[*template.reply("a fine reply", ended=False), template.end]] * len(prompts)

    monkeypatch.setattr(policy, "generate", generate)
    taught, _ = prepare(tmp_path, policy, loaded, template, hinted_replies=16)
    assert asked == [0.5, 1.0]
    assert [extra.tokens.temperature for extra in taught.imitations] == [0.5, 1.0]
    assert [tokens.temperature for tokens in taught.hinted.values()] == [0.5, 3.0]


@given(st.lists(st.integers(1, 9000), max_size=40))
def test_a_batch_of_the_teachers_replies_fits(lengths):
    """Every prompt is in one batch, in order. Only a batch of one row may be too large."""
    batches = list(teacher._batches(range(len(lengths)), lengths))
    assert [index for batch in batches for index in batch] == list(range(len(lengths)))
    for rows in batches:
        assert len(rows) == 1 or len(rows) * max(lengths[i] for i in rows) <= teacher.TOKENS_AT_ONCE


def test_the_token_that_was_said_can_be_taught_alone(tmp_path, model, lines, policy):
    overrides = {
        "match": "token",
        "balance": False,
        "likely": 1.0,
        "hinted_replies": 0,
        "objective": "combine",
        "rank": 4,
        "alpha": 8,
    }
    folder = tiny.run_folder(tmp_path / "run", model, commented(lines), overrides=overrides)
    template, loaded = load(folder, policy)
    with Progress(folder) as progress:
        scorer = Scorer(policy, read_spec(folder), Cache(folder / "cache"), Stop())
        context = LessonContext(presets.resolve("balanced", overrides), template, scorer, progress)
        learned = lessons.prepare(context, loaded, [], [])
    one = next(lesson for lesson in learned.train if lesson.sample.reward < 0)
    prompt = template.prompt(teacher.hint(one.sample.messages, "use bullets"))
    hinted = policy.log_probs(packing.pack([packing.Tokens(prompt, one.tokens.reply, 0.8)])).plain
    np.testing.assert_allclose(one.advantage, -1 + np.clip(hinted - one.old, -2, 2), atol=1e-4)
    assert one.teacher is None
    assert go(folder)[0]["status"] == "passed"


# --- corrections and whole runs ---------------------------------------------------------------------------------


def test_a_correction_is_imitated_and_the_process_says_so(tmp_path, model, lines):
    words = "a better answer"
    said = [line | ({"correction": words, "comment": "shorter"} if i == 2 else {}) for i, line in enumerate(lines)]
    folder = tiny.run_folder(tmp_path / "run", model, said, overrides=FAST)
    done = subprocess.run(
        [sys.executable, "-m", "trainer", str(folder)], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    manifest = verify_adapter(tmp_path / "out" / "v0001")
    assert manifest["objective"] == manifest["preset"]["objective"] == "combine"
    assert manifest["metrics"]["taught"] == manifest["metrics"]["corrections"] == 1
    assert manifest["samples"].count(lines[2]["rating"]) == 1
    events = [json.loads(line) for line in done.stdout.splitlines()]
    choice = next(e for e in events if e["event"] == "choice" and e["name"] == "objective" and e["value"] == "combine")
    assert choice["why"] == "1 of 10 samples have comments and 1 of 10 samples have corrections"
    rates = [e for e in events if e["event"] == "choice" and e["name"] == "learning_rate"]
    assert rates[-1]["value"] == pytest.approx(rates[0]["value"] * (1 - 0.5 * 2 / 11), rel=1e-2)
    assert rates[-1]["why"] == "2 of 11 samples have a teacher; it would be 0.5 of it if all did"
    policy = tiny.policy(model)
    template, loaded = load(folder, policy)
    row = packing.Tokens(loaded[2].tokens.prompt, template.reply(words, ended=True), 0.8)
    before = policy.log_probs(packing.pack([row])).plain
    with policy.wearing(tmp_path / "out" / "v0001"):
        after = policy.log_probs(packing.pack([row])).plain
    assert (after - before).mean() > 0.3


def test_comments_do_not_change_what_ratings_alone_would_do_when_switched_off(tmp_path, model, lines):
    plain = tiny.run_folder(tmp_path / "a" / "run", model, lines)
    go(plain)
    off = tiny.run_folder(tmp_path / "b" / "run", model, commented(lines), overrides={"w_distill": 0.0})
    result, events = go(off)
    assert any("they teach nothing" in e["message"] for e in events if e["event"] == "warning")
    one, other = (verify_adapter(tmp_path / x / "out" / "v0001") for x in "ab")
    assert one["files"] == other["files"]
    assert result["metrics"]["steps"] == one["metrics"]["steps"]


def test_a_rating_that_the_filter_rejects_still_teaches_by_its_comment(tmp_path, model, lines):
    shifted = [line | {"logprobs": [x - 1 for x in line["logprobs"]]} for line in commented(lines)]
    result, _ = go(tiny.run_folder(tmp_path / "run", model, shifted, overrides={"hinted_replies": 0}))
    assert result["status"] == "passed"
    used = [o for o in result["samples"].values() if o["used"]]
    assert len(used) == 6 and {o["cause"] for o in used} == {"fresh-mismatch"} and {o["accepted"] for o in used} == {0}


@pytest.mark.parametrize("name", ["mis-po-clip", "grpo", "kto", "kto-combine", "distill", "combine"])
def test_a_run_with_each_objective_passes(tmp_path, model, lines, name):
    folder = tiny.run_folder(tmp_path / "run", model, commented(lines), overrides={"objective": name})
    result, events = go(folder)
    assert result["status"] == "passed", result["reason"]
    assert verify_adapter(tmp_path / "out" / "v0001")["objective"] == name
    deaf = [e for e in events if e["event"] == "warning" and "does not listen" in e["message"]]
    assert len(deaf) == (name not in ("distill", "combine", "kto-combine"))


def test_kto_trains_on_replies_that_no_version_of_ours_said(tmp_path, model, lines):
    foreign = [
        line | {"exact": False, "logprobs": None, "version": 0, "text": f"from the cloud {i}"}
        for i, line in enumerate(lines)
    ]
    folder = tiny.run_folder(tmp_path / "run", model, foreign, overrides=FAST | {"objective": "kto"})
    result, _ = go(folder)
    assert result["status"] == "passed", result["reason"]
    assert result["metrics"]["kl_old"] == 0  # there is nothing of its own to measure it on
    policy = tiny.policy(model)
    _, loaded = load(folder, policy)
    packed = packing.pack([s.tokens for s in loaded])
    before = policy.log_probs(packed).plain
    with policy.wearing(tmp_path / "out" / "v0001"):
        gained = np.split(policy.log_probs(packed).plain - before, np.cumsum(packed.lengths)[:-1])
    by_sign = {s: np.mean([g.mean() for g, x in zip(gained, loaded, strict=True) if x.reward == s]) for s in (1, -1)}
    assert by_sign[1] > by_sign[-1] + 0.05


def test_kto_combine_learns_from_another_models_replies_and_what_was_said_of_them(tmp_path, model, lines):
    """As a retrain on another base orders it: words alone, ratings, comments, and a correction."""
    foreign = [
        line | {"exact": False, "token_ids": None, "prompt_token_ids": None, "logprobs": None, "version": 0,
                "text": f"from another base {i}", "prompt_tokens": None}
        for i, line in enumerate(commented(lines))
    ]  # fmt: skip
    liked = next(line for line in foreign if line["reward"] > 0 and line["split"] == "train")
    liked["correction"] = "say just this"
    overrides = FAST | {"objective": "kto-combine", "hinted_replies": 0}
    result, events = go(tiny.run_folder(tmp_path / "run", model, foreign, overrides=overrides))
    assert result["status"] == "passed", result["reason"]
    outcomes = result["samples"].values()
    assert {o["taught_by"] for o in outcomes if o["used"]} == {"rating", "comment"}
    assert {o["exact"] for o in outcomes} == {False} and {o["cause"] for o in outcomes} == {None}
    assert result["metrics"]["corrections"] == 1 and result["metrics"]["taught"] > 0
    assert not [e for e in events if e["event"] == "warning" and "recomputed" in e["message"]]
    manifest = verify_adapter(tmp_path / "out" / "v0001")
    assert manifest["objective"] == "kto-combine"


def test_replies_to_one_prompt_are_one_group(tmp_path, model, lines, policy):
    same = [line | {"prompt_token_ids": lines[0]["prompt_token_ids"]} for line in lines[:3]]
    folder = tiny.run_folder(tmp_path / "run", model, [*same, lines[3]])
    _, loaded = load(folder, policy)
    preset = presets.resolve("balanced", {"objective": "grpo", "weight_good": 1.0})
    found, _ = advantages.rating_advantages(read_spec(folder), preset, loaded)
    mean = sum(line["reward"] for line in same) / 3
    assert [*found.values()] == pytest.approx([line["reward"] - mean for line in same] + [lines[3]["reward"]])


def test_a_commented_reply_is_taught_by_its_teacher_and_not_pushed_by_its_rating(tmp_path, model, lines, policy):
    one = [line | ({"comment": "use bullets"} if i == 0 else {}) for i, line in enumerate(lines)]
    folder = tiny.run_folder(tmp_path / "run", model, one)
    template, loaded = load(folder, policy)
    preset = presets.resolve("balanced", {"objective": "combine", "rank": 4, "alpha": 8, "likely": 1.0})
    scorer = Scorer(policy, read_spec(folder), Cache(folder / "cache"), Stop())
    with Progress(folder) as progress:
        learned = lessons.prepare(LessonContext(preset, template, scorer, progress), loaded, [], [])
    first, *others = learned.train
    assert first.teacher is not None and not first.advantage.any()
    assert all(other.advantage.all() and other.teacher is None for other in others)
    plan = steps.plan_steps(learned.train, preset.model_copy(update={"batch": 4}), 7)
    assert sorted(i for step in plan for i in step) == [0, 0, *range(1, 10)]


@pytest.mark.parametrize(
    ("taught", "rated", "length"), [(2, 0, 8), (4, 0, 8), (80, 0, 10), (0, 16, 2), (1, 27, 5), (8, 8, 5)]
)
def test_few_comments_are_read_until_they_are_learned_and_beside_ratings_less(lines, taught, rated, length):
    """The steps of a run whose batches are of eight lessons."""
    parsed = samples.parse(lines[0], "rt-1", Template(tiny.tokenizer()), max_seq_len=999)
    plain = tiny.lesson(parsed, parsed.behaviour)
    size = len(plain.old)
    told = TokenDistribution(np.ones((size, 4), np.int32), np.full((size, 4), -2, np.float32))
    teaching = [replace(plain, teacher=told)] * taught + [plain] * rated
    plan = steps.plan_steps(teaching, presets.resolve("balanced", {}), 7)
    assert len(plan) == length
    assert {i for step in plan for i in step} == set(range(taught + rated))


def test_rows_of_a_batch_with_and_without_a_teacher(lines):
    template = Template(tiny.tokenizer())
    parsed = [samples.parse(x, x["rating"], template, max_seq_len=999) for x in lines[:2]]
    plain = [tiny.lesson(s, s.behaviour) for s in parsed]
    n, m = len(plain[0].old), len(plain[1].old)
    told = TokenDistribution(np.ones((n, 4), np.int32), np.full((n, 4), -2, np.float32))
    first = plain[0]
    taught = Lesson(
        first.sample, first.tokens, first.old, first.ref, first.behaviour, first.keep, first.advantage, teacher=told
    )
    terms = batch.make_terms([taught, plain[1]], 2)
    assert terms.teaches.tolist() == [1.0] * n + [0.0] * m
    assert terms.teacher_ids.shape == terms.teacher.shape == (n + m, 4)
    assert terms.member.sum(-1).tolist() == [n, m]
    assert batch.make_terms(plain, 2).teacher_ids is None
