"""The draw of an arm: the same for a conversation, by the share for many, and none for one that was under way."""

from __future__ import annotations

from proxy.versions.arms import Arms
from store.learning.experiments import Experiment


def experiment(share: float = 0.5, salt: bytes = b"s" * 16) -> Experiment:
    return Experiment(1, 7, 6, share, salt, "admin", 0.0, None, None, None, None)


def drawn(share: float, salt: bytes = b"s" * 16) -> list[bool]:
    arms = Arms()
    arms.begin(experiment(share, salt), {})
    assigned = [arms.assign(f"talk-{n}".encode(), has_history=False) for n in range(2000)]
    return [each is not None and each.turn.is_candidate for each in assigned]


def test_the_share_holds_and_another_salt_draws_anew() -> None:
    for share in (0.1, 0.5, 0.9):
        assert abs(sum(drawn(share)) / 2000 - share) < 0.04
    same = sum(a == b for a, b in zip(drawn(0.5), drawn(0.5, b"t" * 16), strict=True))
    assert 850 < same < 1150


def test_a_conversation_keeps_its_arm_also_after_a_restart() -> None:
    arms = Arms()
    arms.begin(experiment(), {})
    first = {n: arms.assign(f"{n}".encode(), has_history=False) for n in range(50)}
    assert [arms.assign(f"{n}".encode(), has_history=True) for n in range(50)] == list(first.values())
    again = Arms()
    again.begin(experiment(), {each.turn.conversation: each.turn.is_candidate for each in first.values() if each})
    assert [again.assign(f"{n}".encode(), has_history=True) for n in range(50)] == list(first.values())
    assert again.conversations == arms.conversations and sum(arms.conversations) == 50


def test_one_that_was_under_way_is_not_drawn_and_nothing_is_without_an_experiment() -> None:
    arms = Arms()
    assert arms.assign(b"a", has_history=False) is None and arms.versions() == set()
    arms.begin(experiment(), {})
    assert arms.assign(b"a", has_history=True) is None and arms.versions() == {6, 7}
    arms.end()
    assert arms.versions() == set() and arms.conversations == (0, 0)
