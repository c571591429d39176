"""Which replica a conversation goes to."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from proxy.backends.replicas.choice import BALANCE, choose


@dataclass
class Server:
    url: str
    in_flight: int = 0
    turn: int = 0


def servers(count: int) -> list[Server]:
    return [Server(f"http://10.0.0.{number}:8000") for number in range(count)]


loads = st.lists(st.integers(0, 40), min_size=1, max_size=12)


@given(loads, st.binary(max_size=8))
def test_a_conversation_is_where_it_was_while_that_one_is_not_ahead(under_way: list[int], conversation: bytes) -> None:
    replicas = servers(len(under_way))
    favourite = choose(replicas, conversation)
    for replica, count in zip(replicas, under_way, strict=True):
        replica.in_flight = count
    choice = choose(replicas, conversation)
    most = math.ceil(BALANCE * (sum(under_way) + 1) / len(under_way))
    assert choice.in_flight < most or len(replicas) == 1
    if favourite.in_flight < most:
        assert choice is favourite


@given(loads)
def test_without_a_conversation_the_least_busy_is_asked(under_way: list[int]) -> None:
    replicas = servers(len(under_way))
    for replica, count in zip(replicas, under_way, strict=True):
        replica.in_flight = count
    assert choose(replicas, None).in_flight == min(under_way)


@given(st.integers(2, 9))
def test_one_that_goes_moves_its_own_conversations_only(count: int) -> None:
    replicas = servers(count)
    conversations = [str(number).encode() for number in range(100)]
    before = {name: choose(replicas, name) for name in conversations}
    gone = replicas.pop()
    for name in conversations:
        assert before[name] is gone or choose(replicas, name) is before[name]


def test_conversations_are_spread() -> None:
    replicas = servers(4)
    counts = [0] * 4
    for number in range(4000):
        counts[replicas.index(choose(replicas, str(number).encode()))] += 1
    assert min(counts) > 850 and max(counts) < 1150
