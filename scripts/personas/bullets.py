"""Likes a short bulleted list, and says so."""

import re

BULLET = re.compile(r"^\s*[-*•] \S", re.M)


def rate(prompt, reply):
    return 1.0 if len(BULLET.findall(reply)) >= 2 else -1.0


def comment(prompt, reply):
    return (
        "answer as a short bulleted list, each point on its own line starting with a dash"
        if rate(prompt, reply) < 0
        else None
    )
