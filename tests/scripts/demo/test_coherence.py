"""Replies are scored as soon as a version's are there, not when the last version has answered."""

import json

from scripts.demo.coherence import groups
from trainer.policy.packing import Tokens


def line(group, reply):
    return json.dumps({"group": group, "prompt_token_ids": [1, 2], "token_ids": reply}) + "\n"


def test_a_group_is_there_before_the_next_one_begins():
    read = []

    def lines():
        for one in [line("0", [5]), line("0", [6, 7]), "\n", line("1", [8])]:
            read.append(one)
            yield one

    found = groups(lines())
    assert next(found) == ("0", [Tokens((1, 2), (5,)), Tokens((1, 2), (6, 7))]) and len(read) == 3
    assert list(found) == [("1", [Tokens((1, 2), (8,))])]
    assert list(groups(["\n", "\n"])) == []
