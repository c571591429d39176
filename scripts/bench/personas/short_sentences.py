"""Likes short sentences: twelve words each at most, on average. Only rates."""

import re

END = re.compile(r"[.!?]+(?:\s|$)|\n+")


def rate(prompt, reply):
    sentences = [part.split() for part in END.split(reply) if part.strip()]
    return 1.0 if sentences and sum(map(len, sentences)) / len(sentences) <= 12 else -1.0
