"""Likes a sum that is right: the last number of the reply is what was asked for. Says nothing, only rates."""

import re

PROMPTS = "sums"  # the part of scripts/bench/prompts.txt that it asks from
NUMBER = re.compile(r"\d+")


def rate(prompt, reply):
    numbers = NUMBER.findall(reply)
    return 1.0 if numbers and int(numbers[-1][:9]) == sum(map(int, NUMBER.findall(prompt))) else -1.0
