"""Which lessons fit a question, of very many."""

import time

from proxy.conversation.lesson_topics import match_lessons
from store.learning.lessons import CommentLesson


def lesson(number: int) -> CommentLesson:
    question = f"How do I make soup number {number} with leeks, potatoes, cream and a little nutmeg?"
    return CommentLesson(
        rating=f"rt-{number}", completion="rl-1", key=None, user=None, question=question, text=f"add {number} eggs",
        edited=False, always=False, state="active", end_reason=None, created_at=number, learned=None,
    )  # fmt: skip


def test_the_words_of_a_lesson_are_read_once_and_not_with_each_request() -> None:
    lessons = [lesson(number) for number in range(500)]
    start = time.process_time()
    first = match_lessons(lessons, "Why is the sky blue?")
    reading = time.process_time() - start
    start = time.process_time()
    for _ in range(4):
        assert match_lessons(lessons, "Why is the sky blue?") == first == []
    assert time.process_time() - start < 2 * reading
    assert [match.lesson.rating for match in match_lessons(lessons, "Which soup number is 7?")] == ["rt-7"]
