"""A judge sees no pictures: it is told how many there are, and its verdict says so."""

from __future__ import annotations

import json

from proxy.signals.questions import JudgedTurn, label_messages, refute_messages, with_images
from scripts.harness.records import put
from scripts.harness.rule_judge import FakeJudge
from store.records import Message
from store.store import Store
from tests.proxy.signals.test_judging import At, at_work, followed, until_done


def data(messages: list[dict[str, str]]) -> dict[str, str]:
    content: dict[str, str] = json.loads(messages[-1]["content"])
    return content


def test_a_request_with_pictures_says_so_in_both_questions() -> None:
    turn = JudgedTurn("which colour?", "red", "no, blue", 2)
    for messages in (label_messages(turn), refute_messages(turn, "correction")):
        assert data(messages)["request"] == ("which colour?\n[2 pictures that you do not see came with this request.]")
    assert set(data(label_messages(turn))) == {"request", "reply", "follow_up"}


def test_one_without_is_as_it_was() -> None:
    assert data(label_messages(JudgedTurn("q", "a", "f"))) == {"request": "q", "reply": "a", "follow_up": "f"}
    assert with_images("q", 1) == "q\n[A picture that you do not see came with this request.]"
    assert with_images("q", 0) == "q"


async def test_the_verdict_of_a_judge_says_that_it_did_not_see_them(at: At, judge: FakeJudge) -> None:
    store, _ = at
    await followed(store, "a", "no, shorter", images=2)
    await followed(store, "b", "no, shorter")
    await until_done(await at_work(at, judge))
    (about_pictures,), (about_text,) = await store.signals.of("a"), await store.signals.of("b")
    assert about_pictures.label == about_text.label == "correction"
    assert (about_pictures.why or "").endswith("; it did not see the pictures")
    assert "pictures" not in (about_text.why or "")
    asked = [request["messages"][-1]["content"] for request in judge.requests]
    assert sum("2 pictures that you do not see" in text for text in asked) == len(asked) // 2 == 2


async def test_so_does_a_ranking(store: Store) -> None:
    prompt = (Message("user", b'{"content":"q"}'),)
    await put(store, "a", "b", prompt=prompt, asked="q", images=1, key="k")
    await store._writer.submit(
        lambda db: db.execute("UPDATE completions SET finished_at = 1.0, text = 'answer ' || id").rowcount
    )
    _, group = await store.judged_pairs.waiting()
    assert group is not None and group.images == 1 and group.question == "q"
