"""The agents that `rlproxy connect` knows: which of their settings point them here. One function each.

Owns file names, keys and what a person should know afterwards. Each format was read in the agent's own package
(versions in docs/guides/agents.md). How files are edited, kept and brought back is `connection`'s.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from proxy.cli.agents import json_text, yaml_text
from proxy.cli.agents.paths import PathItem, Place, UnreadableSettings

NO_KEY: Final = "rlproxy"  # most agents want some key; rlproxy without keys takes any
OWN_KEY: Final = (
    "The cloud is asked with the agent's own key, which stays as it was; where it has none, start rlproxy with "
    "RLPROXY_BACKEND__API_KEY."
)
NAME: Final = "rlproxy"
ANSWER: Final = 32_000  # tokens that Claude Code asks for where it knows no better
ROOMY: Final = 65_536  # a window in which it has room left for words beside what it reserves
PANEL_COMMAND: Final = "watch --open"
PANEL_NOTE: Final = ", in tmux, where `rlproxy watch` opens below it after its next reply"
RL_COMMAND: Final = """\
---
description: Rate the answer above. good, bad, 1 to 5, fix, undo, status
argument-hint: good | bad | 1-5 | fix TEXT | undo | status
---
/rl $ARGUMENTS
"""
# Else the model may run it by itself, because of what it has read.
CLAUDE_COMMAND: Final = RL_COMMAND.replace("\n---\n", "\ndisable-model-invocation: true\n---\n")


class AgentLink(NamedTuple):
    """Where to, and as whom."""

    url: str  # without /v1
    model: str
    key: str | None
    window: int | None = None  # how many tokens the model takes, question and answer together, if the server told
    own_key: bool = False  # the agent's own goes through to a cloud, for which rlproxy has none
    panel: str | None = None  # the command that opens `rlproxy watch` beside the agent, where a person wants that

    @property
    def v1(self) -> str:
        return f"{self.url}/v1"

    @property
    def some_key(self) -> str:
        return self.key or NO_KEY

    def own_key_place(self, *place: str) -> tuple[str, ...] | None:
        """A `SettingEdit.own_key_place`."""
        return place if self.own_key else None


class SettingEdit(NamedTuple):
    """One value in one file. Format `text`: the whole file, and no place."""

    file: Path
    format: Literal["json", "toml", "yaml", "text"]
    place: Place
    value: Any
    default: bool = False  # only where the file says nothing there
    own_key_place: tuple[str, ...] | None = None  # where in the value a key of the agent's own stays


class Setup(NamedTuple):
    edits: list[SettingEdit]
    note: str  # how to rate there, and what to do by hand


class Home(NamedTuple):
    """Where a person's files are."""

    folder: Path
    environ: Mapping[str, str]

    def of(self, variable: str, default: str) -> Path:
        return Path(self.environ[variable]).expanduser() if self.environ.get(variable) else self.folder / default


def claude_code(link: AgentLink, home: Home) -> Setup:
    folder = home.of("CLAUDE_CONFIG_DIR", ".claude")
    env = {
        "ANTHROPIC_BASE_URL": link.url,
        "ANTHROPIC_AUTH_TOKEN": link.some_key,
        "ANTHROPIC_MODEL": link.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": link.model,  # what it asks on the side
    }
    if link.window:  # else it asks for answers that no small model has room for
        env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(min(ANSWER, link.window // 4))
    if link.window and link.window >= ROOMY:  # else it believes in a million; of a smaller one it refuses to speak
        env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(link.window)
    # Before a cloud its own token stays; without any it would send its login there.
    untouched = {"ANTHROPIC_AUTH_TOKEN"} if link.own_key else set()
    edits = [
        SettingEdit(folder / "settings.json", "json", ("env", name), value, name in untouched)
        for name, value in env.items()
    ]
    edits.append(SettingEdit(folder / "commands" / "rl.md", "text", (), CLAUDE_COMMAND))
    if link.panel:
        config = json_text.parse(_text(folder / "settings.json") or "{}")
        entries = _object_at(config, "hooks").get("Stop") or []
        other_entries = [entry for entry in entries if PANEL_COMMAND not in str(entry)]
        own_entry = {"hooks": [{"type": "command", "command": link.panel, "timeout": 10}]}
        edits.append(SettingEdit(folder / "settings.json", "json", ("hooks", "Stop"), [*other_entries, own_entry]))
    return Setup(edits, f"Start claude anew{PANEL_NOTE if link.panel else ''}. Rate with /rl good or /rl bad too long.")


def codex(link: AgentLink, home: Home) -> Setup:
    file = home.of("CODEX_HOME", ".codex") / "config.toml"
    provider: Place = ("model_providers", NAME)
    edits = [
        SettingEdit(file, "toml", ("model",), link.model),
        SettingEdit(file, "toml", ("model_provider",), NAME),
        SettingEdit(file, "toml", (*provider, "name"), NAME),
        SettingEdit(file, "toml", (*provider, "base_url"), link.v1),
        SettingEdit(file, "toml", (*provider, "wire_api"), "responses"),  # the only one that Codex still speaks
    ]
    if link.window:
        edits.insert(2, SettingEdit(file, "toml", ("model_context_window",), link.window))  # when it summarises
    if link.key:
        edits.append(SettingEdit(file, "toml", (*provider, "experimental_bearer_token"), link.key))
    if link.panel:  # codex adds an argument, which the shell takes as a name of its own
        edits.append(SettingEdit(file, "toml", ("notify",), ["sh", "-c", link.panel]))
    return Setup(
        edits,
        f"Start codex anew{PANEL_NOTE if link.panel else ''}. It refuses unknown slash commands, so type a space "
        "first: ` /rl good`.",
    )


def opencode(link: AgentLink, home: Home) -> Setup:
    folder = home.of("XDG_CONFIG_HOME", ".config") / "opencode"
    file = folder / ("opencode.jsonc" if (folder / "opencode.jsonc").exists() else "opencode.json")
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": NAME,
        "options": {"baseURL": link.v1, "apiKey": link.some_key},
        "models": {link.model: {"name": link.model}},
    }
    edits = [
        SettingEdit(file, "json", ("provider", NAME), provider, own_key_place=link.own_key_place("options", "apiKey")),
        SettingEdit(file, "json", ("model",), f"{NAME}/{link.model}"),
        SettingEdit(folder / "command" / "rl.md", "text", (), RL_COMMAND),
    ]
    return Setup(edits, "Start opencode anew. Rate with /rl good or /rl bad too long.")


def openclaw(link: AgentLink, home: Home) -> Setup:
    state = home.of("OPENCLAW_STATE_DIR", ".openclaw")
    file = home.of("OPENCLAW_CONFIG_PATH", "") if home.environ.get("OPENCLAW_CONFIG_PATH") else state / "openclaw.json"
    config = json_text.parse(_text(file) or "{}")
    defaults = _object_at(config, "agents", "defaults")
    provider = {
        "baseUrl": link.v1,
        "apiKey": link.some_key,
        "api": "openai-completions",
        "models": [{"id": link.model, "name": link.model}],
    }
    name = f"{NAME}/{link.model}"
    plain = isinstance(defaults.get("model"), str)
    model: Place = ("agents", "defaults", "model") if plain else ("agents", "defaults", "model", "primary")
    edits = [
        SettingEdit(file, "json", ("models", "providers", NAME), provider, own_key_place=link.own_key_place("apiKey")),
        SettingEdit(file, "json", model, name),
    ]
    if isinstance(defaults.get("models"), dict):  # a list of the models that are allowed
        edits.append(SettingEdit(file, "json", ("agents", "defaults", "models", name), {}))
    return Setup(edits, "The gateway takes it up by itself. Rate with /rl good as a message of its own.")


def aider(link: AgentLink, home: Home) -> Setup:
    file = home.folder / ".aider.conf.yml"
    values = {"openai-api-base": link.v1, "openai-api-key": link.some_key, "model": f"openai/{link.model}"}
    if link.own_key:
        del values["openai-api-key"]  # one in the file would also go before that of its environment
    return Setup(
        [SettingEdit(file, "yaml", (key,), value) for key, value in values.items()],
        "Start aider anew. It takes lines with a slash for its own commands, so rate with `rl:good`, or with "
        "`rlproxy good`. A .aider.conf.yml in a repository goes before this one.",
    )


def continue_dev(link: AgentLink, home: Home) -> Setup:
    file = home.of("CONTINUE_GLOBAL_DIR", ".continue") / "config.yaml"
    head = {"name": NAME, "version": "1.0.0", "schema": "v1"}  # a file must have these
    edits = [SettingEdit(file, "yaml", (key,), value, default=True) for key, value in head.items()]
    model = {
        "name": NAME, "provider": "openai", "model": link.model, "apiBase": link.v1, "apiKey": link.some_key,
        "roles": ["chat", "edit", "apply"],
    }  # fmt: skip
    edits.append(
        SettingEdit(file, "yaml", ("models", PathItem("name", NAME)), model, own_key_place=link.own_key_place("apiKey"))
    )
    return Setup(edits, "Choose the model `rlproxy` in Continue. Rate with /rl good as a message of its own.")


def hermes(link: AgentLink, home: Home) -> Setup:
    file = home.of("HERMES_HOME", ".hermes") / "config.yaml"
    model = _object_at(yaml_text.parse(_text(file) or "{}"), "model")  # it may be a name alone
    model |= {"default": link.model, "provider": "custom", "base_url": link.v1, "api_key": link.some_key}
    if link.window:
        model["context_length"] = link.window
    own_key_place = link.own_key_place("api_key")
    return Setup(
        [SettingEdit(file, "yaml", ("model",), model, own_key_place=own_key_place)],
        "Start hermes anew. It takes lines with a slash for its own commands, so rate with `rl:good`, or with "
        "`rlproxy good`.",
    )


def llm(link: AgentLink, home: Home) -> Setup:
    mac = sys.platform == "darwin"
    default = "Library/Application Support/io.datasette.llm" if mac else ".config/io.datasette.llm"
    folder = home.of("LLM_USER_PATH", default)
    model: dict[str, Any] = {"model_id": NAME, "model_name": link.model, "api_base": link.v1}
    model |= {"supports_tools": True, "supports_schema": True}  # else it refuses to offer any
    edits = []
    if link.key:
        model["api_key_name"] = NAME
        edits.append(SettingEdit(folder / "keys.json", "json", (NAME,), link.key))
    key_place = link.own_key_place("api_key_name")
    edits.append(
        SettingEdit(
            folder / "extra-openai-models.yaml", "yaml", (PathItem("model_id", NAME),), model, own_key_place=key_place
        )
    )
    return Setup(edits, "Ask with `llm -m rlproxy …`; rate with `llm -c '/rl good'`.")


def cursor(link: AgentLink, home: Home) -> Setup:
    """It has no file: its settings are in a database, and its own servers ask the model."""
    return Setup(
        [],
        "Cursor keeps its settings in a database, so nothing was written. Its own servers ask the model. They need an "
        "https address that reaches this rlproxy (docs/guides/recipes.md has a reverse proxy), and a key. In Cursor "
        f"Settings → Models, add the model {link.model}. Then set OpenAI API Key to "
        f"{'YOUR_KEY' if link.own_key else link.some_key}, and Override OpenAI Base URL to https://YOUR_NAME/v1. Rate "
        "with /rl good as a message of its own, or with `rlproxy watch`.",
    )


def open_webui(link: AgentLink, home: Home) -> Setup:
    """It has no file: its settings are in its database, or its environment at the first start."""
    lines = [
        f"OPENAI_API_BASE_URL={link.v1}",
        f"OPENAI_API_KEY={'YOUR_KEY' if link.own_key else link.some_key}",
        "ENABLE_FORWARD_USER_INFO_HEADERS=true",
    ]
    return Setup(
        [],
        "Open WebUI keeps its settings in its database. Either start it with\n  "
        + "\n  ".join(lines)
        + "\nor, in Admin Panel → Settings → Connections, add an OpenAI API connection with that URL and key. In a "
        "container, use the host's name instead of 127.0.0.1. The last line tells rlproxy chat and user. "
        "Rate with /rl good as a message of its own, or with its own thumbs: integrations/open-webui has the function.",
    )


AGENTS: Final[dict[str, Callable[[AgentLink, Home], Setup]]] = {
    "claude-code": claude_code,
    "codex": codex,
    "opencode": opencode,
    "openclaw": openclaw,
    "aider": aider,
    "continue": continue_dev,
    "hermes": hermes,
    "cursor": cursor,
    "open-webui": open_webui,
    "llm": llm,
}


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableSettings(f"{file} cannot be read: {error}") from None


def _object_at(value: Any, *keys: str) -> dict[str, Any]:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}
