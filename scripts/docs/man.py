"""Writes man/rlproxy.1 from the command line's own help: every command, option, example and exit code.

python -m scripts.docs.man            writes it
man -l man/rlproxy.1             reads it
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer.main

from proxy.cli.app import app
from proxy.cli.help_texts import EXAMPLES, EXIT_CODES, EXITS, SECTIONS, commands_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "man/rlproxy.1"
FILES = (
    ("~/.rlproxy", "The home: the database, runs, adapters, logs. --home or RLPROXY_HOME names another."),
    ("~/.rlproxy/rlproxy.toml", "Settings; `rlproxy config show` has every key, its value and where that came from."),
)


def page() -> str:
    group: Any = typer.main.get_command(app)
    commands = dict(commands_of(group))
    lines = ['.TH RLPROXY 1 "" "rlproxy" "User Commands"', ".SH NAME", f"rlproxy \\- {_text(_unwrapped(group.help))}"]
    lines += [".SH SYNOPSIS", ".B rlproxy", ".I COMMAND", "[\\fIOPTION\\fR ...]"]
    for title, names in SECTIONS.items():
        lines.append(f".SH {title.upper()}")
        for path, command in commands.items():
            if path.split()[0] in names:
                lines += _command(path, command)
    lines.append(".SH EXIT STATUS")
    for code, meaning in EXIT_CODES:
        lines += [".TP", f".B {code}", _text(meaning)]
    lines.append(".SH ENVIRONMENT")
    lines += [".TP", ".B RLPROXY_SECTION__KEY", _text("A setting: RLPROXY_SERVER__PORT=9000. Flags go before it.")]
    lines.append(".SH FILES")
    for name, meaning in FILES:
        lines += [".TP", f".B {_text(name)}", _text(meaning)]
    return "\n".join(lines) + "\n"


def _command(path: str, command: Any) -> list[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and "--help" not in p.opts]
    names = " ".join(_argument(p) for p in arguments)
    lines = [f".SS rlproxy {path} {names}".rstrip(), _text(_unwrapped(command.help))]
    for param in [*arguments, *options]:
        lines += [".TP", _argument(param) if param in arguments else _option(param), _text(param.help or "")]
    lines += [".PP", "Examples:", ".EX", *(f"rlproxy {_text(line)}" for line in EXAMPLES[path]), ".EE"]
    return lines + ([".PP", _text(f"Exit status: {EXITS[path]}")] if path in EXITS else [])


def _argument(param: Any) -> str:
    name = f"\\fI{param.name.rstrip('_').upper()}\\fR" + (" ..." if param.nargs == -1 else "")
    return name if param.required else f"[{name}]"


def _option(param: Any) -> str:
    flags = ", ".join(f"\\fB{_text(flag)}\\fR" for flag in [*param.opts, *param.secondary_opts])
    default = param.show_default if isinstance(param.show_default, str) else ""
    value = "" if param.is_flag else f" \\fI{param.name.split('_')[-1].upper()}\\fR"
    return f"{flags}{value}" + (f" (default: {_text(default)})" if default else "")


def _unwrapped(text: str | None) -> str:
    return " ".join((text or "").split())


def _text(text: str) -> str:
    """Escape a text so that roff reads it back: no hyphen becomes a dash, and no line a request."""
    return re.sub(r"^([.'])", r"\\&\1", text.replace("\\", "\\e").replace("-", "\\-"))


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
