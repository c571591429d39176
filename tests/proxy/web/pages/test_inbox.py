"""The inbox over HTTP: what is shown, filtered, searched and rated."""

from __future__ import annotations

import re

import pytest

from scripts.harness.in_process import Proxy
from tests.harness.visits import Visit


async def asked(proxy: Proxy, *questions: str, **headers: str) -> list[str]:
    ids = []
    for question in questions:
        response = await proxy.chat(question, headers={k.replace("_", "-"): v for k, v in headers.items()})
        await response.read()
        ids.append(response.headers["x-rl-completion-id"])
    return ids


def shown(page: str) -> list[str]:
    return re.findall(r'<p class="asked">([^<]*)</p>', page)


async def test_the_first_visit_shows_the_base_url(proxy: Proxy, visit: Visit) -> None:
    page = await visit.get("/")
    assert f"{proxy.url}/v1" in page and "data-waiting" in page
    await asked(proxy, "hello")
    assert shown(await visit.get("/")) == ["hello"]


async def test_newest_first_and_page_by_page(proxy: Proxy, visit: Visit) -> None:
    await asked(proxy, *(f"q{i}" for i in range(33)))
    page = await visit.get("/")
    assert shown(page) == [f"q{i}" for i in range(32, 2, -1)]
    older = re.search(r'hx-get="(/page/rows\?before=\d+)"', page)
    assert older
    await asked(proxy, "another")  # a page goes on from a key: what came meanwhile moves nothing
    rest = await visit.get(older[1])
    assert shown(rest) == ["q2", "q1", "q0"] and "Older" not in rest
    assert shown(await visit.get(older[1].replace("/page/rows", "/"))) == ["q2", "q1", "q0"]


async def talk(proxy: Proxy, *turns: str, **headers: str) -> list[str]:
    """A conversation that sends itself again with every turn, as clients do."""
    said: list[str] = []
    ids = []
    for turn in turns:
        response = await proxy.chat(*said, turn, headers={k.replace("_", "-"): v for k, v in headers.items()})
        said += [turn, (await response.json())["choices"][0]["message"]["content"]]
        ids.append(response.headers["x-rl-completion-id"])
    return ids


async def test_a_conversation_stands_where_its_newest_turn_is(proxy: Proxy, visit: Visit) -> None:
    ids = await talk(proxy, "a1", "a2", "a3")
    await talk(proxy, "b1", "b2")
    await asked(proxy, "alone")
    page = await visit.get("/")
    assert shown(page) == ["alone", "b2", "a3"]
    assert re.findall(r">(\d+) earlier turns? <", page) == ["1", "2"]
    _, fold = re.findall(r'hx-get="(/page/rows\?[^"]*conversation=[^"]*)"', page)
    fold = fold.replace("&amp;", "&")
    earlier = await visit.get(fold)
    assert shown(earlier) == ["a2", "a1"] and "earlier turn" not in earlier
    # Filters choose turns: what stands for the conversation is the newest of those.
    await proxy.rate(completion_id=ids[2], rating="good")
    page = await visit.get("/?unrated=1")
    assert shown(page) == ["alone", "b2", "a2"] and re.findall(r">(\d+) earlier turns? <", page) == ["1", "1"]
    assert "unrated=1&amp;conversation=" in page
    # A search finds turns, each by itself, and leads to the whole conversation.
    found = await visit.get("/?q=a1+said")
    assert shown(found) == ["a1"]
    whole = re.search(r'href="(/\?conversation=\d+)"[^>]*>The whole conversation: 3 turns', found)
    assert whole and shown(await visit.get(whole[1])) == ["a3", "a2", "a1"]
    await talk(proxy, "c1", "c2")
    assert shown(await visit.get(whole[1])) == ["a3", "a2", "a1"]


async def test_what_clients_change_does_not_part_a_conversation(proxy: Proxy, visit: Visit) -> None:
    said = "You said: a1 "
    await asked(proxy, "a1")
    # An agent puts its reminders in, another a command and what we answered to it.
    reminded = ["<system-reminder>today is Friday</system-reminder>a1", f"<think>hm</think>{said}", "a2"]
    await (await proxy.chat(*reminded)).read()
    await (await proxy.chat("a1", said, "/rl good", "rated good", "a2", "You said: a2 ", "a3")).read()
    await (await proxy.chat("a1", "something else", "a2")).read()  # another reply: somebody has written it anew
    page = await visit.get("/")
    assert shown(page) == ["a2", "a3"] and re.findall(r">(\d+) earlier turns? <", page) == ["2"]


async def test_a_page_that_finds_nothing_leads_on(proxy: Proxy, visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    (id,) = await asked(proxy, "old egg")
    await asked(proxy, *(f"sea {i}" for i in range(3)))
    await asked(proxy, "sea aside", x_rl_turn="side")
    for row in (await proxy.get("/rl/completions?limit=9"))["data"]:
        if row["id"] != id:
            await proxy.rate(completion_id=row["id"], rating="good")
    monkeypatch.setattr("store.captured.inbox.LOOK", 2)
    page = await visit.get("/?q=said&unrated=1")
    assert shown(page) == [] and "Nothing among the newest" in page
    older = re.search(r'href="(/\?[^"]*before=\d+)"', page)
    assert older
    page = await visit.get(older[1].replace("&amp;", "&"))
    older = re.search(r'href="(/\?[^"]*before=\d+)"', page)
    assert older
    assert shown(await visit.get(older[1].replace("&amp;", "&"))) == ["old egg"]


async def test_filters(proxy: Proxy, visit: Visit) -> None:
    (one,) = await asked(proxy, "of session s", x_rl_session="s")
    await asked(proxy, "aside", x_rl_turn="side")
    await asked(proxy, "plain")
    await proxy.rate(completion_id=one, rating="good")
    assert shown(await visit.get("/")) == ["plain", "of session s"]
    assert shown(await visit.get("/?side=1")) == ["plain", "aside", "of session s"]
    assert shown(await visit.get("/?unrated=1")) == ["plain"]
    assert shown(await visit.get("/?session=s")) == ["of session s"]
    assert shown(await visit.get("/?model=fake&version=0")) == ["plain", "of session s"]
    assert shown(await visit.get("/?model=other")) == [] and "with these filters" in await visit.get("/?version=7")
    for bad in ("before=x", "version=-1", "before=99999999999999999999"):
        assert "must be a number" in await visit.get(f"/?{bad}", 400)


async def test_a_request_without_a_model_makes_no_blank_choice(proxy: Proxy, visit: Visit) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    async with proxy.http.post("/v1/chat/completions", json=body) as response:
        await response.read()
    page = await visit.get("/")
    assert "All models" in page and "<option></option>" not in page and "<option selected></option>" not in page


async def test_search_finds_words_of_question_and_answer(proxy: Proxy, visit: Visit) -> None:
    await asked(proxy, "boil an egg", "the sea at night")
    assert shown(await visit.get("/?q=BOI")) == ["boil an egg"]  # a word begun, in any case
    assert shown(await visit.get("/?q=said+sea")) == ["the sea at night"]  # "said" is the answer's
    assert shown(await visit.get("/?q=egg+sea")) == []
    for odd in ('"', "egg*", "NEAR(", "AND", "-", "ä:b", "%00"):
        await visit.get("/", params={"q": odd})


async def test_a_rating_is_a_tap_and_an_undo_another(proxy: Proxy, visit: Visit) -> None:
    (id,) = await asked(proxy, "hello")
    await visit.get("/")
    row = await visit.post(f"/page/completions/{id}/rate", rating="good")
    assert 'aria-pressed="true"' in row and "<b>good</b>" in row
    assert visit.told == "Rated good. The answer begins: “You said: hello”. 1 of 4 ratings for the next run."
    assert "<b>4 of 5</b>" in await visit.post(f"/page/completions/{id}/rate", rating="4/5")
    row = await visit.post(f"/page/completions/{id}/rate", rating="bad", comment="too long")
    assert "<b>bad</b>" in row and "too long" in row
    assert "too long" in await visit.post(f"/page/completions/{id}/rate", rating="2/5")  # the words stay
    assert "too long" not in await visit.post(f"/page/completions/{id}/rate", comment="")
    row = await visit.post(f"/page/completions/{id}/rate", correction="Hello\r\nto you")
    rating = (await proxy.store.ratings.history(id))[0]
    assert (rating.value, rating.correction, rating.source) == (-1.0, "Hello\nto you", "page")
    assert "<b>bad</b>" not in await visit.post(f"/page/completions/{id}/undo")
    assert "nothing to undo" in await visit.post(f"/page/completions/{id}/undo", 409)
    assert "good or bad" in await visit.post(f"/page/completions/{id}/rate", 400, comment="but which?")
    assert "not here any more" in await visit.post("/page/completions/none/rate", 404, rating="good")
    assert "must be" in await visit.post(f"/page/completions/{id}/rate", 400, rating="superb")


async def test_a_written_correction_outlasts_another_verdict_that_is_not_good(proxy: Proxy, visit: Visit) -> None:
    (id,) = await asked(proxy, "hello")
    await visit.get("/")

    async def corrected(**form: str) -> str:
        await visit.post(f"/page/completions/{id}/rate", **form)
        return str((await proxy.store.ratings.history(id))[0].correction)

    assert await corrected(correction="Hello.") == "Hello."
    for form in ({"rating": "bad", "comment": "too long"}, {"rating": "bad"}, {"rating": "2/5"}, {"comment": ""}):
        assert await corrected(**form) == "Hello."
    assert await corrected(rating="good") == "None"  # such a reply needs none


async def test_forms_have_what_is_there(proxy: Proxy, visit: Visit) -> None:
    (id,) = await asked(proxy, "hello")
    await visit.get("/")
    assert "You said: hello" in await visit.get(f"/page/completions/{id}/correct")
    await visit.post(f"/page/completions/{id}/rate", rating="bad", comment="why so", correction="Hi.")
    assert "why so" in await visit.get(f"/page/completions/{id}/comment")
    assert ">Hi.</textarea>" in await visit.get(f"/page/completions/{id}/correct")
    await visit.get(f"/page/completions/{id}/other", 404)


async def test_a_model_cannot_write_html(proxy: Proxy, visit: Visit) -> None:
    evil = "<script>alert(1)</script> <img/src=x> &amp; \" ' {{ 7*7 }}"
    (id,) = await asked(proxy, evil, x_rl_session="<b>s</b>", x_rl_user='"><i>u')
    await proxy.rate(completion_id=id, rating="bad", comment="<u>no</u>", correction="<s>x</s>", rater="<a>")
    for path in ("/", f"/completions/{id}", f"/page/completions/{id}/correct", f"/compare?about={id}", "/progress"):
        page = await visit.get(path)
        for tag in ("<script>alert", "<img", "<b>s", "<i>u", "<u>no", "<s>x", "<a>", ">49"):
            assert tag not in page, (path, tag)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in await visit.get("/")


async def test_most_informative_first_shows_what_a_critic_cannot_tell(proxy: Proxy, visit: Visit) -> None:
    ids = await asked(proxy, *(f"q{i}" for i in range(8)))
    page = await visit.get("/?order=informative")
    assert shown(page)[0] == "q7" and "No critic is trusted yet" in page
    odds = {ids[0]: 0.1, ids[1]: -2.0, ids[2]: 0.4, ids[3]: 3.0, ids[4]: -0.2, "rl-gone": 0.0}
    await proxy.store.guesses.replace_all(1, odds)
    page = await visit.get("/?order=informative")
    order = shown(page)
    assert order[:4] == ["q0", "q4", "q2", "q1"] and "No critic" not in page and "data-rows" not in page
    assert order.count("q3") == 1 and len(set(order)) == len(order) >= 5
    await proxy.rate(completion_id=ids[0], rating="good")
    assert shown(await visit.get("/?order=informative"))[0] == "q4"
    async with proxy.http.post("/rl/forget", json={"completion": ids[0]}) as gone:  # the critic was made of its rating
        assert gone.status == 200
    assert "No critic is trusted yet" in await visit.get("/?order=informative")


async def test_an_answer_that_still_streams_is_not_gone(proxy: Proxy, visit: Visit) -> None:
    await asked(proxy, "before")
    await visit.get("/")
    proxy.backend.pause_s = 5.0
    stream = await proxy.chat("hello", stream=True)
    got = b""
    while b"You" not in got:
        got += await stream.content.readany()
    id = stream.headers["x-rl-completion-id"]
    assert (await proxy.rate(completion_id=id, rating="good"))[0] == 201
    page = await visit.post(f"/page/completions/{id}/rate", 409, rating="bad")
    assert "This answer is not finished: “You”, still streaming." in page and f"--id {id}" in page
    stream.close()


async def test_a_question_asked_on_the_page_is_a_main_turn_to_rate(proxy: Proxy, visit: Visit) -> None:
    assert "Ask the base model something" in await visit.get("/")
    await visit.post("/page/ask", 303, prompt="why is the sky blue?")
    (row,) = await proxy.store.completions.page()
    assert (row.new.turn, row.new.session, row.new.version) == ("main", "page", 0)
    assert "why is the sky blue?" in await visit.get("/")
    await visit.post("/page/ask", 400, prompt="  ")
    assert "nothing was asked" in await visit.post("/page/ask", 400, prompt="/rl good")
    assert len(await proxy.store.completions.page()) == 1
