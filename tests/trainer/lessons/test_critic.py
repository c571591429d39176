"""The critic of whole replies: right where there is something to see, and not trusted where there is not."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness import tiny
from trainer.lessons import credit_assignment, critic
from trainer.lessons.critic import Labels

WIDTH = 40


def rated(count=60, signal=2.0, seed=0, wrong=0.0, groups=None, long=0.0, run=1):
    """Replies whose first feature leans to their rating by `signal` deviations, and their length by `long`."""
    rng = np.random.default_rng(seed)
    sign = np.where(np.arange(count) % 2 == 0, 1.0, -1.0)
    features = rng.standard_normal((count, WIDTH)).astype(np.float32)
    features[:, 0] += signal / 2 * sign
    length = rng.standard_normal(count) + long / 2 * sign
    said = np.where(rng.random(count) < wrong, -sign, sign)
    groups = np.arange(count) if groups is None else groups
    return Labels(features, length, said, groups, np.full(count, run))


def test_what_is_there_to_see_is_seen_though_some_ratings_are_wrong():
    found = critic.evaluate(rated(count=100, signal=5.0, wrong=0.05), 0)
    assert found.trusted, found.reason
    assert found.lower > 0.6 and found.by_chance == 0.05
    assert found.labels == 100 and found.scores.shape == (100,)
    assert "AUC" in found.reason and "length alone" in found.reason


def test_what_was_learned_holds_for_replies_that_it_has_not_seen():
    known = rated(count=140, signal=5.0)
    made = known.rows(slice(100))
    scores = critic.predict(made, known.features[100:], 0)
    assert scores.shape == (40,) and critic.auc(scores, known.sign[100:]) > 0.8


def test_a_coin_is_hardly_ever_trusted():
    assert sum(critic.evaluate(rated(count=32, signal=0.0, seed=seed), seed).trusted for seed in range(30)) <= 1


def test_what_only_length_tells_is_not_what_the_critic_tells():
    found = critic.evaluate(rated(signal=2.0, long=9.0, seed=3), 0)
    assert found.of_length > 0.99 > found.auc and not found.trusted


def test_one_conversation_is_on_one_side():
    """Features that only name the conversation say nothing about another one."""
    rng = np.random.default_rng(1)
    names = rng.standard_normal((12, WIDTH)).astype(np.float32) * 5
    groups = np.arange(60) // 5
    sign = np.where(groups % 2 == 0, 1.0, -1.0)
    known = Labels(names[groups], np.zeros(60), sign, groups, np.ones(60, int))
    assert not critic.evaluate(known, 0).trusted
    leaking = critic.evaluate(known._replace(group=np.arange(60)), 0)
    assert leaking.auc > 0.95  # which is what grouping is for


@pytest.mark.parametrize("count", [0, 4, 11])
def test_of_too_few_nothing_is_fitted(count):
    found = critic.evaluate(rated(count=count), 0)
    assert found == critic.UNTRUSTED or found.labels == 0
    assert not found.trusted and "fewer than 6" in found.reason


@given(st.lists(st.integers(0, 12), min_size=5, max_size=60), st.integers(0, 9))
def test_a_conversation_is_never_split(groups, seed):
    group = np.array(groups)
    fold = critic.assign_folds(group, seed)
    assert all(len(set(fold[group == name])) == 1 for name in group)
    assert set(fold) <= set(range(critic.FOLDS))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.sampled_from([1.0, -1.0])), min_size=2, max_size=30))
def test_the_area_is_the_share_of_pairs_in_order(drawn):
    scores, y = (np.array(each, float) for each in zip(*drawn, strict=True))
    pairs = [(a > b) + 0.5 * (a == b) for a, p in drawn if p > 0 for b, n in drawn if n < 0]
    if pairs:
        assert critic.auc(scores, y) == pytest.approx(np.mean(pairs))
        assert 0 < critic.deviation(critic.auc(scores, y), y) < 1


def test_the_fit_is_where_the_gradient_of_the_likelihood_is_0():
    known = rated(count=24, signal=1.0)
    kernel, y, ridge = critic.kernel_of(critic.standardise(known.features)), known.sign, 3.0
    weight, bias = critic.fit(kernel, y, ridge)
    f = kernel @ weight + bias
    slope = -y / (1 + np.exp(y * f))  # dL/df of log(1 + exp(−y f)); both signs are as many here, so c = 1
    assert slope + ridge * weight == pytest.approx(np.zeros(24), abs=1e-4)
    assert slope.sum() == pytest.approx(0.0, abs=1e-3)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.integers(0, 99))
def test_ratings_are_dealt_out_by_conversation(group, seed):
    group, y = np.array(group), np.arange(float(len(group)))
    found = critic.deal(y, group, np.random.default_rng(seed))
    assert sorted(found) == sorted(y)
    sizes = np.bincount(group)
    if len(set(sizes[sizes > 0])) == 1:  # as many of each: they stay together
        assert all(len(set(group[found[group == name].astype(int)])) == 1 for name in set(group))


def test_a_topic_that_is_liked_is_no_taste():
    """Ratings that follow their conversation, and nothing that carries over to another one."""
    dice, taken = np.random.default_rng(0), 0
    for _ in range(12):
        group = np.repeat(np.arange(8), 4)
        y = dice.permutation(np.repeat([1.0, -1.0], 4))[group]
        topics = dice.normal(0, 1, (8, 32))[group]
        states = [(t + dice.normal(0, 0.5, 32) + dice.normal(0, 1, (11, 32))).astype(np.float32) for t in topics]
        found = critic.label_replies(states, y, group)
        taken += credit_assignment.explain_by_means(found, y, 0)[1] <= credit_assignment.BY_CHANCE
        taken += credit_assignment.credit(states, y, found, 0).by_chance <= credit_assignment.BY_CHANCE
    assert not taken


def test_labels_go_with_a_version_and_the_newest_stay():
    old, new = rated(count=150), rated(count=100, seed=1)
    kept = critic.read({name: np.asarray(each) for name, each in old.arrays().items()}, WIDTH)
    assert kept is not None
    both = critic.join(kept, new)
    assert len(both.sign) == critic.MOST and (both.features[-100:] == new.features).all()
    assert both.features[0] == pytest.approx(old.features[150 - 92], abs=1e-2)  # half precision
    assert critic.read(old.arrays(), WIDTH + 1) is None and critic.read({}, WIDTH) is None
    broken = old.arrays() | {"critic_sign": np.zeros(3)}
    assert critic.read(broken, WIDTH) is None


def of_runs(*signals):
    """Labels of one run after the other, each of its own conversations, and with its own signal."""
    labels = None
    for run, signal in enumerate(signals, 1):
        groups = np.arange(28) + run * 28
        labels = critic.join(labels, rated(28, signal, seed=run, groups=groups, run=run))
    return labels


def test_ratings_of_one_taste_are_all_heard():
    for seed in range(5):
        newest = critic.relevant(of_runs(3.0, 3.0, 3.0), rated(28, 3.0, seed=50 + seed, run=4), 0)
        assert newest is not None and len(newest.sign) >= 56


def test_ratings_that_speak_against_these_are_not_heard():
    """Of another taste, by which the replies that are liked now were disliked."""
    for seed in range(5):
        current = rated(28, 6.0, seed=50 + seed, run=4)
        assert critic.relevant(of_runs(-6.0, -6.0, -6.0), current, 0) is None
        newest = critic.relevant(of_runs(-6.0, -6.0, 6.0), current, 0)  # the last run was of this taste already
        assert newest is None or set(newest.run) == {3}


def test_where_one_side_has_too_few_to_ask_all_ratings_are_heard():
    current = rated(28, 6.0, run=4)._replace(sign=np.where(np.arange(28) < 5, -1.0, 1.0))
    earlier = of_runs(-6.0, -6.0)
    assert critic.relevant(earlier, current, 0) is earlier
    assert critic.relevant(None, current, 0) is None


def test_what_it_sees_of_a_reply_is_the_mean_and_the_last_state(tmp_path_factory):
    model = tiny.make_model(tmp_path_factory.mktemp("models") / "tiny")
    samples = tiny.rated(model, 4)
    states = [np.arange(3.0 * (len(s.tokens.reply) + 1)).reshape(-1, 3).astype(np.float32) for s in samples]
    found = critic.label_replies(states, [s.reward for s in samples], [critic.conversation(s) for s in samples])
    assert found.features.shape == (4, 6)
    assert found.features[0, :3] == pytest.approx(states[0][1:].mean(0))
    assert found.features[0, 3:] == pytest.approx(states[0][-1])
    assert found.length[0] == pytest.approx(math.log(len(states[0])))
    talk = ({"role": "user", "content": "hi"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"})
    one, other = replace(samples[0], messages=talk[:1]), replace(samples[1], messages=talk)
    assert critic.conversation(one) == critic.conversation(other) != critic.conversation(samples[2])


class Seen:
    """A scorer that knows the states of each reply."""

    def __init__(self, states):
        self._states = states
        self.spec = type("Spec", (), {"seed": 0})

    def states(self, sequences):
        return [self._states[one] for one in sequences]


def test_unrated_answers_are_guessed_only_by_a_critic_that_is_trusted():
    rng = np.random.default_rng(4)
    known = rated(count=100, signal=6.0)
    found = critic.evaluate(known, 0)
    assert found.trusted
    half = WIDTH // 2

    def states(lean):  # whose mean is all noise, and whose last state leans as the liked ones do
        made = rng.standard_normal((5, half)).astype(np.float32) * 0.1
        made[1:, 0] += lean
        return made

    leans = {f"rl-{n}": 6.0 if n % 2 else -6.0 for n in range(8)}
    samples = [type("One", (), {"rating": id, "tokens": id}) for id in leans]
    odds = critic.guess(known, found, Seen({id: states(lean) for id, lean in leans.items()}), samples)
    assert odds.keys() == leans.keys()
    assert all((odds[id] > 0) is (lean > 0) for id, lean in leans.items())
    assert critic.guess(known, found._replace(lower=0.5), Seen({}), samples) == {}
    assert critic.guess(None, found, Seen({}), samples) == {}


def test_labels_of_a_run_have_the_newest_last(tmp_path):
    """Samples come newest first."""
    samples = [replace(s, reward=(-1.0) ** at) for at, s in enumerate(tiny.rated(tiny.make_model(tmp_path / "m"), 9))]
    known = critic.label_run(tiny.scorer(tmp_path, tmp_path / "m"), samples)
    assert known is not None and known.group.tolist() == [critic.conversation(s) for s in samples][::-1]
