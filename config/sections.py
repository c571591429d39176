"""The sections of the settings: every key with its default, its range and its meaning.

Not here: how they are put together and where values come from (`config.settings`), the numbers of a training
preset (`config.presets`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

from config.backend_kinds import BackendKind
from config.hours import parse as parse_window
from config.networks import HeaderName, Network
from config.places import check_bucket, ray_resources
from config.places import parse as parse_place
from config.re2_patterns import TextPattern

UserPath = Annotated[Path, AfterValidator(Path.expanduser)]
# An empty key must never count as a key, and TOML has no null.
_unset = BeforeValidator(lambda value: None if value == "" else value)
Key = Annotated[SecretStr | None, _unset]
Override = bool | int | float | str


def _window(text: str) -> str:
    parse_window(text)
    return text


Hours = Annotated[str, AfterValidator(_window)]


def _place(text: str) -> str:
    parse_place(text)
    return text


PlaceText = Annotated[str, AfterValidator(_place)]
BucketText = Annotated[str, AfterValidator(check_bucket)]


def _function(text: str) -> str:
    """`FILE.py:FUNCTION`."""
    file, _, name = text.rpartition(":")
    if text and not (file.endswith(".py") and name.isidentifier()):
        raise ValueError("it must be a Python file and a function in it, as in `~/my.py:reward`")
    return text


OwnFunction = Annotated[str, AfterValidator(_function)]


def own_function(setting: str) -> tuple[Path, str] | None:
    """The file and the function that such a setting names; None where it is empty."""
    file, _, name = setting.rpartition(":")
    return (Path(file).expanduser().absolute(), name) if setting else None


RaterWeight = Annotated[float, Field(gt=0, le=10)]


def _compiles(pattern: str) -> str:
    TextPattern(pattern)
    return pattern


Pattern = Annotated[str, AfterValidator(_compiles)]


def _is_a_secret(pattern: str) -> str:
    for text in ("", "[redacted:own]"):
        if TextPattern(pattern).search(text):
            raise ValueError("it also finds " + (text or "nothing at all") + ", so it would redact without end")
    return pattern


SecretPattern = Annotated[Pattern, AfterValidator(_is_a_secret)]


def _names_a_source(text: str) -> str:
    if text in ("", "keyring", "env", "prompt") or (text.startswith("file:") and len(text) > len("file:")):
        return text
    raise ValueError('it should be "keyring", "file:PATH", "env", "prompt" or empty; the key itself is no setting')


KeySource = Annotated[str, AfterValidator(_names_a_source)]


def _is_address(url: str) -> str:
    """An `http://` or `https://` address to which a route can be added; empty for none."""
    scheme, colon, place = url.partition("://")
    if url.startswith("unix:"):
        raise ValueError(
            "rlproxy does not open Unix sockets; have the server listen on an address too, as http://127.0.0.1:8000"
        )
    if url and not colon:
        raise ValueError("it has no scheme; write http:// before it, or https:// for a cloud")
    if colon and scheme.lower() not in ("http", "https"):
        raise ValueError("it should begin with http:// or https://")
    if "@" in place.partition("/")[0]:
        raise ValueError("an address is shown and logged: put the key into backend.api_key")
    if "?" in place or "#" in place:
        raise ValueError("routes are added at its end; leave out `?` or `#` and what comes after it")
    if not url.isprintable() or " " in url:
        raise ValueError("it has a blank or a control character in it")
    _check_host(url)
    return url


def _check_host(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_host = bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none, an IPv6 address that does not end
        is_host = False
    if url and not is_host:
        raise ValueError("it should name a machine, as http://127.0.0.1:8000")


Url = Annotated[str, AfterValidator(_is_address)]
DNS: Final = "dns://"  # of a name that stands for several servers, each at http:// and its own address


def _is_server_address(url: str) -> str:
    """An address, or a name of the DNS that several servers have."""
    if not url.lower().startswith(DNS):
        return _is_address(url)
    _is_address("http://" + url[len(DNS) :])
    return DNS + url[len(DNS) :]


ServerUrl = Annotated[str, AfterValidator(_is_server_address)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


class ServerSection(Section):
    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on; any other than loopback needs keys: `rlproxy keys create`."""
    port: int = Field(default=8484, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    max_body_bytes: int = Field(default=32 * 1024 * 1024, ge=1024)
    """Largest request body taken, in bytes."""
    hold_s: float = Field(default=300.0, ge=0)
    """Seconds a request waits while a run has the GPU (train.share_gpu); then it is answered with 503."""
    hold_most: int = Field(default=64, ge=0)
    """Requests that may wait for it at once; one more is answered with 503 right away."""
    api_key: Key = None
    """Key that clients must send, to chat, rate and read; `rlproxy keys create` makes better ones, one a person."""
    admin_key: Key = None
    """Key for admin acts: train, pause, rollback, promote, reset, forget."""
    hosts: tuple[str, ...] = ()
    """Names, beside addresses and localhost, under which browsers reach it; any other name may be a rebound one."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may use it from a browser (CORS), as "https://chat.example.org"; none by default."""
    chat_admins: tuple[str, ...] = ()
    """People who may `/rl train`, pause, … in the chat where a request says who speaks, by each name it gives."""
    requests_per_minute: int = Field(default=0, ge=0)
    """Requests that one key may make in a minute, some at once; 0 means no limit."""
    max_requests: int = Field(default=1024, ge=1)
    """Requests that may be under way at once, three quarters of them one key's; one more gets 503 or 429."""
    max_held_bytes: int = Field(default=512 * 1024 * 1024, ge=1024 * 1024)
    """Bytes of request bodies, and of what is kept of answers, in memory at once; three quarters may be one key's."""
    slow_client_s: float = Field(default=30.0, gt=0)
    """Seconds in which a client must send a KiB each of its body, else 408; in twice that it must read as much."""
    drain_s: float = Field(default=0.0, ge=0, le=3600)
    """Seconds after SIGTERM in which it answers on while `/readyz` says 503, so that a balancer sends nobody here."""
    stop_s: float = Field(default=30.0, gt=0, le=3600)
    """Seconds that running answers then have to end."""
    sso_proxies: tuple[Network, ...] = ()
    """Addresses of a single sign-on proxy, as "10.0.0.7" or "10.0.0.0/28", whose word on who asks for a page counts."""
    sso_header: HeaderName = "x-auth-request-email"
    """Header in which it names that person: as a key of `rlproxy keys` is named, whose role they then have."""


class BackendSection(Section):
    kind: BackendKind = "builtin"
    """Server that runs the model; "openai" is any other, as a cloud API: captured and rated only."""
    url: ServerUrl = ""
    """Its address; empty with the built-in one, and with Ollama or LM Studio at their usual port of this machine."""
    replicas: tuple[ServerUrl, ...] = ()
    """More vLLM servers with the same model; each version goes into all. `dns://NAME:8000` is all that the name has."""
    model: str = ""
    """Model name to ask it for; empty takes the only model it has."""
    api_key: Key = None
    """Key that the backend wants from rlproxy."""
    translate: tuple[Literal["completions", "responses", "messages", "ollama", "ollama-generate"], ...] = ()
    """Formats to say as chat completions though the backend has them; "messages" makes vLLM's captures exact."""
    presets: Annotated[UserPath | None, _unset] = None
    """File that llama-server's router was started with as --models-preset; rlproxy adds a section a version."""
    command: str = ""
    """How to start llama-server, model included and address left out; rlproxy then runs one for each version."""
    gguf: Annotated[UserPath | None, _unset] = None
    """The model's own GGUF file, where Ollama or LM Studio does not tell it or runs on another machine."""
    models_dir: Annotated[UserPath | None, _unset] = None
    """Folder of the server's models: files that it names are read below it alone, and LM Studio gets versions there."""
    episodes_at_once: int = Field(default=0, ge=0)
    """Requests of episodes at the backend at once; more wait, and people's pass by. 0: three quarters of its slots."""
    threads: int = Field(default=0, ge=0, le=1024)
    """CPU threads of the built-in backend; 0: as many as there are idle cores."""
    connect_timeout_s: float = Field(default=5.0, gt=0)
    """Seconds to wait for a connection to the backend."""
    read_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds of silence allowed between two reads from the backend."""
    ready_timeout_s: float = Field(default=60.0, ge=0)
    """Seconds a request waits for a backend that is still starting."""


class Train(Section):
    weights: str = ""
    """Weights to train, a path or a hub id; empty takes those that the backend serves, if it says where they are."""
    match: Literal["stop", "warn"] = "stop"
    """Answer to a served model that is not the one that trains: stop runs, or only warn in the status."""
    where: PlaceText = "local"
    """Where runs train: local, ssh://[user@]host[:port][/folder], slurm[:///folder], ray://host[:port] or tinker://host."""
    where_python: str = "python3"
    """Python there that has this version of rlproxy with its train extra."""
    where_weights: str = ""
    """The same weights there, a path or a hub id; empty is as here."""
    where_options: tuple[str, ...] = ()
    """Options for ssh, as ["-i", "/home/me/.ssh/train"], sbatch, as ["--gres=gpu:1"], or Ray, as ["--num-gpus=1"]."""
    bucket: BucketText = ""
    """Object storage instead of a shared disk: s3://BUCKET/PREFIX."""
    where_takes_keys: bool = False
    """Let the key of an encrypted run leave this machine; without it an encrypted home trains here only."""
    where_takes_texts: bool = False
    """Send prompts and answers, as tokens, to the Tinker server that trains on them. Off: nothing is sent."""
    enabled: bool = True
    """Start runs automatically."""
    share_gpu: bool = False
    """Unload the model while a run trains, for a GPU (or memory) with room for one of them; requests wait."""
    start_at: int = Field(default=32, ge=1)
    """Fresh ratings that start a run."""
    start_at_episodes: int = Field(default=64, ge=1)
    """Rewarded episodes, of groups that have closed, that start a run of their own."""
    group_size: int = Field(default=8, ge=1, le=1024)
    """Episodes of a group, where the program does not say it; a group trains when as many have ended."""
    group_timeout_s: float = Field(default=600.0, ge=0)
    """Seconds after the last reward of a group that is short of members, until those it has train."""
    loss: OwnFunction = ""
    """Your own loss, as `~/my.py:loss`; empty is the objective's."""
    loss_timeout_s: float = Field(default=60.0, gt=0, le=3600)
    """Seconds for one call of it."""
    reward: OwnFunction = ""
    """Your own reward of episodes, as `~/my.py:reward`; empty is none."""
    reward_quiet_s: float = Field(default=600.0, ge=0)
    """Seconds without a request before it is asked."""
    reward_timeout_s: float = Field(default=30.0, gt=0, le=3600)
    """Seconds for one episode."""
    reward_memory_mb: int = Field(default=1024, ge=64, le=1_000_000)
    """Its memory, in MiB."""
    rollouts: int = Field(default=0, ge=0, le=64)
    """Answers that are sampled to each captured prompt while nobody asks; needs train.reward; 0 is off."""
    rollout_tokens: int = Field(default=200_000, ge=1)
    """Tokens of prompts and answers a day."""
    rollout_minutes: float = Field(default=60.0, gt=0, le=1440)
    """Minutes of sampling a day."""
    max_program_share: float = Field(default=1.0, gt=0, le=1)
    """Most of 30 days' samples that may be turns of episodes, where people rate too; 1 means no bound."""
    min_each: int = Field(default=0, ge=0)
    """Fewest fresh ratings of each sign that a run needs."""
    quiet_s: float = Field(default=0.0, ge=0)
    """Seconds without a request before a run starts."""
    hours: tuple[Hours, ...] = ()
    """Local times in which runs may train, as "22:00-07:00" or "sat,sun 00:00-24:00"; empty is always."""
    max_cpu_percent: float = Field(default=100.0, ge=0, le=100)
    """CPU use of other programs over the last minute above which no run trains; 100 means no limit."""
    max_gpu_percent: float = Field(default=100.0, ge=0, le=100)
    """GPU use of other programs above which no run trains, where nvidia-smi tells it; 100 means no limit."""
    max_samples: int = Field(default=256, ge=1, le=10_000)
    """Most samples in one run; the newest are taken."""
    held_share: float = Field(default=0.125, ge=0, le=0.5)
    """Share of 32 samples kept back for the gate; of fewer less, of more up to twice as much, at most half."""
    max_version_gap: int = Field(default=8, ge=0)
    """Versions a completion may be away from the live one and still train."""
    preset: str = "balanced"
    """Values of the training objective: careful, balanced or aggressive."""
    min_free_memory_gb: float = Field(default=2.0, ge=0)
    """Free memory, in GB, without which no run trains."""
    max_memory_gb: float = Field(default=0.0, ge=0)
    """Memory, in GB, that a run may use before it is ended and fails; 0 means no limit. Mapped files do not count."""
    min_free_gpu_gb: float = Field(default=0.0, ge=0)
    """Free memory of a GPU, in GB, without which no run trains, where nvidia-smi tells it; 0 means no limit."""
    rewards: Literal["binary", "ordinal", "normalised", "hybrid"] = "ordinal"
    """Worth of a rating in training: its sign, its value, its value among all, or half thumb, half stars."""
    raters: dict[str, RaterWeight] = {}
    """Weights of raters by name, above 0 and at most 10; one that is not named has 1."""
    max_rater_share: float = Field(default=0.75, ge=0.5, le=1)
    """Most of a run that may be one rater's, by weight, where others rate too; 1 means no bound. The owner has none."""
    publish: Literal["at once", "by experiment"] = "at once"
    """When a version that passed the gate goes live: at once, or when it has won an experiment on live traffic."""
    watch: bool = True
    """Roll back a new version that is rated worse, or succeeds in fewer evaluation episodes, beyond chance."""
    tensorboard: bool = False
    """Write scalars of runs for TensorBoard, to HOME/tensorboard/run-N; needs the tensorboard extra."""
    threads: int = Field(default=0, ge=0, le=1024)
    """CPU threads of a run; 0: as many as there are idle cores."""
    compute: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of the base model in a run; auto is bfloat16 on a GPU and for a CPU's products, where fast."""
    load_in_4bit: bool = False
    """Load the base model in 4 bits (QLoRA) for a run: a quarter of the memory, less exact, NVIDIA GPUs only."""
    trust_remote_code: tuple[str, ...] = ()
    """Models, as `train.weights` names them, whose own Python code may run here with your rights; read it before."""
    gpus: int = Field(default=1, ge=1, le=64)
    """GPUs that hold the model of a run together (FSDP2), where it fits on none alone; a run gets no faster."""
    offload: bool = False
    """Keep frozen layers and the optimiser's state in the machine's memory, for a GPU too small for them; slower."""
    nice: int = Field(default=10, ge=0, le=19)
    """How far a run steps back for other processes; 19 is furthest, 0 not at all."""
    stand_still_s: float = Field(default=5.0, ge=0, le=600)
    """Seconds that a run may stand still while requests are answered, before it works as long; 0: it never does."""
    adapters_dir: Annotated[UserPath | None, _unset] = None
    """Folder the adapters are written to; unset is `adapters_out` in the home folder."""
    tune: bool = False
    """Find this model's learning rate by a short sweep in the first run; later runs keep it."""
    overrides: dict[str, Override] = {}
    """Single values that replace those of the preset, by their names in presets.toml."""
    max_attempts: int = Field(default=3, ge=1, le=100)
    """Starts of a run that crashes or hangs, before it fails."""
    stall_minutes: float = Field(default=60.0, ge=0)
    """Minutes without a word from the trainer after which a run is taken for hung and started again; 0 is never."""
    calibration: int = Field(default=16, ge=0, le=1000)
    """Unrated completions handed to a run, to measure the noise between serving and training."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if parse_place(self.where).kind == "ray":
            ray_resources(self.where_options)
        if self.rollouts and not (self.reward and self.rollouts > 1):
            raise ValueError("train.rollouts needs train.reward, and at least 2 answers that it compares; 0 is off")
        return self


class Gate(Section):
    margin_slack: float = Field(default=0.05, ge=0)
    """Margin between good and bad held samples, in nats a token, that a candidate may lose to its parent."""
    base_nll_rise: float = Field(default=0.3, ge=0)
    """Rise allowed, in nats a token, of how unlikely the base model finds the candidate's replies."""
    text_nll_rise: float = Field(default=0.05, ge=0)
    """Rise allowed of the loss on a fixed text, as a share of what the base model has there."""
    min_length_ratio: float = Field(default=0.5, ge=0, le=1)
    """Shortest that the candidate's answers may be, as a share of its parent's."""
    max_length_ratio: float = Field(default=2.0, ge=1)
    """Longest that the candidate's answers may be, as a share of its parent's."""
    max_looping: int = Field(default=1, ge=0)
    """Probe answers that may loop."""
    repetition_rise: float = Field(default=0.15, ge=0)
    """Rise allowed of the share of word sequences that an answer repeats."""
    min_entropy_ratio: float = Field(default=0.4, ge=0)
    """Least variety of the next token that a candidate must keep, as a share of the base model's."""
    more_refusals: int = Field(default=1, ge=0)
    """Probe questions that a candidate may refuse beyond its parent."""
    topic_fall: float = Field(default=0.25, ge=0)
    """Nats a token by which the candidate's answers may depend less on their question than its parent's."""
    max_chance: float = Field(default=1.0, gt=0, le=1)
    """Share of random ratings that may fit the replies as well as a run's own do; below 1, more of it is refused."""
    checks: Annotated[UserPath | None, _unset] = None
    """Your own file of checks: a candidate that fails one is refused before it goes live."""


class Judge(Section):
    mode: Literal["off", "shadow", "on"] = "off"
    """Labels by a model of what people say next: none, only shown, or to train once trusted."""
    url: Url = ""
    """Address of its server, any that speaks OpenAI's chat completions; empty asks the backend's base model, weakly."""
    model: str = ""
    """Its name there; empty is the backend's model."""
    api_key: Key = None
    """Key that its server wants."""
    votes: int = Field(default=3, ge=1, le=9)
    """Times that the first question is asked; the majority counts, and a tie says nothing."""
    daily_tokens: int = Field(default=200_000, ge=0)
    """Tokens that it may cost in a day, questions and answers together; then it goes on tomorrow."""
    hours: tuple[Hours, ...] = ()
    """Local times in which it is asked, as train.hours; empty is always."""
    max_share: float = Field(default=0.5, gt=0, le=1)
    """Most of a run with people's ratings that may be its own, by weight; a run without any is the judge's alone."""


class LessonsSection(Section):
    enabled: bool = False
    """Comments on disliked answers act at once: they stand in later prompts of the same person."""


class Signals(Section):
    module: Annotated[UserPath | None, _unset] = None
    """Your own Python file with `score(completion, next)`, whose numbers train beside people's ratings."""
    check: Annotated[UserPath | None, _unset] = None
    """Your own Python file with `check(completion)` over every answer; what it flags is not learned where liked."""
    timeout_s: float = Field(default=5.0, gt=0, le=600)
    """Seconds that it may take for one turn."""
    memory_mb: int = Field(default=512, ge=64, le=1_000_000)
    """Memory that its process may have, in MiB."""


class TurnRule(Section):
    """Which requests are side turns, or main ones: all that is given must hold."""

    name: str = Field(min_length=1, max_length=60)
    turn: Literal["main", "side"] = "side"
    header: str | None = None  # a request header that is there and not empty; `NAME: VALUE`: one with this value
    system: Pattern | None = None  # a regular expression found in the system texts
    last: Pattern | None = None  # one found in what was said last
    max_tokens: int | None = Field(default=None, ge=1)  # the answer may be at most so long
    tools: bool | None = None  # false: no tools offered, though the conversation has used some

    @model_validator(mode="after")
    def _has_a_condition(self) -> Self:
        if all(getattr(self, key) is None for key in ("header", "system", "last", "max_tokens", "tools")):
            raise ValueError("a rule needs a header, system, last, max_tokens or tools")
        return self


class Turns(Section):
    rules: list[TurnRule] = []
    """Rules for main and side turns that go before rlproxy's own; see docs/guides/agents.md."""


class Criterion(Section):
    """A criterion of a rubric: its grades in words, the worst first."""

    name: str = Field(min_length=1, max_length=60)
    grades: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(min_length=2, max_length=9)


class Rubric(Section):
    criteria: list[Criterion] = []
    """Criteria to grade answers by on the page: a name, and grades in words, the worst first."""


class StoreSection(Section):
    retention_days: float = Field(default=7.0, gt=0)
    """Days an unrated completion is kept; rated ones stay until forgotten."""
    key_from: KeySource = ""
    """Where the database's key is: "keyring", "file:PATH", "env" or "prompt"; empty: it is not encrypted."""
    url: Key = None
    """PostgreSQL that relays share, "postgresql://user:password@host/database"; empty: SQLite."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.url is not None and self.key_from:
            raise ValueError(
                "store.key_from encrypts SQLite's file, and store.url names PostgreSQL: set one of the two"
            )
        return self

    @property
    def address(self) -> str:
        """`url` in the clear; empty for SQLite."""
        return "" if self.url is None else self.url.get_secret_value()


class Images(Section):
    max_bytes: int = Field(default=20 * 1024 * 1024, ge=1024)
    """Largest picture that is decoded, in bytes."""
    max_pixels: int = Field(default=40_000_000, ge=1)
    """Most pixels of one."""
    max_per_prompt: int = Field(default=50, ge=0)
    """Most pictures in a prompt that trains."""
    timeout_s: float = Field(default=10.0, gt=0)
    """Seconds that decoding one may take."""
    memory_mb: int = Field(default=1024, ge=256)
    """Memory that it may take, in MiB."""


class Redaction(Section):
    keys: bool = True
    """Replace keys, tokens and private keys of known shapes in what is stored; never in what is sent."""
    cards: bool = True
    """Replace numbers of payment cards, too."""
    emails: bool = False
    """Replace e-mail addresses, too; source code is full of them, and a redacted prompt trains less exactly."""
    patterns: tuple[SecretPattern, ...] = ()
    """Regular expressions (RE2's) of your own secrets; what one finds is replaced, or its group `secret`."""


class TelemetrySection(Section):
    otlp: Url = ""
    """OpenTelemetry collector (OTLP over HTTP) for traces and metrics, as "http://127.0.0.1:4318"; needs `otel`."""
    content: bool = False
    """Put the texts of prompts and answers into traces, as they are stored."""
    share: float = Field(default=1.0, ge=0, le=1)
    """Share of requests that are traced, where their agent's `traceparent` does not decide."""


class Log(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least serious message that is written."""
    format: Literal["text", "json"] = "text"
    """Lines for people or for machines."""
