"""Likes a short bulleted list, and says so."""

import re

BULLET = re.compile(r"^\s*[-*•] \S", re.M)


def rate(prompt, reply):
    return 1.0 if len(BULLET.findall(reply)) >= 2 else -1.0


COMMENT = "answer as a short bulleted list, like this:\n- first point\n- second point"


def comment(prompt, reply):
    return COMMENT if rate(prompt, reply) < 0 else None
