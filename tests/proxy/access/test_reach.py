from __future__ import annotations

import pytest

from proxy.access.keys import OWNERS, SHARED, Reach, Who
from scripts.harness.records import new
from store.records import Asker

OWNER, BOSS, GATEWAY = Who("admin"), Who("admin", "b0", "boss"), Who("rate")
ANN, BOB = Who("use", "a1", "ann"), Who("rate", "b2", "bob")


def test_what_completions_are_kept_under() -> None:
    assert [who.key for who in (OWNER, BOSS, GATEWAY, ANN)] == [OWNERS, "b0", SHARED, "a1"]


@pytest.mark.parametrize(
    ("reach", "key", "user", "covered"),
    [
        (Reach(ANN), "a1", "ann", True), (Reach(ANN, "desk"), "a1", "desk", True),
        (Reach(ANN), "a1", "desk", False),
        (Reach(ANN, "desk"), "a1", "lab", False), (Reach(ANN, "desk"), "a1", "ann", True),
        (Reach(BOB, "ann"), "a1", "ann", False), (Reach(BOB), OWNERS, None, False), (Reach(BOB), SHARED, None, False),
        (Reach(GATEWAY, "ann"), SHARED, "ann", True), (Reach(GATEWAY, "ann"), "a1", "ann", False),
        (Reach(GATEWAY, "bob"), SHARED, "ann", False), (Reach(GATEWAY), SHARED, "ann", False),
        (Reach(GATEWAY), SHARED, None, True), (Reach(GATEWAY, "ann"), SHARED, None, True),
        # An admin has all, and who names somebody only theirs.
        (Reach(OWNER), "a1", "ann", True), (Reach(BOSS), "a1", "ann", True),
        (Reach(OWNER, "ann", ("ann",)), "a1", "ann", False),
        (Reach(OWNER, "ann", ("ann",)), OWNERS, "ann", True), (Reach(OWNER, "ann", ("ann",)), OWNERS, "bob", False),
        (Reach(BOSS, "ann", ("ann",)), OWNERS, "ann", True), (Reach(BOSS, "ann", ("ann",)), "b0", "ann", True),
        # From before keys were kept: the name of the key, never one that the request gives.
        (Reach(ANN), None, "ann", True), (Reach(BOB, "ann"), None, "ann", False), (Reach(BOB), None, None, False),
        (Reach(GATEWAY), None, None, False), (Reach(BOSS), None, None, True),
        (Reach(GATEWAY, "ann"), None, "ann", True), (Reach(GATEWAY), None, "ann", False),
        (Reach(OWNER), None, "ann", True), (Reach(OWNER, "ann", ("ann",)), None, "bob", False),
        (Reach(OWNER, None, ("42",)), "a1", "ann", False), (Reach(OWNER, None, ("42",)), OWNERS, None, True),
    ],
)  # fmt: skip
def test_what_a_request_may_read(reach: Reach, key: str | None, user: str | None, covered: bool) -> None:
    assert reach.covers(new("x", key=key, user=user)) is covered


@pytest.mark.parametrize(
    ("reach", "own"),
    [
        (Reach(OWNER), {(OWNERS, None), (None, None)}),
        (Reach(BOSS), {(k, u) for k in ("b0", OWNERS, None) for u in (None, "boss")}),
        (Reach(OWNER, "ann"), {(OWNERS, "ann"), (None, "ann")}),
        (Reach(ANN), {("a1", "ann"), (None, "ann")}),
        (Reach(BOB, "ann"), {("b2", "ann"), (None, "bob")}),
        (Reach(GATEWAY), {(SHARED, None), (None, None)}),
        (Reach(GATEWAY, "ann"), {(SHARED, "ann"), (None, "ann")}),
    ],
)
def test_whose_answers_somebody_means(reach: Reach, own: set[tuple[str | None, str | None]]) -> None:
    assert set(reach.own()) == {Asker(*one) for one in own}
    assert set(reach.own(unnamed=True)) >= {*reach.own(), Asker(reach.who.key, None)}
