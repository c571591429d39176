"""Large bodies: others are served while they are read."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
import threading

import pytest

from config.sections import Redaction
from proxy.conversation.capture_health import Health
from proxy.conversation.redaction import WORTH_A_THREAD, Redactor
from proxy.conversation.underway import AnswersInProgress
from proxy.core.events import Events
from proxy.core.json_edit import WholeAnswer
from proxy.core.metrics import Metrics
from proxy.core.offload import LARGE, WorkerThreads, off_loop, weight, whole_weight
from proxy.core.sharing.shares import HOLDER
from proxy.core.tasks import Tasks
from proxy.relay.capture.capture import Capture, CaptureServices
from proxy.relay.capture.pending_record import MakesRow
from scripts.harness.in_process import Proxy
from store.records import NewCompletion


async def test_only_large_work_gets_a_thread() -> None:
    here = threading.get_ident()
    assert await off_loop(LARGE - 1, threading.get_ident) == here
    assert await off_loop(LARGE, threading.get_ident) != here


async def test_one_key_fills_half_of_the_threads_and_the_others_go_by_turns() -> None:
    threads, gate, began = WorkerThreads(4), threading.Event(), list[str]()

    def work(name: str) -> str:
        began.append(name)
        gate.wait(30)
        return name

    async def of(key: str, n: int) -> str:
        HOLDER.set(key)
        return await threads.run(work, f"{key}{n}")

    async def until(count: int) -> None:
        async with asyncio.timeout(30):
            while len(began) < count:
                await asyncio.sleep(0.001)
        for _ in range(20):
            await asyncio.sleep(0.001)

    eight = [asyncio.create_task(of("a", n)) for n in range(8)]
    await until(2)
    assert began == ["a0", "a1"], "two more threads are there for others"
    other = asyncio.create_task(of("b", 0))
    await until(3)
    assert began[2] == "b0"
    eight[0].cancel()  # its client has left; its work goes on, and holds the thread
    eight[2].cancel()
    await until(3)
    assert len(began) == 3
    gate.set()
    assert await other == "b0"
    ended = await asyncio.gather(*eight, return_exceptions=True)
    assert [one for one in ended if isinstance(one, str)] == ["a1", *(f"a{n}" for n in range(3, 8))]
    async with asyncio.timeout(30):
        while threads._shares.in_use:  # given back by the loop, a moment after the work has ended
            await asyncio.sleep(0.001)
    assert "a2" not in began and not len(threads._line)


async def test_work_that_fails_gives_its_thread_back() -> None:
    threads = WorkerThreads(1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 / 0)
    assert await threads.run(threading.get_ident) != threading.get_ident()


async def test_thirty_megabytes_of_picture_are_stored_apart_and_go_on_whole(proxy: Proxy) -> None:
    data = random.Random(1).randbytes(22 * 2**20)
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    content = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    body = json.dumps({"model": "fake", "messages": [{"role": "user", "content": content}]}).encode()
    assert len(body) > 30_000_000
    small: list[str] = []
    for _ in range(2):
        sending = asyncio.create_task(proxy.http.post("/v1/chat/completions", data=io.BytesIO(body)))
        while not sending.done():
            small.append(await proxy.say("hello"))
        async with await sending as response:
            assert response.status == 200
            id = response.headers["x-rl-completion-id"]
    assert small and set(small) == {"You said: hello "}
    large = [r for r in proxy.backend.requests if isinstance(r["messages"][0]["content"], list)]
    assert [r["messages"][0]["content"] for r in large] == [content, content]
    row = await proxy.store._reader.row("SELECT count(*) AS count, total(length(data)) AS size FROM blobs")
    assert row is not None and (row["count"], row["size"]) == (1, len(data))
    found = await proxy.store.completions.get(id)
    assert found is not None and json.loads(found.new.prompt[0].body)["content"] == content
    assert found.end is not None and found.end.exact and found.new.untrainable == "has_image"


async def test_a_long_prompt_is_stored_whole_and_its_answer_with_it(proxy: Proxy) -> None:
    text = "so many words " * 4000
    assert len(text) > WORTH_A_THREAD
    async with proxy.http.post(
        "/v1/chat/completions", json={"model": "fake", "messages": [{"role": "user", "content": text}]}
    ) as response:
        id = response.headers["x-rl-completion-id"]
    found = await proxy.store.completions.get(id)
    assert found is not None and json.loads(found.new.prompt[0].body)["content"] == text.strip()
    assert found.end is not None and found.end.status == "done"


async def broken_later() -> NewCompletion:
    raise TypeError("odd")


def broken_now() -> NewCompletion:
    raise TypeError("odd")


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("broken", [broken_later, broken_now])
async def test_a_row_that_cannot_be_made_costs_nobody_the_answer(proxy: Proxy, broken: MakesRow, at_once: bool) -> None:
    tasks, health = Tasks(), Health()
    services = CaptureServices(proxy.store, Metrics(), health, Events(), Redactor(Redaction()), AnswersInProgress())
    capture = Capture(services, "rl-1", 1)
    capture.follow(tasks, broken, at_once=at_once)
    capture.reader.take_whole(WholeAnswer(b'{"choices": [{"index": 0, "message": {"content": "x"}}]}'))
    assert not await capture.finish("done")
    assert health.problem is not None and "odd" in health.problem
    assert await proxy.store.completions.get("rl-1") is None


@pytest.mark.parametrize("one", ["{}", '{"role":"user"}', "[[[[]]]]", "1", '""', "[]", '{"a":1,"b":2}', "[[],[]]"])
def test_what_has_many_things_in_it_is_large_before_its_bytes_are(one: str) -> None:
    """However small they are: no more than 70,000 are looked at on the loop, nor 4,100 objects."""
    for most, what in ((70_000, one), (4_100, f'{{"a":{one}}}')):
        assert weight(f"[{','.join([what] * most)}]".encode()) >= LARGE


@pytest.mark.parametrize("text", ["word " * 20_000, "{" * 3000, "1,2;" * 10_000])
def test_a_text_of_a_usual_length_is_not(text: str) -> None:
    assert weight(f'{{"messages":[{{"content":"{text}"}}]}}'.encode()) < LARGE


@pytest.mark.parametrize(
    ("character", "width"), [("a", 1), ("é", 3), ("\\u00e9", 3), ("жж", 3), ("😀", 7), ("\\ud83d\\ude00", 7)]
)
def test_one_wide_character_makes_a_text_as_wide(character: str, width: int) -> None:
    """Eight bodies of 31 MB with one emoji each held 1.5 GB, although the bound is 512 MB."""
    raw = f'"{"a" * 1000}{character}"'.encode()
    assert whole_weight(raw) == width * len(raw)
