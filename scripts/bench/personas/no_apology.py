"""Dislikes apologies and talk of what an assistant cannot do. Asks for what a small model likes to apologise for."""

import re

SORRY = re.compile(
    r"\b(sorry|apolog\w*|unfortunately|as an ai|i can['’]?t|i cannot|i(['’]?m| am) (not able|unable))\b", re.I
)
PROMPTS = "apology"  # the part of scripts/bench/prompts.txt that it asks from


def rate(prompt, reply):
    return -1.0 if SORRY.search(reply) else 1.0


def comment(prompt, reply):
    return "do not apologise or say what you cannot do, just answer" if rate(prompt, reply) < 0 else None
