from __future__ import annotations

from proxy.training.segments import segments
from scripts.harness.records import HELLO, HI, end, new
from store.records import Completion, Message


def turn(prompt: list[int], reply: list[int]) -> Completion:
    return Completion(1, new("c"), end("c", prompt_token_ids=prompt, token_ids=reply), "done", None, None)


def test_turns_that_go_on_are_one_segment() -> None:
    assert segments([turn([1], [2]), turn([1, 2, 3], [4]), turn([1, 2, 3, 4, 5], [6])]) == [0, 0, 0]


def test_a_compaction_and_a_subagent_begin_another() -> None:
    turns = [turn([1], [2]), turn([9], [8]), turn([1, 2, 3], [4]), turn([9, 8, 7], [6]), turn([1, 50], [4])]
    assert segments(turns) == [0, 1, 0, 1, 2]


def test_a_retried_turn_is_a_branch() -> None:
    assert segments([turn([1], [2]), turn([1, 2, 3], [4]), turn([1, 2, 3], [5]), turn([1, 2, 3, 5, 6], [7])]) == [
        0,
        0,
        1,
        1,
    ]


def test_without_ids_by_messages() -> None:
    def said(*messages: Message) -> Completion:
        return Completion(1, new("c", prompt=messages), end("c", prompt_token_ids=None), "done", None, None)

    assert segments([said(HELLO), said(HELLO, HI, HELLO), said(HI)]) == [0, 0, 1]
