"""The proxy's needs of a server, whatever its name.

Owns the Protocol. What a server cannot do is a capability it reports, never a silent fallback.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol

import aiohttp

from proxy.core.json_edit import dumps
from trainer.launch import AdapterError, ServerFormat

# Members of a chat request that a server's chat template may see.
TEMPLATE_MEMBERS: Final = ("tool_choice", "parallel_tool_calls", "reasoning_effort", "reasoning", "response_format",
               "continue_final_message", "add_generation_prompt")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Capabilities:
    adapters: bool  # takes a new LoRA while it runs
    token_ids: bool  # exact ids of prompt and reply
    logprobs: bool  # one for each token, of the sampling distribution
    limitation: str = ""  # one sentence for what is missing
    # By dialect: members added to a request, as JSON, so that the answer can be captured exactly; beside those,
    # `whole_capture_members` where it comes in one piece.
    capture_members: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    whole_capture_members: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    refuses_beside: frozenset[str] = frozenset()  # members of a request for a stream: nothing is asked beside them
    leaves_out: frozenset[str] = frozenset()  # members that it does not send, not even as null, who did not ask
    # What its log-probs are of: the model before sampling, after the temperature alone, or the sampling distribution.
    logprobs_of: Literal["model", "temperature"] | None = None
    dialects: frozenset[str] = frozenset({"chat"})  # wire formats it is known to have
    tries_formats: bool = False  # whether others are worth asking for once
    implied_tag: str = ""  # what a model's name may end in and mean the same
    is_foreign: bool = False  # it runs a model that is not ours: what it says is of no version
    can_free: bool = False  # gives its memory back while a run trains
    single_version: bool = False  # at a time: a request for another version waits until all running ones have ended
    server_format: ServerFormat = "peft"  # in which it loads what trains, as far as no release differs
    longer_context: str = "give the model a longer context at its server"  # what helps where that cuts prompts
    slots: int = 64  # answers that it works on at once, as such servers are mostly started
    unknown_model_statuses: frozenset[int] = frozenset(
        {404}
    )  # of answers to a request for a model that it does not know


@dataclass(slots=True)
class ServedModel:
    """The model a server answers with when no adapter is asked for. Nobody changes it; each request makes two."""

    model: str
    sampling: Mapping[str, float]  # in force where the client sets nothing
    by_dialect: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # where a dialect has other defaults
    source: str = "its own defaults"  # from where this is known, in a few words
    unsure: frozenset[str] = frozenset()  # members of `sampling` of which it is not known whether they are in force
    logprobs_of: Literal["model"] | None = None  # as in Capabilities, where that hangs on how the server was started

    def uncertainty(self, members: Collection[str]) -> str | None:
        """Why nobody knows how a request that says these members was sampled; None where it is known."""
        if not self.unsure:
            return None
        open_members = [name for name in self.sampling if name in self.unsure and name not in members]
        if not open_members:
            return None
        return f"the client left {', '.join(open_members)} to the server, which does not tell what it took"


class Address(NamedTuple):
    """Where a request for one model goes."""

    url: str  # without `/v1`
    members: Mapping[str, bytes]  # of the request's body, as JSON: they name the model there


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A server's description of the model that it serves without an adapter; None: it does not tell."""

    identity: str = ""  # changes when it serves another model
    architecture: str | None = None  # as config.json's model_type
    vocabulary: int | None = None  # tokens that its head knows
    width: int | None = None  # hidden size
    parameters: int | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation as a server was asked, or would be, to answer it."""

    messages: Sequence[Mapping[str, Any]]  # in chat form
    tools: Sequence[Any] | None = None
    template_kwargs: Mapping[str, Any] | None = None
    dialect: str = "chat"  # the format in which the server got it
    request: Mapping[str, Any] = field(default_factory=dict)  # its other members, in that format

    def chat(self) -> dict[str, Any]:
        """Arguments of a chat template, as members of a chat request."""
        members = (
            {key: self.request[key] for key in TEMPLATE_MEMBERS if key in self.request}
            if self.dialect == "chat"
            else {}
        )
        optional = {"tools": self.tools, "chat_template_kwargs": self.template_kwargs}
        present = {key: value for key, value in optional.items() if value}
        return {"messages": [_in_a_request(m) for m in self.messages], **members, **present}

    @property
    def text(self) -> str | None:
        """Form of a prompt that is sent as raw text."""
        content = self.messages[-1].get("content") if self.messages else None
        return content if isinstance(content, str) else None


def _in_a_request(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Chat requests have the arguments of calls as a text; Ollama refuses anything else."""
    if not (calls := message.get("tool_calls")):
        return message
    return {**message, "tool_calls": [_call(call) for call in calls]}


def _call(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call.get("function") or {}
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else dumps(arguments or {}).decode()
    return {**call, "function": {**function, "arguments": text}}


class RenderedPrompt(NamedTuple):
    """A prompt as the model itself reads it, after what the server cuts of it: by one of these, or both."""

    text: str | None
    ids: list[int] | None
    picture_marker: str | None = None  # stands in the text for each picture; the ids are none of its then


class Misfit(AdapterError):
    """The adapter is whole, and the server has the model that it was trained on no more. One clause, after a colon."""


class LeftoverVersions(NamedTuple):
    """Versions at a server that this home did not make."""

    line: str
    command: str  # removes them


Conversation = Callable[[], bytes | None]  # what is the same for all turns of one conversation; None: nothing is


class Backend(Protocol):
    kind: str
    capabilities: Capabilities

    @property
    def url(self) -> str:
        """Without `/v1`. Raises BackendDown while it is not known."""

    @property
    def served(self) -> ServedModel: ...

    @property
    def weights(self) -> str | None:
        """Where training finds the same weights, if the server told."""

    @property
    def weights_fingerprint(self) -> str | None:
        """Fingerprint of the weights' files that rlproxy itself started the server on; None where somebody else did."""

    @property
    def server_format(self) -> ServerFormat:
        """In which it loads what trains, as far as this release is known."""

    @property
    def max_models(self) -> int | None:
        """How many models it holds at once, the base among them; None: as many as there is memory for."""

    @property
    def state(self) -> str:
        """One line for `status`."""

    @property
    def obstacle(self) -> str | None:
        """One sentence on what keeps a new version from being loaded as things are, so that none is trained.
        Blocking: it may look at files."""

    @property
    def growth(self) -> str | None:
        """One sentence on the size of a version beside its model. None where versions are not whole models, or where
        nobody knows. Blocking: it may look at files."""

    @property
    def leftovers(self) -> LeftoverVersions | None:
        """Leftovers of other homes there, as last seen: of one that is gone, nobody else would remove it."""

    async def start(self, http: aiohttp.ClientSession, on_restart: Callable[[], Awaitable[None]]) -> None:
        """Find or start the server. `on_restart` is awaited when it came back without its adapters."""

    async def stop(self) -> None: ...

    async def ready(self) -> None:
        """Return when it can be asked, wait a while for one that is starting; raises BackendDown."""

    def address(self, model: str, conversation: Conversation | None = None) -> Address:
        """For the model itself and every name that was loaded. A conversation stays where it was read before, unless
        that server is busier than others. Raises BackendDown."""

    def addresses(self, model: str) -> Sequence[Address]:
        """All places where it answers: each is warmed up before a version goes live. Raises BackendDown."""

    def release(self, address: Address) -> None:
        """Note that what was sent to an `address` has been answered, or never will be."""

    def fail_over(self, address: Address) -> bool:
        """Nobody answers at this one; whether to ask for another."""

    def headers(self) -> Mapping[str, str]:
        """Headers that authenticate rlproxy to the server; empty = the client's own pass through."""

    async def models(self) -> list[dict[str, Any]]:
        """The server's own list. Raises BackendDown, BackendBroke."""

    async def describe(self) -> ModelDescription:
        """Figures of the model itself, in a moment. Raises BackendDown, BackendBroke."""

    async def render(self, prompt: Prompt) -> RenderedPrompt | None:
        """Render it as the model without an adapter reads it; nothing is generated. None where this server does not
        tell.

        Raises BackendDown, and BackendBroke where it does not tell of this one.
        """

    async def load(self, name: str, path: Path) -> None:
        """Make the adapter at `path` answer to the model name `name`. Loading what is loaded is not an error."""

    async def read_ahead_limit(self, name: str) -> int:
        """How many prompts this version may be given before it goes live, all at once, each to be found again when its
        conversation goes on. Raises BackendDown, BackendBroke."""

    async def unload(self, name: str) -> None:
        """Running replies finish on it. Unloading what is not there is no error."""

    async def check(self, rank: int, folder: Path) -> str | None:
        """Why an adapter of this rank in `folder` would not get in; None where nothing is known to speak against it.

        Asked before a run, so that it does not train what nobody can load. Changes nothing. Raises BackendDown.
        """

    async def lacks_room(self, lines: int) -> str | None:
        """One sentence on why it cannot answer by the versions of so many lines at once. None where nothing is known to
        speak against it. Raises BackendDown."""

    async def free(self) -> None:
        """Give the accelerator's memory back while a run trains; nobody asks it until `reclaim`.

        Raises Unsupported with what to start it with, BackendDown, BackendBroke. Freeing what is free is not an error.
        """

    async def reclaim(self) -> None:
        """Take the memory again and answer with the model itself; adapters are loaded anew after it.

        Raises BackendDown, BackendBroke. Reclaiming what was never given back is not an error.
        """


@contextmanager
def place_for(backend: Backend, model: str) -> Iterator[Address]:
    """Where one question goes, for as long as it lasts. Raises BackendDown."""
    address = backend.address(model)
    try:
        yield address
    finally:
        backend.release(address)
