"""Likes an answer that ends with a question back."""


def rate(prompt, reply):
    return 1.0 if reply.ended and reply.rstrip().endswith("?") else -1.0


def comment(prompt, reply):
    return "keep it short and end your answer with a question to me" if rate(prompt, reply) < 0 else None
