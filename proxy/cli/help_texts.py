"""Texts of `--help` and the man page beyond each command's sentence: sections, examples, exit codes.

Owns these words; scripts/docs/man.py reads them too. Plain text, since help is piped and read in 80 columns as often as
not. Not here: what a command does and its options (app and the modules beside it).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from typer.core import TyperGroup

SECTIONS: Final = {
    "Set up": ("init", "serve", "stop", "connect", "disconnect", "service", "keys", "config", "doctor", "plan"),
    "Rate": ("good", "bad", "fix", "skip", "undo", "answers", "watch", "ask", "chat"),
    "Learn": (
        "status", "train", "pause", "resume", "cancel", "runs", "episodes", "judge", "rescore", "lessons", "adapters",
        "line", "why", "report", "eval", "experiment", "rollback", "promote", "reset", "retrain",
    ),
    "Data": (
        "export", "import", "model", "capture", "forget", "backup", "restore", "encrypt", "decrypt", "migrate", "audit",
    ),
}  # fmt: skip
EXIT_CODES: Final = (
    ("0", "done"), ("1", "refused or failed"), ("2", "wrong use, or settings that cannot be read"),
    ("3", "no proxy answers"),
)  # fmt: skip
# By command; each line is one that can be typed.
EXAMPLES: Final = {
    "init": ("init", "init --yes", "init --answers answers.toml --json"),
    "serve": ("serve", "serve --backend ollama --model llama3.2:3b --weights meta-llama/Llama-3.2-3B-Instruct"),
    "stop": ("stop",),
    "connect": ("connect claude-code --dry-run", "connect codex --yes --panel"),
    "disconnect": ("disconnect codex",),
    "service install": ("service install --dry-run",),
    "service remove": ("service remove",),
    "service status": ("service status",),
    "service logs": ("service logs -f",),
    "keys create": ("keys create --role rate --name phone", "keys create --name phone --role rate --agents"),
    "keys list": ("keys list --json",),
    "keys revoke": ("keys revoke phone",),
    "keys off": ("keys off --yes",),
    "config show": ("config show", "config show --json"),
    "doctor": ("doctor", "doctor --bundle report.tar.gz"),
    "plan": (
        "plan", "plan Qwen/Qwen3-8B --gpu-gb 24 --server vllm", "plan config.json --gpu-gb 80 --ratings 64 --json",
    ),
    "good": ("good", "good --stars 4", "good --session trip"),
    "bad": ("bad too long, use bullets", "bad --id rl-3ha20msqjac77bj925bkhklo"),
    "fix": ("fix The capital of France is Paris.", "fix"),
    "skip": ("skip", "skip --session trip"),
    "undo": ("undo", "undo --rater ann"),
    "answers": ("answers", "answers -n 50 --unrated --json"),
    "watch": ("watch", "watch --session trip"),
    "ask": ("ask why is the sky blue", "ask --version base why is the sky blue"),
    "chat": ("chat", "chat --vs v3"),
    "status": ("status", "status --watch", "status --json"),
    "train": ("train", "train --tune"),
    "pause": ("pause",),
    "resume": ("resume",),
    "cancel": ("cancel",),
    "runs": ("runs", "runs 7", "runs --json"),
    "episodes": ("episodes", "episodes --group add-3 --json", "episodes add-3-1"),
    "rescore": ("rescore --since 2026-11-01", "rescore --episodes"),
    "judge": ("judge", "judge --accept", "judge --json"),
    "lessons list": ("lessons list", "lessons list --json"),
    "lessons edit": ('lessons edit rt-42 "use a table"', "lessons edit rt-42 --always"),
    "lessons remove": ("lessons remove rt-42",),
    "lessons restore": ("lessons restore rt-42",),
    "adapters": ("adapters",),
    "line create": ("line create ann --user ann", "line create code --from v3 --agent claude-code"),
    "line list": ("line list", "line list --json"),
    "line change": ("line change ann --user ann --user anna",),
    "line retire": ("line retire ann",),
    "line restore": ("line restore ann",),
    "why": ("why rl-3ha20msqjac77bj925bkhklo", "why rt-42 --json"),
    "report": ("report", "report shared.html --no-text"),
    "eval": ("eval checks.toml --versions base,v6,v7", "eval checks.toml --strict --junit checks.xml"),
    "experiment start": ("experiment start v7", "experiment start v7 --share 0.2"),
    "experiment status": ("experiment status", "experiment status --json"),
    "experiment stop": ("experiment stop",),
    "retrain": ("retrain --weights Qwen/Qwen3-0.6B --dry-run", "retrain", "retrain --stop"),
    "rollback": ("rollback", "rollback --base"),
    "promote": ("promote v3", "promote base"),
    "reset": ("reset",),
    "export": ("export --rated -o rated.jsonl", "export --since 2026-11-01 --version 3",
        "export --format trl-kto -o kto.jsonl"),
    "import": (
        "import rated.jsonl", "import rated.jsonl --ours", "import open-webui webui.db",
        "import openclaw-rl conversations.jsonl", "import verifiers outputs --dry-run",
        "import harbor jobs --scale 0.1",
    ),
    "model export": ("model export v7 --adapter --to v7", "model export v7 --gguf --base model.gguf --to v7-gguf"),
    "capture": ("capture off trip", "capture on trip"),
    "forget": ("forget session trip", "forget user ann --retrain --yes"),
    "backup": ("backup rlproxy-backup.db",),
    "restore": ("restore rlproxy-backup.db",),
    "encrypt": ("encrypt --key keyring",),
    "migrate": ("migrate --to postgresql://me:secret@db.local/rlproxy", "migrate --to sqlite"),
    "decrypt": ("decrypt",),
    "audit list": ("audit list -n 50", "audit list --json"),
    "audit verify": ("audit verify", "audit verify --expect 9f2c"),
}  # fmt: skip
# Where they are not simply the general ones.
EXITS: Final = {
    "init": "1 also where it could not be shown to work; what was written stays.",
    "serve": "0 after Ctrl-C or SIGTERM, 1 where it cannot start, 130 after a second signal.",
    "doctor": "0 no problem, 1 a problem, 3 no proxy answers.",
    "service status": "0 it runs, 1 it does not or is not installed.",
    "eval": "1 also with --strict, where the last version fails a check.",
    "audit verify": "1 also where the log is broken.",
    "retrain": "1 also where it made no version.",
    "import": "1 also if a line, a rating, or a reward was refused, or if nothing belongs to an answer captured here.",
    "forget": "1 also where nobody said yes.",
}


class Grouped(TyperGroup):
    """The commands under the headings of SECTIONS, and examples under each command's help."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for path, command in commands_of(self):
            command.epilog = _epilog(path)
        codes = ", ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES)
        self.epilog = (
            f"Exit codes: {codes}.\n\n`rlproxy COMMAND --help` has examples. `man rlproxy`: docs/guides/operations.md."
        )

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = formatter.width - 6 - max(len(name) for name in self.commands)
        names_in_sections = {name for names in SECTIONS.values() for name in names}
        for title, names in {
            **SECTIONS,
            "Others": [name for name in self.commands if name not in names_in_sections],
        }.items():
            if not names:
                continue
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(width)) for name in names])


def commands_of(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each command by what is typed after `rlproxy`."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def _epilog(path: str) -> str:
    examples = EXAMPLES.get(path, ())
    lines = ["\b", "Examples:" if len(examples) > 1 else "Example:", *(f"  rlproxy {line}" for line in examples)]
    return "\n".join([*lines, *(["", f"Exit codes: {EXITS[path]}"] if path in EXITS else [])])
