"""Which replica a request goes to: where its conversation was read before, unless others have much less to do.

A server that has read a conversation finds it in its cache. So each conversation has an order of the replicas of its
own, by rendezvous hashing (Thaler and Ravishankar 1998). The first in it that is not ahead of the others takes the
request: consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam, arXiv 1608.01350). A replica that comes
or goes moves only the conversations that are its own. Not here: which replicas answer (replicas).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

BALANCE: Final = 1.25  # times the mean of answers under way that a replica takes before its conversations go elsewhere


class Loaded(Protocol):
    url: str
    in_flight: int  # answers under way
    turn: int  # when it was last asked, as a number


R = TypeVar("R", bound=Loaded)


def choose(replicas: Sequence[R], conversation: bytes | None) -> R:
    """`replicas`: one at least. Without a conversation, the one with the fewest answers under way; of several, the one
    whose turn it is."""
    if conversation is None or len(replicas) == 1:
        return min(replicas, key=lambda replica: (replica.in_flight, replica.turn))
    most = math.ceil(BALANCE * (sum(replica.in_flight for replica in replicas) + 1) / len(replicas))
    free = [replica for replica in replicas if replica.in_flight < most]
    return max(free, key=lambda replica: _weight(replica.url, conversation))


def _weight(url: str, conversation: bytes) -> bytes:
    return hashlib.blake2b(url.encode() + b"\0" + conversation, digest_size=8).digest()
