"""Episodes as requests name them: which version each gets, and what a program says of them.

Owns the versions that are pinned, in memory, and the checks on what a program sends. A session is an episode when a
call has opened it, or when a program has rewarded it. It is one, too, when its key has opened or rewarded one within
the last hour. Then each new session that is named as harnesses do is one, from its first request on. Not here: what is
stored (store.learning.episodes), HTTP (proxy.web.episode_routes).
"""

from __future__ import annotations

import math
import re
import time
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import uuid4

import orjson

from proxy.conversation.redaction import Redactor
from proxy.core.errors import BadRequest, Conflict, Gone, NotFound, ProxyError, TooMany
from proxy.core.events import Events
from proxy.core.json_edit import DEEPEST, is_deeper
from proxy.feedback.reward_function import RewardFunction
from store import errors
from store.learning.episodes import Episode, NewEpisode, NewReward, RewardResult, Split
from store.line_records import COMMON
from store.store import Store

ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}")  # stands in a path
PRINTABLE: Final = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
PROGRAM_S: Final = 3600.0  # after its last reward, a key's new sessions are not episodes by themselves any more
KEEPS_S: Final = 600.0  # after its last request, an episode's version may be unloaded
LATELY_S: Final = 60.0
MAX_SESSIONS: Final = 20_000  # sessions whose state is kept in memory
MOST_OPEN: Final = 20_000  # episodes without a reward
LONGEST: Final = {"task": 4000, "comment": 4000, "error": 4000}
META_BYTES: Final = 16_384
MOST_IN_GROUP: Final = 1024
AT_ONCE: Final = 100  # rewards in one turn of the store's writer: requests wait for it


class Pin(NamedTuple):
    """The record of a session."""

    episode: bool
    version: int | None = None
    ended: bool = False
    used: float = 0.0  # monotonic
    line: str = COMMON


class Episodes:
    def __init__(self, store: Store, events: Events, redactor: Redactor, function: RewardFunction) -> None:
        self._store = store
        self.rewarding = function
        function.on_end = self._note_program
        self._events = events
        self._redactor = redactor
        self._pins: OrderedDict[tuple[str, str], Pin] = OrderedDict()
        self._ended: deque[float] = deque(maxlen=MAX_SESSIONS)  # monotonic, of those that ended lately
        self._programs: dict[str, float] = {}  # when each key last said something of an episode, Unix seconds

    async def start(self) -> None:
        self._programs = await self._store.episodes.programs()

    # Requests for the model

    async def pin(
        self, key: str, session: str | None, live: int | None, *, begins: bool, line: str = COMMON
    ) -> Pin | None:
        """The record of this session, and with it the version that its requests get; None where it is not an episode.
        `line`: of a new one. `live` None: nothing is to be pinned. `begins`: whether this request may be the first one
        of an episode.

        Raises Gone after the episode's end.
        """
        if session is None:
            return None
        try:
            pin = self._pins.get((key, session)) or await self._look(key, session, live if begins else None, line)
        except errors.StoreAway:  # whether it is one is not known now; the request is answered all the same
            return None
        if pin.ended:
            raise Gone(
                f"The episode {session!r} has ended, since its reward was given; the next attempt needs an id of its "
                "own. What was captured is kept."
            )
        if not pin.episode:
            return None
        return self._keep(key, session, pin._replace(used=time.monotonic()))

    async def _look(self, key: str, session: str, live: int | None, line: str) -> Pin:
        episode = await self._store.episodes.find(session, key)
        if (meanwhile := self._pins.get((key, session))) is not None:  # another request of it was quicker
            return meanwhile
        if episode is not None:
            pin = _pin(episode)
        elif live is None or not self._is_program(key) or await self._store.episodes.sessions_turns(session, key):
            pin = Pin(episode=False)
        else:
            pin = self._pins.get((key, session)) or Pin(episode=True, version=live, line=line)
            self._store.episodes.queue(NewEpisode(session, key, pin.version, posted=False, line=pin.line))
        return self._keep(key, session, pin)

    def _is_program(self, key: str) -> bool:
        return time.time() - self._programs.get(key, -math.inf) < PROGRAM_S

    def _keep(self, key: str, session: str, pin: Pin) -> Pin:
        self._pins[key, session] = pin
        self._pins.move_to_end((key, session))
        while len(self._pins) > MAX_SESSIONS:
            self._pins.popitem(last=False)
        return pin

    def versions(self) -> set[int]:
        """Versions that open episodes have used lately: they are loaded again and again otherwise."""
        since = time.monotonic() - KEEPS_S
        return {
            pin.version for pin in self._pins.values() if pin.version is not None and not pin.ended and pin.used > since
        }

    # What a program says

    async def open(
        self, key: str, body: Mapping[str, Any], live: int | None, user: str | None = None, line: str = COMMON
    ) -> tuple[Episode, bool]:
        """The episode, and whether it is new. `live`: of its line; `user`: whom a server before us names. Raises
        BadRequest, Conflict, TooMany."""
        _only(body, {"id", "task", "group", "group_size", "split", "meta"})
        id = body.get("id") if body.get("id") is not None else f"ep-{uuid4().hex[:20]}"
        if not isinstance(id, str) or not ID.fullmatch(id):
            raise BadRequest(
                "`id` must be 1 to 128 letters, digits or `._:@-`, the first a letter or a digit: it stands in an "
                "address. Nothing was opened.",
                param="id",
            )
        split = body.get("split", "train")
        if split not in ("train", "eval"):
            raise BadRequest("`split` must be train or eval; nothing was opened.", param="split")
        meta = body.get("meta")
        fits = meta is None or (isinstance(meta, dict) and not is_deeper(meta, DEEPEST))
        if not fits or len(orjson.dumps(meta)) > META_BYTES:
            raise BadRequest(
                f"`meta` must be an object of at most {META_BYTES} bytes and {DEEPEST} levels.", param="meta"
            )
        new = NewEpisode(
            id=id,
            key=key,
            version=live,
            task=self._text(body, "task"),
            group=group_in(body),
            group_size=_group_size(body),
            split=split,
            meta=self._redactor.value(meta),
            user=user,
            line=line,
        )
        if await self._store.episodes.open_count(key) >= MOST_OPEN:
            raise TooMany(
                f"{MOST_OPEN} episodes of this key have no reward yet; reward them, or end them with `error`. Nothing "
                "was opened.",
                retry_after=60,
            )
        try:
            episode, is_new = await self._store.episodes.open(new)
        except errors.EpisodeTaken as error:
            raise Conflict(str(error), param="id") from None
        self._note_program(episode)
        if is_new:
            self._events.note("episode")
        return episode, is_new

    async def reward(self, id: str, key: str | None, body: Mapping[str, Any], user: str | None = None) -> RewardResult:
        """Store a reward, of the outcome or of one turn. `key` None: of any key; `user`: as in `open`. Raises
        BadRequest, NotFound, Conflict, Gone."""
        new = self._new_reward(id, key, body, user)
        try:
            rewarded = await self._store.episodes.reward(new)
        except errors.NoReward as error:
            if not self.rewarding.on:
                raise BadRequest(str(error), param="reward") from None
            rewarded = await self.rewarding.end(new)
        except errors.StoreError as error:
            raise refusal(error) or error from None
        self._rewarded([rewarded])
        return rewarded

    async def reward_each(
        self, lines: Sequence[bytes], key: str | None, user: str | None, *, dry_run: bool
    ) -> list[RewardResult | ProxyError]:
        """Do `reward` for each line of JSON, whose `episode` is the id; what is wrong with one costs that one.
        `dry_run`: nothing is stored. Raises StoreError where none can be."""
        read = [self._read(line, key, user) for line in lines]
        good = [new for new in read if isinstance(new, NewReward)]
        outcomes: list[RewardResult | errors.StoreError] = []
        for start in range(0, len(good), AT_ONCE):
            some = await self._store.episodes.reward_each(good[start : start + AT_ONCE], dry_run=dry_run)
            if not dry_run:
                self._rewarded([outcome for outcome in some if isinstance(outcome, RewardResult)])
            outcomes += some
        stored = iter(outcomes)
        return [new if isinstance(new, ProxyError) else _answered(next(stored)) for new in read]

    def _read(self, line: bytes, key: str | None, user: str | None) -> NewReward | ProxyError:
        try:
            body: Any = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            return BadRequest(f"The line is not valid JSON ({error}); nothing was stored.")
        if not isinstance(body, dict) or not isinstance(body.get("episode"), str):
            return BadRequest("The line must be an object with the id of an `episode`; nothing was stored.")
        try:
            return self._new_reward(body.pop("episode"), key, body, user)
        except ProxyError as error:
            return error

    def _new_reward(self, id: str, key: str | None, body: Mapping[str, Any], user: str | None) -> NewReward:
        """Raises BadRequest, NotFound."""
        if not PRINTABLE.fullmatch(id):
            raise NotFound("An episode's id has 1 to 200 printable characters.", param="id")
        _only(body, {"reward", "completion_id", "group", "group_size", "final", "error", "comment", "split"})
        completion = body.get("completion_id")
        if completion is not None and (not isinstance(completion, str) or not completion):
            raise BadRequest("`completion_id` must be the id of one of its completions.", param="completion_id")
        final = body.get("final")
        final = completion is None if final is None else final
        if not isinstance(final, bool):
            raise BadRequest("`final` must be true or false.", param="final")
        value, error = value_in(body), self._text(body, "error")
        if value is not None and error is not None:
            raise BadRequest("An episode has a reward or an error, not both; nothing was stored.", param="error")
        if value is None and error is None and (completion is not None or not final):
            raise BadRequest("`reward` is missing, and a missing reward is not 0; nothing was stored.", param="reward")
        if error is not None and completion is not None:
            raise BadRequest("An error is the whole episode's: leave `completion_id` out.", param="completion_id")
        split = body.get("split")
        if split not in (None, "train", "eval"):
            raise BadRequest("`split` must be train or eval; nothing was stored.", param="split")
        return NewReward(
            id, key, value, completion, final, error, self._text(body, "comment"), group_in(body), _group_size(body),
            user, split,
        )  # fmt: skip

    def _rewarded(self, rewarded: Sequence[RewardResult]) -> None:
        for outcome in rewarded:
            self._note_program(outcome.episode)
            if outcome.result == "stored" and outcome.episode.ended_at is not None:
                self._ended.append(time.monotonic())
        if any(outcome.result != "same" for outcome in rewarded):
            self._events.note("episode")

    @property
    def own_reward_problem(self) -> str | None:
        """Why `train.reward` gave no reward last time."""
        return self.rewarding.problem

    def ended_lately(self) -> int:
        """How many have ended in the last minute."""
        since = time.monotonic() - LATELY_S
        while self._ended and self._ended[0] < since:
            self._ended.popleft()
        return len(self._ended)

    def _text(self, body: Mapping[str, Any], name: str) -> str | None:
        """Without secrets, as all that is kept."""
        text = body.get(name)
        if text is not None and (not isinstance(text, str) or len(text) > LONGEST[name]):
            raise BadRequest(f"`{name}` must be a text of at most {LONGEST[name]} characters.", param=name)
        return None if text is None else self._redactor.text(text)

    def _note_program(self, episode: Episode) -> None:
        self._programs[episode.key] = time.time()
        earlier_pin = self._pins.get((episode.key, episode.id))
        used = earlier_pin.used if earlier_pin is not None else time.monotonic()
        self._keep(episode.key, episode.id, _pin(episode)._replace(used=used))


def _answered(outcome: RewardResult | errors.StoreError) -> RewardResult | ProxyError:
    """Raises the StoreError that is not about this episode."""
    if isinstance(outcome, RewardResult):
        return outcome
    if (refused := refusal(outcome)) is None:
        raise outcome
    return refused


def refusal(error: errors.StoreError) -> ProxyError | None:
    """The HTTP error for what the store says of an episode; None where it says something else."""
    match error:
        case errors.UnknownEpisode() | errors.UnknownCompletion():
            return NotFound(f"{error} Nothing was stored.", param="id")
        case errors.NoReward():
            return BadRequest(f"{error}", param="reward")
        case errors.EpisodeEnded():
            return Gone(str(error))
        case errors.EpisodeUsed() | errors.EpisodeTaken():
            return Conflict(str(error))
        case _:
            return None


def _pin(episode: Episode) -> Pin:
    return Pin(True, episode.version, ended=episode.ended_at is not None, line=episode.line)


def value_in(body: Mapping[str, Any]) -> float | None:
    """Raises BadRequest where it is not a number from -1 to 1."""
    value = body.get("reward")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1 <= value <= 1:
        raise BadRequest("`reward` must be a number from -1 to 1; nothing was stored.", param="reward")
    return float(value)


def group_in(body: Mapping[str, Any]) -> str | None:
    group = body.get("group")
    if group is not None and (not isinstance(group, str) or not PRINTABLE.fullmatch(group)):
        raise BadRequest("`group` must be 1 to 200 printable characters; nothing was stored.", param="group")
    return group


def _group_size(body: Mapping[str, Any]) -> int | None:
    size = body.get("group_size")
    if size is None:
        return None
    # 8.0 is an integer in JSON's eyes, and in JavaScript's the only one there is.
    if isinstance(size, bool) or not isinstance(size, int | float) or size % 1 or not 1 <= size <= MOST_IN_GROUP:
        raise BadRequest(f"`group_size` must be a whole number from 1 to {MOST_IN_GROUP}.", param="group_size")
    return int(size)


def _only(body: Mapping[str, Any], members: set[str]) -> None:
    if unknown := sorted(map(str, body.keys() - members)):
        raise BadRequest(
            f"There is no `{unknown[0][:100]}` here; there is {', '.join(sorted(members))}. Nothing was stored.",
            param=unknown[0][:100],
        )


def as_split(text: str | None) -> Split | None:
    match text:
        case None | "train" | "eval":
            return text
        case _:
            raise BadRequest("`split` must be train or eval.", param="split")
