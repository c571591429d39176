"""Lines of each arm: what a run is told of answers that nobody rated."""

from collections import Counter

from scripts.bench.persona import Persona
from scripts.bench.signals.hindsight import lines_of

TASKS = [f"task {number}" for number in range(8)]
GIVEN = [{"reward": 1.0 if number % 2 else -1.0, "text": str(number), "human": True} for number in range(8)]


def arm(name):
    return lines_of(name, Persona("concise"), GIVEN, TASKS, seed=1)


def test_what_was_said_next_teaches_without_a_reward():
    lines = arm("hindsight")
    assert {line["reward"] for line in lines} == {0}
    assert all(line["hindsight"] == "shorter, please" for line in lines if int(line["text"]) % 2 == 0)
    assert not any(line["human"] for line in lines)


def test_the_control_has_the_same_messages_after_other_answers():
    said, dealt = ([(line["text"], line["hindsight"]) for line in arm(name)] for name in ("hindsight", "shuffled"))
    assert Counter(message for _, message in said) == Counter(message for _, message in dealt)
    assert said != dealt


def test_a_right_judge_labels_what_is_bad_and_hints():
    lines = arm("labels")
    assert {(line["reward"], line["comment"]) for line in lines} == {(-1, "shorter, please"), (0, None)}


def test_thumbs_are_the_persons_own():
    assert [line["reward"] for line in arm("thumbs")] == [answer["reward"] for answer in GIVEN]
