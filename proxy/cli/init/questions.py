"""The six questions of `rlproxy init`, each with its default: asked of a person, or answered by a file.

Owns order, wording and defaults. A question whose answer is not a choice is not asked. Nothing is written here, so an
interruption leaves nothing behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from config.backend_kinds import usual_url
from config.sections import BackendSection
from config.settings import Settings
from proxy.backends.model_files import ModelFolders
from proxy.cli.common import command_for
from proxy.cli.init import discovery, own_server, weights_search
from proxy.cli.init.answers import Answers, BadAnswers
from proxy.cli.init.console import Console, InvalidAnswer
from proxy.cli.init.discovery import DiscoveredServer, ListedModel, ModelFacts, model_facts
from proxy.cli.init.environment import InstalledAgent, ThisMachine
from proxy.cli.init.own_server import Offer
from proxy.cli.init.weights_search import Proposal

T = TypeVar("T")
MODELS_SHOWN: Final = 12  # models of one server
PRESETS: Final = {
    "careful": "small steps, held nearer to the model as it was",
    "balanced": "in between; most was measured with it",
    "aggressive": "larger steps: it learns sooner, and more of its versions are refused",
}
LESSONS: Final = (
    "May your comment on a bad answer act at once, as a lesson in your later prompts? It costs the tokens of its words "
    "in each of those, three comments at most, until a version answers so without it."
)
BUILTIN: Final = DiscoveredServer("builtin", "", (ListedModel(""),))


@dataclass(frozen=True, slots=True)
class Surroundings:
    servers: list[DiscoveredServer]
    agents: list[InstalledAgent]
    machine: ThisMachine
    settings: Settings  # in force until now: what they say is the first default
    service: str | None  # systemd, launchd, or None where rlproxy cannot start at login


@dataclass(frozen=True, slots=True)
class Choices:
    kind: str
    url: str
    model: str
    window: int | None
    weights: str
    agents: tuple[str, ...]
    preset: str
    start_at_login: bool
    lessons: bool = False  # whether comments act at once
    why_weights: str = ""
    out_of_reach: str = ""  # why these weights cannot be had
    presets: str = ""
    command: str = ""  # backend.command, where rlproxy is to run the server
    offer_note: str = ""  # another way that nobody took
    models_dir: str = ""  # backend.models_dir, which the person agreed to
    folder_note: str = ""  # a folder of models that nobody was asked about
    stale: tuple[str, ...] = ()  # settings of the server or model before; most go before what is chosen
    release: str = ""  # of the server, where it tells


class Interview:
    """`console` None: nobody is asked, the defaults hold where the answers are silent."""

    def __init__(self, surroundings: Surroundings, answers: Answers, console: Console | None, models_dir: Path) -> None:
        self._surroundings, self._answers, self._console = surroundings, answers, console
        self._models_dir, self._keys = models_dir, keys(surroundings.settings.backend, answers.url)
        self._folders = ModelFolders.of(surroundings.settings.backend, surroundings.settings.train.weights)
        self._question_count = 0

    def choices(self) -> Choices:
        server, model = self._backend()
        key = self._keys.get(server.url)
        asks = bool(model.name) and server.kind != "builtin"
        facts, models_dir = ModelFacts(), None
        if asks:
            facts = self._facts(server, model.name, key)
        unknown = facts.unknown_folder if own_server.takes_whole_models(server.version) else None
        if unknown is not None and self._reads(unknown):
            models_dir, self._folders = unknown, ModelFolders([*self._folders.folders, unknown])
            facts = self._facts(server, model.name, key)
        weights = self._weights(server, model, facts.about)
        own_offer = own_server.offer(server, model.name, facts.file, facts.context, self._surroundings.machine)
        takes = own_offer is not None and self._accepts(own_offer)
        choices = Choices(
            kind=server.kind,
            url=(self._is_current(server) and self._surroundings.settings.backend.url)
            or server.url,  # as the person wrote it
            model=model.name,
            window=model.window,
            weights=weights.spec,
            agents=self._agents(),
            preset=self._preset(),
            lessons=self._lessons(),
            start_at_login=self._at_login(),
            why_weights=weights.reason,
            out_of_reach=weights_search.out_of_reach(weights.spec) or "",
            presets=server.presets,
            stale=tuple(key for key in self._stale(server, model) if not (models_dir and key == "backend.models_dir")),
            release=server.version,
            models_dir=str(models_dir or ""),
            folder_note=_folder_note(unknown) if unknown and not models_dir else "",
        )
        if own_offer is None:
            return choices
        if not takes:
            is_mentioned = self._console is not None or self._answers.own_server is False
            return choices if is_mentioned else replace(choices, offer_note=own_offer.note)
        stale = {*choices.stale, "backend.replicas", "backend.presets", "backend.gguf", "backend.models_dir"}
        return replace(
            choices, kind="llamacpp", url="", presets="", command=own_offer.command, models_dir="",
            stale=tuple(sorted(stale - {"backend.command"})),
        )  # fmt: skip

    def _question(self, text: str) -> str:
        """With its number among those that are asked."""
        self._question_count += 1
        return f"\n{self._question_count}  {text}"

    def _pick(self, question: str, options: Iterable[str], default: str, read: Callable[[str], T]) -> T:
        assert self._console is not None
        self._console.say("\n".join([question, *(f"  {n}  {option}" for n, option in enumerate(options, 1))]))
        return self._console.ask(f"   [{default}]", read)

    # Which server, and which of its models

    def _backend(self) -> tuple[DiscoveredServer, ListedModel]:
        if self._answers.backend or self._answers.url or self._answers.model or self._console is None:
            return self._backend_in_answers()
        pairs = self._pairs(self._surroundings.servers)
        question = self._question("Which model shall learn? A number, or the address of another server.")
        while True:
            options = (_pair(*pair) for pair in pairs)
            choice = self._pick(question, options, "1", _number(len(pairs), address=True))
            if isinstance(choice, int):
                return pairs[choice - 1]
            pairs = self._pairs(self._ask_server(choice)) or pairs

    def _ask_server(self, url: str) -> list[DiscoveredServer]:
        self._keys = keys(self._surroundings.settings.backend, url)
        servers = asyncio.run(discovery.look([url], self._keys))
        assert self._console is not None
        if not servers:
            self._console.say(f"  No model server answers at {url}.")
        return servers

    def _pairs(self, servers: list[DiscoveredServer]) -> list[tuple[DiscoveredServer, ListedModel]]:
        """The one in the settings first, the built-in one last."""
        pairs = [(server, model) for server in servers for model in server.models[:MODELS_SHOWN]]
        now = self._now()
        ahead = [] if now is None else [next((p for p in pairs if _is_same(p, now)), now)]
        return [*ahead, *(p for p in pairs if p not in ahead), (BUILTIN, BUILTIN.models[0])]

    def _now(self) -> tuple[DiscoveredServer, ListedModel] | None:
        """The server that the settings name, also where it does not run at the moment."""
        backend = self._surroundings.settings.backend
        if backend.kind == "builtin":
            return None
        url = address(backend)
        if not (url or _is_managed(backend)):
            return None
        server = next((s for s in self._surroundings.servers if s.url == url), DiscoveredServer(backend.kind, url))
        only = server.models[0] if len(server.models) == 1 else ListedModel("")
        return server, ListedModel(backend.model) if backend.model else only

    def _is_current(self, server: DiscoveredServer) -> bool:
        backend = self._surroundings.settings.backend
        return (backend.kind, address(backend)) == (server.kind, server.url)

    def _stale(self, server: DiscoveredServer, model: ListedModel) -> tuple[str, ...]:
        another_server, now = not self._is_current(server), self._now()
        plain = bool(server.about) and server.about.get("role") != "router"  # one that does not answer tells nothing
        stale = {
            "command": another_server,
            "replicas": another_server,
            "presets": not server.presets and (another_server or plain),
            "gguf": another_server or (now is not None and now[1].name != model.name),
            "models_dir": self._surroundings.settings.backend.kind != server.kind,
            "api_key": another_server and bool(self._keys) and server.url not in self._keys,
        }
        return tuple(f"backend.{key}" for key, goes in stale.items() if goes)

    def _backend_in_answers(self) -> tuple[DiscoveredServer, ListedModel]:
        """By the file, and where it is silent the first that fits."""
        answers = self._answers
        if not (answers.backend or answers.url or answers.model):
            return self._pairs(self._surroundings.servers)[0]
        if answers.backend == "builtin":
            return BUILTIN, ListedModel(answers.model or "")
        url = answers.url and discovery.plain(answers.url, answers.backend)
        fits = [s for s in self._surroundings.servers if answers.backend in (None, s.kind) and _is_at(s, answers.url)]
        for server in fits:
            model = next((m for m in server.models if answers.model in (None, m.name)), None)
            if model is not None:
                return server, model
        if answers.backend is None:
            raise BadAnswers(f"{_describe_missing(answers)} answers here; name its kind too, as backend = 'vllm'.")
        if fits and answers.model and fits[0].models:
            has = ", ".join(m.name for m in fits[0].models[:MODELS_SHOWN])
            raise BadAnswers(f"The {fits[0].kind} at {fits[0].url} has no model {answers.model!r}; it has {has}.")
        if fits:
            return fits[0], ListedModel(answers.model or "")
        url = url or usual_url(answers.backend)
        if not url:
            raise BadAnswers(f'No {answers.backend} runs here; start it, or name its address, as url = "http://…".')
        return DiscoveredServer(answers.backend, url), ListedModel(answers.model or "")

    # What a server tells of a model, and where it keeps it

    def _facts(self, server: DiscoveredServer, model: str, key: str | None) -> ModelFacts:
        return asyncio.run(model_facts(server, model, self._models_dir, self._folders, key))

    def _reads(self, folder: Path) -> bool:
        """A server may name any file, so somebody has to agree to the folder."""
        if self._console is None:
            return False
        self._console.say(f"\nOllama says that its models are in {folder}, which is not a usual place.")
        return self._console.agree("Is that its folder of models, and may rlproxy read it?", default=True)

    # Where versions would be large: who runs it

    def _accepts(self, own_offer: Offer) -> bool:
        if self._answers.own_server is not None or self._console is None:
            return bool(self._answers.own_server)
        self._console.say(f"\n{own_offer.reason}\n{own_offer.lost}")
        return self._console.agree("Shall rlproxy run it?", default=True)

    # What trains for it

    def _weights(self, server: DiscoveredServer, model: ListedModel, about: Mapping[str, Any]) -> Proposal:
        if self._answers.weights is not None:
            return Proposal(_lasting(self._answers.weights), "as answered", True)
        settings = self._surroundings.settings
        if server.kind == "builtin":
            spec = settings.train.weights if settings.backend.kind == "builtin" else ""
            return Proposal(spec, "the built-in server trains what it serves", True)
        proposals = weights_search.propose(server.kind, model.name, model.root, about)
        if settings.train.weights and (same := self._now()) is not None and _is_same(same, (server, model)):
            is_local = weights_search.local(settings.train.weights) is not None
            current = Proposal(settings.train.weights, "as in the settings now", is_local)
            proposals = [current, *(p for p in proposals if p.spec != current.spec)]
        if self._console is None:
            return proposals[0] if proposals else Proposal("", "none were found", True)
        question = self._question(
            f"Which weights train for {model.name or 'it'}? They must be of this very model, in Hugging Face form.\n"
            "   A number, a folder, a hub id, or - for none: then answers are kept and rated, and nothing trains."
        )
        size = weights_search.download_gb(about)
        options = (_proposal(proposal, size) for proposal in proposals)
        return self._pick(question, options, "1" if proposals else "-", _weights_reader(proposals, about))

    # Agents, how far, and when

    def _agents(self) -> tuple[str, ...]:
        unconnected_agents = [agent for agent in self._surroundings.agents if not agent.connected]
        if self._answers.agents is not None:
            names = {agent.name for agent in self._surroundings.agents}
            if strange := [name for name in self._answers.agents if name not in names]:
                raise BadAnswers(f"There is no agent {strange[0]} here; I found {', '.join(sorted(names)) or 'none'}.")
            return tuple(dict.fromkeys(self._answers.agents))
        if self._console is None or not unconnected_agents:
            return ()
        question = self._question(
            "Which agents shall talk to it? Numbers, or Enter for none: "
            f"{command_for('rlproxy connect AGENT', self._surroundings.settings)} does it at any time."
        )
        return self._pick(
            question,
            (f"{a.name} ({a.place})" for a in unconnected_agents),
            "none",
            _several([a.name for a in unconnected_agents]),
        )

    def _preset(self) -> str:
        if self._answers.preset is not None or self._console is None:
            return self._answers.preset or self._surroundings.settings.train.preset
        names = list(PRESETS)
        default = names.index(self._surroundings.settings.train.preset) + 1
        question = self._question("How far may one training run move the model?")
        options = (f"{name}: {reason}" for name, reason in PRESETS.items())
        return names[int(self._pick(question, options, str(default), _number(len(names), default=default))) - 1]

    def _lessons(self) -> bool:
        """True where a comment on a disliked answer is to act at once. Whoever is asked for the first time has it with
        Enter; unasked it stays off."""
        section = self._surroundings.settings.lessons
        if self._answers.lessons is not None or self._console is None:
            return section.enabled if self._answers.lessons is None else self._answers.lessons
        is_decided = "enabled" in section.model_fields_set
        return self._console.agree(self._question(LESSONS), default=section.enabled or not is_decided)

    def _at_login(self) -> bool:
        if self._answers.start_at_login is not None:
            if self._answers.start_at_login and self._surroundings.service is None:
                raise BadAnswers("rlproxy cannot start at login here: there is neither systemd --user nor launchd.")
            return self._answers.start_at_login
        if self._console is None or self._surroundings.service is None:
            return False
        return self._console.agree(
            self._question(f"Start rlproxy at login, as a service of {self._surroundings.service}?"), default=False
        )


def address(backend: BackendSection) -> str:
    """Where the settings have their server; empty where they name none, or rlproxy starts it."""
    if backend.kind == "builtin" or _is_managed(backend):
        return ""
    url = backend.url or usual_url(backend.kind)
    return discovery.plain(url, backend.kind) if url else ""


def _is_managed(backend: BackendSection) -> bool:
    return backend.kind == "llamacpp" and bool(backend.command)


def _is_at(server: DiscoveredServer, url: str | None) -> bool:
    return not url or discovery.plain(url, server.kind) == server.url


def keys(backend: BackendSection, url_answer: str | None) -> dict[str, str]:
    """The backend's key, by the one address that it is for. That is the settings' own, or where they name no server
    yet, the one that a person names."""
    url = address(backend) or (backend.kind == "builtin" and (backend.url or url_answer))
    return {discovery.plain(url): backend.api_key.get_secret_value()} if url and backend.api_key else {}


def _is_same(pair: tuple[DiscoveredServer, ListedModel], other_pair: tuple[DiscoveredServer, ListedModel]) -> bool:
    return (pair[0].kind, pair[0].url, pair[1].name) == (other_pair[0].kind, other_pair[0].url, other_pair[1].name)


def _pair(server: DiscoveredServer, model: ListedModel) -> str:
    if server.kind == "builtin":
        return "the built-in server: a small model on this machine's CPU, to try it out"
    window = f", {model.window} tokens" if model.window else ""
    version = f" {server.version}" if server.version else ""
    place = f" at {server.url}" if server.url else ", which rlproxy starts"
    return f"{model.name or 'its model'}  ({server.kind}{version}{place}{window})"


def _proposal(proposal: Proposal, size: float | None) -> str:
    if proposal.is_local:
        return f"{proposal.spec}: {proposal.reason}; it is here already"
    much = f", about {size:.1f} GB" if size else ""
    return f"{proposal.spec}: {proposal.reason}; to be downloaded when the first rating comes{much}"


def _folder_note(folder: Path) -> str:
    return (
        f'Ollama says that its models are in {folder}, which is not a usual place. Add backend.models_dir = "{folder}" '
        "if that is right: this Ollama gets no version otherwise."
    )


def _describe_missing(answers: Answers) -> str:
    subject = f"No server with {answers.model}" if answers.model else "No server"
    return f"{subject} at {answers.url}" if answers.url else subject


# Reading what was typed


def _number(most: int, *, default: int = 1, address: bool = False) -> Callable[[str], int | str]:
    def read(line: str) -> int | str:
        if not line:
            return default
        if line.isdecimal() and 1 <= int(line) <= most:
            return int(line)
        if address and (":" in line or "." in line):
            return discovery.plain(line)
        raise InvalidAnswer(
            f"A number from 1 to {most}{', or an address as http://127.0.0.1:8000' if address else ''}."
        )

    return read


def _weights_reader(proposals: list[Proposal], about: Mapping[str, Any]) -> Callable[[str], Proposal]:
    def read(line: str) -> Proposal:
        if line == "-" or (not line and not proposals):
            return Proposal("", "none", True)
        if not line or (line.isdecimal() and 1 <= int(line) <= len(proposals)):
            return proposals[int(line or 1) - 1]
        folder = weights_search.local(line)
        if folder is None and (line.count("/") != 1 or line.startswith((".", "/", "~"))):
            raise InvalidAnswer(
                "There is no model folder of that name (config.json with *.safetensors), and it is not a hub id."
            )
        if (reason := weights_search.differs(line, about)) is not None:
            raise InvalidAnswer(f"Not these: {reason}.")
        return Proposal(_lasting(line), "as you said", folder is not None)

    return read


def _lasting(spec: str) -> str:
    """A folder by its whole path: rlproxy may be started elsewhere."""
    folder = Path(spec).expanduser()
    return str(folder.absolute()) if spec and folder.is_dir() else spec


def _several(names: list[str]) -> Callable[[str], tuple[str, ...]]:
    def read(line: str) -> tuple[str, ...]:
        chosen = []
        for word in line.replace(",", " ").split():
            if word.isdecimal() and 1 <= int(word) <= len(names):
                chosen.append(names[int(word) - 1])
            elif word in names:
                chosen.append(word)
            elif word != "none":
                raise InvalidAnswer(f"{word} is not one of them: numbers from 1 to {len(names)}, or Enter for none.")
        return tuple(dict.fromkeys(chosen))

    return read
