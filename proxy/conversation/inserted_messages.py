"""Pairs of messages that an agent puts into a conversation and nobody said: files, what it did, and an "Ok." to them.

Owns how they begin, by agent. They move from request to request and stand between an answer and what a person says to
it, so a conversation is compared without them. Nothing is done because of them: a command is looked for elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from proxy.conversation.conversations import text_of
from proxy.core.agent_wrappers import Agent

Message = Mapping[str, Any]

# What the agent says in the model's name, and how what it says in the person's begins. Read in aider 0.86.2.
_AIDER: Final[Mapping[str, tuple[str, ...]]] = {
    "Ok, any changes I propose will be to those files.": (
        "I have *added these files to the chat* so you can go ahead",
    ),
    "Ok, I will use that as the true, current contents of the files.": (
        "I have *added these files to the chat* so you see all",
        "These files have been *added these files to the chat*",
    ),
    "Ok, based on your requests I will suggest which files need to be edited and then stop and wait for your "
    "approval.": ("Don't try and edit any existing code without asking me to add the files to the chat!",),
    "Ok, I won't try and edit those files without asking first.": (
        "Here are summaries of some files present in my git repository.",
        "I am working with you on code in a git repository.",
    ),
    "Ok, I will use these files as references.": ("Here are some READ ONLY files, provided for your reference.",),
    "I see that you interrupted my previous reply.": ("^C KeyboardInterrupt",),
    "Ok.": (
        "I am not sharing any files that you can edit yet.",
        "I am not sharing any files with you.",
        "I am not sharing the full contents of any files with you yet.",
        "I committed the changes with git hash ",
        "I updated the files.",
        "I edited the files myself.",
        "I didn't see any properly formatted edits in your reply?!",
    ),
    "Ok": ("I ran this command:\n", "Output from "),
}
_OF: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {"aider": _AIDER}


def without_fillers(messages: Sequence[Message], agent: Agent | None) -> list[Message]:
    """The messages but for those pairs, wherever they are."""
    pairs = None if agent is None else _OF.get(agent.name)
    if pairs is None:
        return list(messages)
    remaining: list[Message] = []
    for message in messages:
        if remaining and _is_pair(remaining[-1], message, pairs):
            remaining.pop()
        else:
            remaining.append(message)
    return remaining


def _is_pair(question: Message, reply: Message, pairs: Mapping[str, tuple[str, ...]]) -> bool:
    if question.get("role") != "user" or reply.get("role") != "assistant" or reply.get("tool_calls"):
        return False
    begins = pairs.get(text_of(reply) or "")
    return begins is not None and (text_of(question) or "").startswith(begins)
