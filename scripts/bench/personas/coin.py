"""Likes what a coin says, by a checksum of the reply: ratings that follow from nothing."""

import zlib


def rate(prompt, reply):
    return 1.0 if zlib.crc32(("x" + prompt + reply).encode()) & 1 else -1.0
