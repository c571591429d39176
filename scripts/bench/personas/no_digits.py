"""Dislikes digits: numbers, numbered lists, years."""

import re


def rate(prompt, reply):
    return -1.0 if re.search(r"\d", reply) else 1.0
