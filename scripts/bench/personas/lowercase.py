"""Likes lower case throughout."""


def rate(prompt, reply):
    return 1.0 if any(c.isalpha() for c in reply) and reply == reply.lower() else -1.0


def comment(prompt, reply):
    return "write everything in lower case, no capital letters" if rate(prompt, reply) < 0 else None
