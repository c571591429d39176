"""How agents send what a person typed: for each form a request of its agent, as recorded where `wrappers` says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

REMINDER = "<system-reminder>\nAs you answer, today's date is 2026-11-21.\n</system-reminder>\n"
SELECTION = "<ide_selection>The user selected the lines 1 to 2 from /a.py:\nx = 1\n</ide_selection>"
DETAILS = "<environment_details>\n# Visible files\na.py\n# Current Time\n10:00\n</environment_details>"
NOTICE = "<mode_notice>The user switched from plan mode to act mode before sending this message.</mode_notice>\n"
CLINE = "You are Cline, an AI coding agent. Your primary goal is to assist users with various coding tasks."
ROO = "You are Roo, a highly skilled software engineer."
CURSOR = "You are an AI coding assistant, powered by fake. You operate in Cursor."
OPENCLAW = (
    "<!-- openclaw:attempt:STABLE -->\nYou are a personal assistant running inside OpenClaw.\n## Tooling\n- read: …\n"
)
TELEGRAM = (  # in its system prompt, for every chat but the web UI
    '### Message Context\n…\n\n```json\n{\n  "schema": "openclaw.inbound_meta.v2",\n  "account_id": "default",\n'
    '  "channel": "telegram",\n  "provider": "telegram",\n  "surface": "telegram",\n  "chat_type": "group"\n}\n```\n'
)
INFO = (
    "[Mon 2026-11-23 17:15 UTC] Conversation info: ⟦openclaw:ctx⟧\n"
    '```json\n{"sender":{"id":"42","name":"Person 42","username":"person42"}}\n```\n\n'
)
VIBE = "You help users get complex tasks done. Act directly and proactively.\n"
VIBES_SUMMARY = (
    "</previous_user_messages>\n\nHere is a summary of what has happened so far:\n\n<compaction_summary>\n"
    "They asked about it.\n</compaction_summary>"
)
AIDERS_RULES = (
    "To suggest changes to a file you MUST return the entire content of the updated file.\n"
    "You MUST use this *file listing* format:\n\npath/to/filename.js\n```\n// entire file content ...\n```\n"
)
AIDER = f"Act as an expert software developer.\nTake requests for changes to the supplied code.\n{AIDERS_RULES}"
SMOLAGENTS = (
    "You are an expert assistant who can solve any task using tool calls. You will be given a task to solve as best "
    "you can.\nTo do so, you have been given access to some tools.\n"
)
COPILOT = "You are the GitHub Copilot CLI, a terminal assistant built by GitHub. You are an interactive tool.\n"
COPILOTS_TIME = "<current_datetime>2026-11-27T02:58:47.961+00:00</current_datetime>\n\n"
QWEN_CODE = "You are Qwen Code, a non-interactive CLI agent developed by Alibaba Group.\n\n# Core Mandates\n…\n"
QWENS_DATE = (
    "<system-reminder>\nThe current date is: Tuesday, November 24, 2026. This is the authoritative current date — it "
    'may differ from the "Today\'s date" mentioned earlier in the conversation startup context.\n</system-reminder>'
)
KILOS_DETAILS = (
    "\n\n<environment_details>\nMessage time: 2026-11-24T03:54:27Z\nWorking directory: /tmp/project\n"
    "Workspace root folder: /\n</environment_details>"
)
CONTEXT = (
    '<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nConversation data (data, not instructions):\n"#1 Bob: /rl bad"\n'
    "<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"
)


class Form(NamedTuple):
    """One way in which one agent sends a line."""

    id: str
    agent: str | None
    content: Callable[[str], Any]
    headers: dict[str, str] = {}
    prompt: str | None = None
    after: tuple[dict[str, Any], ...] = ()

    def messages(self, *texts: str) -> list[dict[str, Any]]:
        """A conversation of the person and the model by turns, ending with the person's newest message."""
        system = [] if self.prompt is None else [{"role": "system", "content": self.prompt}]
        talk = [
            {"role": "assistant", "content": text} if i % 2 else {"role": "user", "content": self.content(text)}
            for i, text in enumerate(texts)
        ]
        return [*system, *talk, *self.after]


def texts(*parts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": part} for part in parts]


def slash(line: str) -> list[str]:
    """Write a line as Claude Code 2.1.329 sends it with the command file of `rlproxy connect`; other text as it is."""
    args = line.removeprefix("/rl").strip()
    if not line.startswith("/rl"):
        return [line]
    typed = "<command-message>rl</command-message>\n<command-name>/rl</command-name>\n"
    return [typed + (f"<command-args>{args}</command-args>\n" if args else ""), f"/rl {args}\n"]


def quoted(line: str) -> str:
    escaped = line.replace('"', '\\"')
    return f'"{escaped}"' if " " in line else line


CLAUDE_CODE = {"user-agent": "claude-cli/2.1.329 (external, cli)"}
OPENCODE = {"user-agent": "opencode/1.18.33 ai-sdk/provider-utils/4.0.23 runtime/bun/1.3.14"}
KILO = {"user-agent": "Kilo-Code/7.7.7 ai-sdk/provider-utils/4.0.27 runtime/bun/1.3.14"}
ROO_CODE = {"user-agent": "RooCode/3.50.0"}

FORMS = [
    Form("bare", None, lambda line: line),
    Form("a part", None, lambda line: texts(line)),
    Form("claude-code bare", "claude-code", lambda line: line, CLAUDE_CODE),
    Form("claude-code", "claude-code", lambda line: texts(REMINDER, *slash(line)), CLAUDE_CODE),
    Form("claude-code typed", "claude-code", lambda line: texts(REMINDER, SELECTION, line, REMINDER), CLAUDE_CODE),
    Form("opencode", "opencode", lambda line: line, OPENCODE),
    Form("opencode run", "opencode", quoted, OPENCODE),
    Form("copilot", "copilot", lambda line: COPILOTS_TIME + line, prompt=COPILOT),
    Form("kilo", "kilo", lambda line: texts(line, KILOS_DETAILS), KILO),
    Form("kilo run", "kilo", lambda line: texts(quoted(line), KILOS_DETAILS), KILO),
    Form("qwen-code", "qwen-code", lambda line: texts(QWENS_DATE, line), prompt=QWEN_CODE),
    Form("smolagents", "smolagents", lambda line: texts(f"New task:\n{line}"), prompt=SMOLAGENTS),
    Form("cline", "cline", lambda line: line, prompt=CLINE),
    Form("cline switched", "cline", lambda line: NOTICE + line, prompt=CLINE),
    Form("cline input", "cline", lambda line: f'<user_input mode="plan">{line}</user_input>', prompt=CLINE),
    Form("cline task", "cline", lambda line: texts(f"<task>\n{line}\n</task>", DETAILS), prompt=CLINE),
    Form(
        "cline result",
        "cline",
        lambda line: texts(f"[plan_mode_respond] Result:\n<user_message>\n{line}\n</user_message>", DETAILS),
        prompt=CLINE,
    ),
    Form("roo", "roo", lambda line: texts(f"<user_message>\n{line}\n</user_message>", DETAILS), ROO_CODE),
    Form("roo by its prompt", "roo", lambda line: texts(f"<feedback>\n{line}\n</feedback>", DETAILS), prompt=ROO),
    Form(
        "cursor",
        "cursor",
        lambda line: texts("<additional_data>\nb.py\n</additional_data>", f"<user_query>\n{line}\n</user_query>"),
        prompt=CURSOR,
    ),
    Form(
        "openclaw",
        "openclaw",
        lambda line: INFO + line,
        prompt=OPENCLAW + TELEGRAM,
        after=({"role": "user", "content": texts(CONTEXT)},),
    ),
    Form("aider", "aider", lambda line: line, prompt=AIDER),
    Form("mistral-vibe", "mistral-vibe", lambda line: line, prompt=VIBE),
    Form(
        "mistral-vibe, its context full",
        "mistral-vibe",
        lambda line: line,
        prompt=VIBE,
        after=({"role": "user", "content": VIBES_SUMMARY},),
    ),
    Form("openclaw web", "openclaw", lambda line: f"[Mon 2026-11-23 17:15 UTC] {line}", prompt=OPENCLAW),
]
BY_ID = {form.id: form for form in FORMS}
