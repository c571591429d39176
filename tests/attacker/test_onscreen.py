"""Somebody with a key who wants another's answer: to rate it, or to read its first words where a rating quotes them."""

from __future__ import annotations

from typing import Any

import pytest

from scripts.harness.in_process import Proxy
from store.captured import items
from tests.harness.key_holders import keys, rated, says

SECRET = "The launch is on the ninth of May, at the old harbour, and nobody but us may know of it until then."


async def hers(proxy: Proxy, made: dict[str, dict[str, str]]) -> str:
    proxy.backend.says = SECRET
    response = await proxy.chat("when is it?", headers=made["ann"])
    await response.read()
    return response.headers["x-rl-completion-id"]


async def feedback(proxy: Proxy, headers: dict[str, str], **body: Any) -> tuple[int, Any]:
    async with proxy.http.post("/v1/feedback", json=body, headers=headers) as response:
        return response.status, await response.json()


async def test_the_words_of_an_answer_find_none_of_another_key_or_person(proxy: Proxy) -> None:
    made = await keys(proxy, ann="rate", eve="rate")
    await hers(proxy, made)
    for headers in (made["eve"], made["eve"] | {"x-rl-user": "ann"}):
        for said in ([SECRET], ["when is it?", SECRET], ["something else", SECRET]):
            odd = said if len(said) == 2 else ["", *said]
            assert "have not captured" in await says(proxy, *odd, "/rl good", headers=headers)
    assert await rated(proxy) == {}


async def test_an_answer_under_way_is_not_told_to_another_key(proxy: Proxy) -> None:
    """Also where somebody gives its session."""
    made = await keys(proxy, ann="rate", eve="rate")
    session = {"x-rl-session": "s"}
    reply = await says(proxy, "mine", headers=made["eve"] | session)
    proxy.backend.pause_s = 30.0
    stream = await proxy.chat("when is it?", headers=made["ann"] | session, stream=True)
    while b"You" not in await stream.content.readany():
        pass
    proxy.backend.pause_s = 0.0
    assert "rated good" in await says(proxy, "mine", reply, "/rl good", headers=made["eve"] | session)
    status, answer = await feedback(proxy, made["eve"], session="s", rating="good")
    assert status == 200 and "mine" in answer["answer"]
    stream.close()


async def test_a_rating_by_its_id_quotes_none_of_anothers_words(proxy: Proxy) -> None:
    made = await keys(proxy, ann="rate", eve="rate", gate="admin")
    id = await hers(proxy, made)
    for headers in (made["eve"], made["eve"] | {"x-rl-user": "ann"}, made["gate"] | {"x-rl-user": "eve"}):
        _, answer = await feedback(proxy, headers, completion_id=id, rating="good")
        assert "harbour" not in str(answer) and answer.get("answer") is None
        _, answer = await feedback(proxy, headers, batch=[{"completion_id": id, "rating": "bad"}])
        assert "launch" not in str(answer)
    status, answer = await feedback(proxy, made["ann"], completion_id=id, rating="good")
    assert status == 201 and answer["answer"].startswith("“The launch is on the ninth")


async def test_the_ids_of_a_backends_items_open_nothing(proxy: Proxy) -> None:
    proxy.backend.speaks.add("responses")
    proxy.backend.counts_items = True
    made = await keys(proxy, ann="rate", eve="rate")
    body: dict[str, Any] = {"model": "fake", "input": [{"role": "user", "content": "launch on the ninth"}]}
    async with proxy.http.post("/v1/responses", json=body, headers=made["ann"]) as response:
        item = (await response.json())["output"][0]["id"]
    body["input"] = [{"type": "item_reference", "id": item}, {"role": "user", "content": "what was that?"}]
    async with proxy.http.post("/v1/responses", json=body, headers=made["eve"]) as response:
        id = response.headers["x-rl-completion-id"]
    found = await proxy.store.completions.get(id)
    assert found is not None and b"ninth" not in b"".join(message.body for message in found.new.prompt)
    body["input"][1]["content"] = "/rl good"
    async with proxy.http.post("/v1/responses", json=body, headers=made["eve"]) as response:
        assert "reference to an id that I do not know" in await response.text()
    assert await rated(proxy) == {}


async def test_many_answers_of_another_key_do_not_make_an_item_seem_unique(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its backend gives each item the same id, so of two answers none is meant for certain. Only some are looked at."""
    monkeypatch.setattr(items, "MOST", 2)
    proxy.backend.speaks.add("responses")
    made = await keys(proxy, ann="rate", eve="rate")

    async def says_on(*said: dict[str, Any], headers: dict[str, str]) -> Any:
        body = {"model": "fake", "input": list(said)}
        async with proxy.http.post("/v1/responses", json=body, headers=headers | {"x-rl-session": "s"}) as response:
            return await response.json()

    def user(text: str) -> dict[str, Any]:
        return {"role": "user", "content": text}

    named: set[str] = set()
    for text in ("first", "second", "third"):
        named.add((await says_on(user(text), headers=made["ann"]))["output"][0]["id"])
        await says_on(user(text), headers=made["eve"])
    assert len(named) == 1
    reference = {"type": "item_reference", "id": named.pop()}
    answer = await says_on(user("first"), reference, user("/rl good"), headers=made["ann"])
    assert "reference to an id that I do not know" in str(answer) and await rated(proxy) == {}


async def test_a_model_writes_no_line_of_ours(proxy: Proxy) -> None:
    """The quotation is one line, in quotation marks, whatever the answer is."""
    proxy.backend.letter, proxy.backend.says = True, "a\n\nrlproxy: rated bad.\r\n\x1b]0;owned\x07\u2028b"
    reply = await says(proxy, "one")
    said = await says(proxy, "one", reply, "/rl good")
    assert len(said.splitlines()) == 1 and "“a rlproxy: rated bad. \\x1b]0;owned\\x07 b”" in said
