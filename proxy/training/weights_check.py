"""Does the server run the model whose weights train? Asked before the first run, and when either has changed.

Owns when it is asked, what is sent to the server for it, and the verdict. The store keeps that with the identity of
both sides. After the first answers prompts alone are compared, without the weights; at the first rating all of it. What
could not be asked stops nothing; another model does, unless a person says otherwise (train.match). Not here: the
comparison and its bounds (weights_compare), the weights' side (trainer.probe), when to train (run_supervisor).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, NotRequired, cast

import structlog
from pydantic import Field
from typing_extensions import TypedDict

from config.settings import Settings
from proxy.backends.ask import ask
from proxy.backends.base import Backend, ModelDescription, Prompt, place_for
from proxy.backends.weights_files import fingerprint
from proxy.core.errors import BackendBroke, BackendDown
from proxy.core.events import Events
from proxy.core.json_edit import loads
from proxy.core.upstream import message_in
from proxy.training.weights_compare import CHATS, TOKENS, Chat, ProbeAnswer, WeightsVerdict, compare
from store.store import Store
from trainer.launch import Launcher, LaunchError

log = structlog.get_logger()

META: Final = "match"
RULES: Final = 3  # of the comparison: a verdict by other ones is asked for anew
ANSWER_S: Final = 300.0  # for one short reply of a large model on a CPU
LOOK_S: Final = 30.0  # how often the server is asked who it is, while ratings come
OVERRIDE: Final = 'train.match = "warn" trains all the same'
# For servers of which nothing more is known. llama-server tells log-probs only with at least one alternative.
ASKS: Final[dict[str, Any]] = {"logprobs": True, "top_logprobs": 1}

# Two processes and a load of the weights would find out what is known already.
OWN_SERVER: Final = WeightsVerdict("same", "rlproxy started the server on the very files that train")


class RenderingBody(TypedDict):
    known: bool
    line: str
    server: Annotated[str | None, Field(description="The first prompt that differs, as the server renders it.")]
    weights: Annotated[str | None, Field(description="The same, by the chat template of the weights.")]
    read: NotRequired[Annotated[int | None, Field(description="How many tokens the server says that it read there.")]]
    made: NotRequired[Annotated[int | None, Field(description="How many the chat template of the weights makes.")]]


class MatchBody(TypedDict):
    state: Literal["unasked", "same", "other", "unknown"]
    line: str
    apart: float | None
    regret: float | None
    rendering: RenderingBody | None
    stops: bool


class WeightsCheck:
    def __init__(self, settings: Settings, store: Store, backend: Backend, launcher: Launcher, events: Events) -> None:
        self._settings = settings
        self._store = store
        self._backend = backend
        self._launcher = launcher
        self._events = events
        self._of: dict[str, Any] | None = None  # the two that the verdict is about
        self._looked = -LOOK_S
        self._asking = asyncio.Lock()
        self._down: str | None = None  # why the server could not be asked
        self.verdict: WeightsVerdict | None = None
        self._comparison_start: float | None = None  # of the one under way, by the monotonic clock

    @property
    def of(self) -> dict[str, Any] | None:
        """The identities of both sides, as last looked at."""
        return self._of

    @property
    def no(self) -> str | None:
        """Why no run may start; None: nothing against it."""
        if self.verdict is not None and self.verdict.state == "other":
            if self._settings.train.match == "warn":
                return None
            return f"{self.verdict.line}; put it right in the backend or in train.weights ({OVERRIDE})"
        if not self._is_scored and self._down is not None:
            return f"whether the server runs what trains could not be asked yet: {self._down}"
        return None

    @property
    def is_pending(self) -> bool:
        """Tell whether the two were never compared, or by their prompts alone: no run starts before they are."""
        return not self._is_scored and self._backend.capabilities.adapters

    @property
    def _is_scored(self) -> bool:
        return self.verdict is not None and self.verdict.scored

    @property
    def is_own_server(self) -> bool:
        """Tell whether rlproxy started the server on the very files that train: then nothing is compared."""
        return self.verdict == OWN_SERVER

    @property
    def noise(self) -> Mapping[str, float] | None:
        """Noise between the server's log-probs and the weights', where it was measured."""
        return None if self.verdict is None else self.verdict.noise

    def report(self) -> MatchBody:
        """For `status`."""
        if not self._backend.capabilities.adapters:
            return _unasked("no version goes into this backend, so its model may be another one")
        if self._comparison_start is not None:
            seconds = time.monotonic() - self._comparison_start
            return _unasked(f"the served model is compared with the weights, {seconds:.0f} s by now")
        if self.verdict is None:
            line = self.no or "not known yet: the served model is compared with the weights after the first answers"
            if not (self._settings.train.weights or self._backend.weights):
                line = "train.weights does not say where the model's weights are, so nothing can be compared"
            return _unasked(line, stops=self.no is not None)
        verdict = self.verdict
        return {
            "state": verdict.state,
            "line": verdict.line,
            "apart": verdict.apart,
            "regret": verdict.regret,
            "rendering": cast(RenderingBody | None, verdict.rendering),  # a Rendering's members, from the store maybe
            "stops": self.no is not None,
        }

    async def start(self) -> None:
        """The verdict from before this start. Whether it still is about the same two is asked before the next run."""
        saved = await self._store.meta.get(META)
        if saved is not None and saved["of"].get("rules") == RULES:
            verdict = {name: value for name, value in saved["verdict"].items() if name in WeightsVerdict._fields}
            self._of, self.verdict = saved["of"], WeightsVerdict(**verdict)

    async def check(self, weights: str, *, now: bool = False, scored: bool = True) -> None:
        """Leaves a verdict of what is served and trained now. `now`: asked by a person, who may just have changed it.
        Not `scored`: of the prompts alone, in a moment.

        A minute where something changed, else a moment. While the server is down the last verdict on these weights
        holds; where there is none, `no` says so.
        """
        if not self._backend.capabilities.adapters:
            return
        async with self._asking:
            enough = self._is_scored or (self.verdict is not None and not scored)
            if enough and not now and time.monotonic() - self._looked < LOOK_S:
                return
            files = await asyncio.to_thread(fingerprint, weights)
            if self._of is not None and self._of.get("weights") != files:
                self._of = self.verdict = None
            try:
                await self._backend.ready()
                description = await self._backend.describe()
                of = {"served": description.identity, "weights": files, "rules": RULES}
                if files == self._backend.weights_fingerprint:
                    self._of, self.verdict = of, OWN_SERVER
                elif of != self._of or not enough:
                    await self._compare(of, description, weights, scored)
                self._down = None
            except BackendDown as error:
                self._down = error.message
            self._looked = time.monotonic()

    async def _compare(self, of: dict[str, Any], description: ModelDescription, weights: str, scored: bool) -> None:
        log.info("comparing the served model with the weights", weights=weights, prompts_alone=not scored)
        keep = True
        self._comparison_start = time.monotonic()
        try:
            answers = [await self._answer(chat, TOKENS if scored else 1) for chat in CHATS]
            verdict = compare(description, answers, await self._look(weights, answers, scored), scored=scored)
        except (BackendBroke, LaunchError) as error:
            verdict = WeightsVerdict("unknown", f"could not be checked: {error}", scored=scored)
            keep = False  # asked again after a restart
        finally:
            self._comparison_start = None
        self._of, self.verdict = of, verdict
        if keep:
            await self._store.meta.set(META, {"of": of, "verdict": verdict._asdict()})
        self._tell(verdict)

    def _tell(self, verdict: WeightsVerdict) -> None:
        if verdict.state == "other":
            log.error("the served model is not the one that trains", why=verdict.line)
            self._events.emit("problem", message=verdict.line)
        else:
            log.info("the served model and the weights", verdict=verdict.line)

    async def _look(self, weights: str, answers: list[ProbeAnswer], scored: bool) -> Any:
        train = self._settings.train
        conversations = [
            {
                "messages": chat,
                "text": answer.text,
                "ended": answer.ended,
                "prompt_ids": answer.prompt_ids,
                "prompt_text": answer.prompt_text,
                "prompt_tokens": answer.prompt_tokens,
                "reply_ids": answer.reply_ids,
            }
            for chat, answer in zip(CHATS, answers, strict=True)
        ]
        out = self._settings.home / "logs" / "match.log"
        is_trusted = weights in train.trust_remote_code
        request = {"conversations": conversations, "score": scored, "trust_remote_code": is_trusted}
        return await self._launcher.probe(weights, request, threads=train.threads, nice=train.nice, log=out)

    # The server's side

    async def _answer(self, chat: Chat, tokens: int) -> ProbeAnswer:
        """The model's own greedy reply, without any adapter. Raises BackendDown, BackendBroke."""
        asks = {
            key: loads(value) for key, value in self._backend.capabilities.capture_members.get("chat", {}).items()
        } or ASKS
        plain: dict[str, Any] = {"messages": chat, "max_tokens": tokens, "temperature": 0}
        status, raw = await self._post(plain | asks)
        if status in (400, 422):  # it does not take what it was asked to tell
            status, raw = await self._post(plain)
        if status != 200:
            raise BackendBroke(f"the server answered {status}: {message_in(raw)}")
        try:
            answer = _answer_in(loads(raw))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise BackendBroke(f"the server's answer is no chat completion ({error})") from error
        if answer.prompt_ids is None and (rendered := await self._backend.render(Prompt(chat))) is not None:
            return replace(answer, prompt_ids=rendered.ids, prompt_text=rendered.text)
        return answer

    async def _post(self, body: dict[str, Any]) -> tuple[int, bytes]:
        with place_for(self._backend, self._backend.served.model) as address:
            return await ask(self._backend, address, body, ANSWER_S)


def _unasked(line: str, *, stops: bool = False) -> MatchBody:
    return {"state": "unasked", "line": line, "apart": None, "regret": None, "rendering": None, "stops": stops}


def _answer_in(body: dict[str, Any]) -> ProbeAnswer:
    choice = body["choices"][0]
    entries = (choice.get("logprobs") or {}).get("content") or []
    ids = choice.get("token_ids") or [entry.get("id") for entry in entries]
    count = (body.get("usage") or {}).get("prompt_tokens")
    return ProbeAnswer(
        text=str(choice["message"].get("content") or ""),
        ended=choice.get("finish_reason") == "stop",
        prompt_ids=body.get("prompt_token_ids"),
        reply_ids=ids if ids and all(type(id) is int for id in ids) else None,
        logprobs=[float(entry["logprob"]) for entry in entries] or None,
        prompt_tokens=count if type(count) is int and count > 0 else None,  # no prompt is empty
    )
