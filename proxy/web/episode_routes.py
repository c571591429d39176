"""`/rl/episodes`: opened, rewarded, listed, shown.

Owns HTTP. What a program may say is proxy.feedback.episodes', what is stored store.learning.episodes'.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from aiohttp import web

from proxy.access.security import principal_of
from proxy.core.errors import BadRequest, NotFound, ProxyError
from proxy.core.json_response import json_object, json_response
from proxy.dialects.identity import user_in
from proxy.feedback.episodes import PRINTABLE, Episodes, as_split, group_in
from proxy.relay.request_body import COPIES, hold
from proxy.training.segments import segments
from proxy.versions.lines import HEADER, Lines
from proxy.versions.live_version import LiveVersion
from proxy.web.openapi.episodes import EpisodeBody, EpisodesOfVersion, EpisodeTurn, RewardsBody
from proxy.web.query import flag, number
from store.learning.episodes import STATES, Episode, VersionEpisodes
from store.records import Completion
from store.store import Store

PAGE: Final = 50
QUOTE_LENGTH: Final = 200  # characters of each turn


class EpisodeRoutes:
    def __init__(self, store: Store, episodes: Episodes, live_version: LiveVersion, lines: Lines) -> None:
        self._store = store
        self._episodes = episodes
        self._live_version = live_version
        self._lines = lines

    async def open(self, request: web.Request) -> web.Response:
        principal, user = principal_of(request), user_in(request.headers)
        line = self._lines.permit(principal, request.headers.get(HEADER))
        live = None if self._live_version.foreign else self._live_version.live_of(line)
        body = await json_object(request, may_be_empty=True)
        episode, new = await self._episodes.open(principal.key, body, live, user, line)
        base = f"{request.scheme}://{request.host}/s/{quote(episode.id, safe='')}/v1"
        return json_response({**episode_json(episode), "base_url": base}, 201 if new else 200)

    async def reward(self, request: web.Request) -> web.Response:
        """201: stored; 200: changed, or said before."""
        key, user = _key(request), user_in(request.headers)
        rewarded = await self._episodes.reward(request.match_info["id"], key, await json_object(request), user)
        stored = rewarded.result == "stored"
        return json_response({**episode_json(rewarded.episode), "result": rewarded.result}, 201 if stored else 200)

    async def reward_each(self, request: web.Request) -> web.Response:
        """Lines of JSON, as many as the body may hold; `?dry_run` stores nothing."""
        key, user, dry_run = _key(request), user_in(request.headers), flag(request, "dry_run")
        lines = enumerate((await request.read()).split(b"\n"), start=1)
        rows = [(line_number, line) for line_number, line in lines if line.strip()]
        if not rows:
            raise BadRequest("The body holds no line; nothing was stored.")
        results = await self._episodes.reward_each([line for _, line in rows], key, user, dry_run=dry_run)
        answer: RewardsBody = {"stored": 0, "changed": 0, "same": 0, "refused": []}
        for (line_number, _), result in zip(rows, results, strict=True):
            if isinstance(result, ProxyError):
                answer["refused"].append({"line": line_number, "status": result.status, "why": str(result)})
            else:
                answer[result.result] += 1
        return json_response(answer)

    async def list(self, request: web.Request) -> web.Response:
        """Newest first; `before` is the `seq` to go on from."""
        state = request.query.get("state")
        if state is not None and state not in STATES:
            raise BadRequest(f"`state` must be {', '.join(STATES[:-1])} or {STATES[-1]}.", param="state")
        key = _key(request)
        episodes = await self._store.episodes.page(
            limit=number(request, "limit", PAGE, 1, 1000),
            before_seq=number(request, "before", None, 1, 2**62),
            key=key,
            group=group_in(request.query),
            state=state,
            split=as_split(request.query.get("split")),
        )
        counts = await self._store.episodes.counts(key)
        versions = [version_json(version) for version in await self._store.episodes.by_version(key)]
        return json_response(
            {"data": [episode_json(episode) for episode in episodes], "counts": counts._asdict(), "versions": versions}
        )

    async def show(self, request: web.Request) -> web.Response:
        """One with its turns, the segment of each, and what they said in brief."""
        id, key = request.match_info["id"], _key(request)
        episode = await self._store.episodes.find(id, key) if PRINTABLE.fullmatch(id) else None
        if episode is None:
            raise NotFound(
                "There is no such episode: open it with `POST /rl/episodes`, or reward a session that was used.",
                param="id",
            )
        rewards = {turn.completion_id: turn.reward for turn in await self._store.episodes.turns(episode)}
        hold(request, COPIES * await self._store.sizes.whole(list(rewards), None))
        turns = await self._store.completions.many(list(rewards))
        turn_segments = segments(turns)
        return json_response({
            **episode_json(episode),
            "turns": [
                turn_json(turn, segment, rewards[turn.new.id])
                for turn, segment in zip(turns, turn_segments, strict=True)
            ],
            "segments": max(turn_segments, default=-1) + 1,
            "side_turns": await self._store.episodes.side_turns(episode),
        })  # fmt: skip


def episode_json(episode: Episode) -> EpisodeBody:
    return {
        "seq": episode.seq,
        "id": episode.id,
        "state": episode.state,
        "task": episode.task,
        "group": episode.group,
        "split": episode.split,
        "version": episode.version,
        "turn_count": episode.turns,
        "reward": episode.reward,
        "comment": episode.comment,
        "error": episode.error,
        "opened_at": episode.opened_at,
        "ended_at": episode.ended_at,
        "run": episode.run,
        "left_out": episode.left_out,
        "prompt": episode.prompt,
        "meta": episode.meta,
    }


def turn_json(turn: Completion, segment: int, reward: float | None) -> EpisodeTurn:
    end = turn.end
    return {
        "completion_id": turn.new.id,
        "created_at": turn.new.created_at,
        "segment": segment,
        "version": turn.new.version,
        "asked": turn.new.asked[:QUOTE_LENGTH],
        "text": end.text[:QUOTE_LENGTH] if end else "",
        "prompt_tokens": len(end.prompt_token_ids) if end and end.prompt_token_ids else None,
        "tokens": len(end.token_ids) if end and end.token_ids else None,
        "exact": end.exact if end else None,
        "reward": reward,
    }


def version_json(version: VersionEpisodes) -> EpisodesOfVersion:
    return {
        "version": version.version,
        "split": version.split,
        "rollouts": version.rollouts,
        "episodes": version.episodes,
        "success": round(version.successes / version.episodes, 4),
        "mean_reward": round(version.mean, 4),
    }


def _key(request: web.Request) -> str | None:
    """Whose episodes it is about: an admin's are all, but where a server says who speaks."""
    requester = principal_of(request)
    return None if requester.role == "admin" and user_in(request.headers) is None else requester.key
