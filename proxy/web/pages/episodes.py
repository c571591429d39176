"""Episodes: agents' attempts, their rewards over time, and how often each version succeeds.

Owns two views, the list and one episode with its turns, and the points of the drawing. Not here: what a program may
say of an episode (proxy.feedback.episodes), which of them train (store.learning.episode_groups).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from aiohttp import web

from proxy.checks.statistics import wilson
from proxy.core.errors import NotFound
from proxy.relay.request_body import COPIES, hold
from proxy.training.segments import segments
from proxy.web.pages.view import View
from proxy.web.query import number
from proxy.web.status import StatusReport
from store.learning.episodes import Split
from store.store import Store

PAGE_SIZE: Final = 50
FEWEST: Final = 8  # rewards that a point of the drawing is the mean of
POINTS: Final = 40  # of a line, at most
WIDTH: Final = 640
HEIGHT: Final = 160


class RewardLine(NamedTuple):
    split: Split
    points: list[tuple[float, float]]  # in the drawing's units, from its left upper corner

    @property
    def path(self) -> str:
        return " ".join(f"{x:g},{y:g}" for x, y in self.points)


def lines(rewards: Sequence[tuple[float, float, int | None, Split]]) -> list[RewardLine]:
    """The mean reward (-1 below, 1 above) of some episodes at a time, in the order in which rewards came."""
    reward_lines = []
    splits: tuple[Split, ...] = ("train", "eval")
    for split in splits:
        placed_rewards = [
            (index, reward) for index, (_, reward, _, reward_split) in enumerate(rewards) if reward_split == split
        ]
        size = max(FEWEST, -(-len(placed_rewards) // POINTS))
        parts = [placed_rewards[start : start + size] for start in range(0, len(placed_rewards), size)]
        means = [
            (sum(index for index, _ in part) / len(part), sum(reward for _, reward in part) / len(part))
            for part in parts
        ]
        x_span, y_span = max(1, len(rewards) - 1), 2.0
        reward_lines.append(
            RewardLine(split, [(round(WIDTH * x / x_span, 1), round(HEIGHT * (1 - y) / y_span, 1)) for x, y in means])
        )
    return [line for line in reward_lines if line.points]


class EpisodesPage:
    def __init__(self, view: View, store: Store, status: StatusReport) -> None:
        self._view = view
        self._store = store
        self._status = status

    async def page(self, request: web.Request) -> web.Response:
        before_seq = number(request, "before", None, 1, 2**62)
        episodes = await self._store.episodes.page(limit=PAGE_SIZE + 1, before_seq=before_seq)
        return self._view.page(
            request,
            "episodes.html",
            episodes=episodes[:PAGE_SIZE],
            next_seq=episodes[PAGE_SIZE - 1].seq if len(episodes) > PAGE_SIZE else None,
            first=before_seq is None,
            totals=await self._status.episodes(),
            shares=await self._shares(),
            lines=lines(await self._store.episodes.rewards()),
            width=WIDTH,
            height=HEIGHT,
        )

    async def show(self, request: web.Request) -> web.Response:
        episode = await self._store.episodes.find(request.match_info["id"], None)
        if episode is None:
            raise NotFound("There is no such episode.", param="id")
        rewards = {turn.completion_id: turn.reward for turn in await self._store.episodes.turns(episode)}
        hold(request, COPIES * await self._store.sizes.whole(list(rewards), None))
        turns = await self._store.completions.many(list(rewards))
        return self._view.page(
            request,
            "episode.html",
            episode=episode,
            turns=[
                {"turn": turn, "segment": segment, "reward": rewards[turn.new.id]}
                for turn, segment in zip(turns, segments(turns), strict=True)
            ],
            side_turns=await self._store.episodes.side_turns(episode),
        )

    async def _shares(self) -> list[dict[str, Any]]:
        """Successes (a reward above 0) of each version and split, with 95 % bounds."""
        shares = []
        for row in await self._store.episodes.by_version():
            interval = wilson(row.successes, row.episodes)
            assert interval is not None, "there is one at least"
            shares.append({**row._asdict(), **interval._asdict()})
        return shares
