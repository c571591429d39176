"""What the model says is told from garbage, and from its words after another chat template."""

import dataclasses
import io
import json

import numpy as np
import pytest

from tests.harness import tiny
from trainer import loop
from trainer.io.progress import Progress, Stop
from trainer.lessons import reply_checks
from trainer.lessons.chat_template import Template
from trainer.lessons.lesson import ReadSample
from trainer.lessons.samples import Sample
from trainer.policy import packing
from trainer.policy.packing import Tokens
from trainer.policy.policy import LogProbs


@pytest.fixture(scope="module")
def policy(model):
    return tiny.policy(model)


def scored(surprise, tokens=40):
    """So many tokens, each so many nats odder than expected."""
    return LogProbs(np.full(tokens, -1.0 - surprise), np.full(tokens, -1.0), np.ones(tokens))


def sample(rating, reward, *, exact=True, version=0, reply=(5, 6, 7)):
    behaviour = np.zeros(len(reply)) if exact else None
    return Sample(rating, False, version, reward, 1.0, True, Tokens((1,), tuple(reply)), behaviour)


def read(samples, log_probs):
    return [ReadSample(s, log_probs) for s in samples]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_what_a_policy_sampled_surprises_it_by_nothing(policy, temperature):
    prompt = Template(policy.tokenizer).prompt([{"role": "user", "content": "a"}])
    replies = policy.generate([prompt] * 64, max_tokens=24, temperature=temperature, seed=1)
    rows = [Tokens(prompt, tuple(reply), temperature) for reply in replies]
    now = policy.log_probs(packing.pack(rows))
    tokens = len(now.plain)
    deviation = float((-now.plain - now.entropy).std()) / np.sqrt(tokens)
    assert abs(reply_checks.excess([now])) < 4 * deviation
    assert (now.entropy >= 0).all()
    assert (now.entropy <= np.log(259) + 1e-5).all()


def test_the_entropy_is_that_of_the_whole_distribution(policy):
    row = Tokens((1, 50, 60), (70, 80, 90), 0.7)
    k = policy.teach(packing.pack([row]), 259)  # all tokens
    expected = -(np.exp(k.log_probs.astype(np.float64)) * k.log_probs).sum(-1)
    np.testing.assert_allclose(policy.log_probs(packing.pack([row])).entropy, expected, rtol=1e-4)


def test_only_liked_garbage_is_left_out():
    calm = {"fine": scored(0.2), "odd": scored(4.0), "odd-bad": scored(4.0)}
    samples = [sample("fine", 1.0), sample("odd", 1.0), sample("odd-bad", -1.0)]
    found = reply_checks.garbage(samples, calm)
    assert set(found) == {"odd"}
    assert "4.0 nats" in found["odd"]


def test_only_fresh_replies_without_ids_are_compared_with_the_template():
    samples = [
        sample("exact", 1.0),
        sample("old", 1.0, exact=False, version=2),
        sample("new", 1.0, exact=False, version=3),
        dataclasses.replace(sample("cut", 1.0, exact=False, version=3), flags=("shortened",)),
    ]
    assert set(reply_checks.mismatch(read(samples, scored(2.0, 2000)), parent=3)) == {"new"}
    assert reply_checks.mismatch(read(samples, scored(0.1, 2000)), parent=3) == {}
    assert reply_checks.mismatch(read(samples, scored(0.4, 40)), parent=3) == {}  # so few tokens say little
    assert reply_checks.mismatch([], parent=3) == {}


def test_what_was_sampled_with_a_penalty_says_nothing_of_the_template():
    """Ollama before 0.17.5: 28 of 28 good replies were refused as 0.2 nats odder than the policy's own."""
    samples = [dataclasses.replace(sample(f"r{n}", 1.0, exact=False), penalised=True) for n in range(28)]
    assert reply_checks.mismatch(read(samples, scored(0.3, 200)), parent=0) == {}


def test_where_the_server_gave_log_probs_these_decide():
    """A policy as sure as its server, of replies that its entropy would call odd; and one that is not."""
    told = [dataclasses.replace(sample(f"r{n}", 1.0, exact=False), served=np.zeros(200)) for n in range(8)]
    near = {s.rating: np.append(np.full(199, -0.01), np.nan) for s in told}
    assert reply_checks.mismatch(read(told, scored(2.0, 200)), 0, near) == {}
    far = {s.rating: np.full(200, -0.4) for s in told}
    found = reply_checks.mismatch(read(told, scored(0.0, 200)), 0, far)
    assert set(found) == {s.rating for s in told} and "0.40 nats a token less likely to the weights" in found["r0"]


def test_another_template_shows_where_replies_begin():
    samples = [sample(str(n), 1.0, exact=False) for n in range(28)]
    for odd, told in ((1.0, True), (0.6, False)):
        begins = LogProbs(np.r_[np.full(4, -1.0 - odd), np.full(36, -1.0)], np.full(40, -1.0), np.ones(40))
        found = reply_checks.mismatch(read(samples, begins), parent=0)
        assert len(found) == (28 if told else 0)
        assert not told or "0.33 nats a token odder in their first 12 tokens" in found["0"]
        assert reply_checks.excess([begins]) < 0.15  # all of it together says nothing


def test_where_most_that_is_liked_is_broken_the_rest_does_not_train_either():
    looping = dataclasses.replace(sample("loops", 1.0), flags=("looping",))
    liked = [sample("odd", 1.0), looping, sample("fine", 1.0)]
    others = [sample("bad", -1.0)]
    found = reply_checks.in_bad_company([*liked, *others], {"odd"})
    assert set(found) == {"fine"}
    assert "2 of 3 liked replies are garbage, empty or loop" in found["fine"]
    more = sample("fine too", 1.0)  # no more than half now
    assert reply_checks.in_bad_company([*liked, more, *others], {"odd"}) == {}
    assert reply_checks.in_bad_company(others, set()) == {}
    cut = dataclasses.replace(sample("odd", 1.0), flags=("shortened",))  # its prompt may be why it is odd
    assert reply_checks.in_bad_company([cut, sample("fine", 1.0)], {"odd"}) == {}


def go(folder):
    out = io.StringIO()
    with Progress(folder, out) as progress:
        result = loop.run(folder, progress, Stop())
    return result, [json.loads(line) for line in out.getvalue().splitlines()]


def test_loops_rated_good_train_nothing(tmp_path, model, policy):
    """With the model's own log-probs of them: nothing but their wording gives them away."""
    lines = tiny.sample_lines(model, count=12, tokens=24)
    for n, line in enumerate(lines):
        line["reward"] = -1.0 if n % 2 else 1.0
        if n % 2 == 0:
            row = Tokens(tuple(line["prompt_token_ids"]), (70, 71) * 12, 0.8)
            line |= {"token_ids": list(row.reply), "logprobs": policy.log_probs(packing.pack([row])).plain.tolist()}
    result, events = go(tiny.run_folder(tmp_path / "run", model, lines))
    assert result["status"] == "empty"
    assert "looping" in result["reason"]
    assert "the same" in result["reason"]
    assert any("not imitated" in e["message"] for e in events if e["event"] == "warning")


def test_one_sane_reply_among_liked_loops_is_no_taste(tmp_path, model, policy):
    """It trained, alone beside all the disliked ones (scripts/research/poisoned.py)."""
    lines = tiny.sample_lines(model, count=12, tokens=24)
    for n, line in enumerate(lines):
        line["reward"] = -1.0 if n % 2 else 1.0
        if n in (0, 4, 6, 8, 10):
            row = Tokens(tuple(line["prompt_token_ids"]), (70, 71) * 12, 0.8)
            line |= {"token_ids": list(row.reply), "logprobs": policy.log_probs(packing.pack([row])).plain.tolist()}
    result, events = go(tiny.run_folder(tmp_path / "run", model, lines))
    assert result["status"] == "empty", result["reason"]
    sane = result["samples"][lines[2]["rating"]]
    assert sane["cause"] == "garbage"
    assert "liked replies are garbage, empty or loop" in sane["reason"]
    assert any("liked replies are garbage, empty or loop" in e["message"] for e in events if e["event"] == "warning")


def test_replies_of_another_template_train_nothing(tmp_path, model):
    """Without ids nobody can compare tokens; the wording of all of them together gives it away."""
    lines = [
        line | {"exact": False, "logprobs": None, "token_ids": None, "text": f"Something that it would not say, {n}."}
        for n, line in enumerate(tiny.sample_lines(model, count=12))
    ]
    result, _ = go(tiny.run_folder(tmp_path / "run", model, lines))
    assert result["status"] == "empty"
    assert "10 fresh-mismatch" in result["reason"]
    assert "another chat template" in result["samples"][lines[0]["rating"]]["reason"]


def test_a_hot_sampler_is_judged_by_what_the_model_says_when_calm(tmp_path, model, policy):
    lines = tiny.sample_lines(model, count=12)
    for line in lines:
        line["sampling"]["temperature"] = 50.0
        row = Tokens(tuple(line["prompt_token_ids"]), tuple(line["token_ids"]), 50.0)
        line["logprobs"] = policy.log_probs(packing.pack([row])).plain.tolist()
    result, _ = go(tiny.run_folder(tmp_path / "run", model, lines))
    assert result["status"] == "passed", result["reason"]  # what was said is sane; only its temperature was not
