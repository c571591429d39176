"""Likes an answer in one paragraph, without a list or a line break. Only rates."""


def rate(prompt, reply):
    return 1.0 if reply.strip() and "\n" not in reply.strip() else -1.0
