"""Likes to be spoken to: "you" or "your" is somewhere in the reply. Only rates."""

import re

YOU = re.compile(r"\byou(r|rs|rself|['’]\w+)?\b", re.I)


def rate(prompt, reply):
    return 1.0 if YOU.search(reply) else -1.0
