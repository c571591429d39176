"""Likes an answer that comes to its end by itself, within the tokens it is given."""


def rate(prompt, reply):
    return 1.0 if reply.ended else -1.0
