"""`rlproxy report` over real stores: what is in it, that both ways to read give the same, that nothing in it acts."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.settings import load
from proxy.cli.http import HomeClient
from proxy.cli.report import gather, page, sources
from proxy.cli.report.pairs import FEWEST_WORDS, MOST, pairs
from proxy.cli.report.sources import ReportedCompletion
from proxy.core.address_file import ADDRESS_FILE
from proxy.web.pages.svg import Plot, plain, ticks
from scripts.fakes.backend import FakeBackend
from scripts.harness import newer_schema
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from scripts.harness.seeding import history
from store.copies.read_only import look
from store.errors import StoreError
from store.file.db_key import Secret
from store.records import Rating
from store.store import Store
from tests.harness.older_home import older_home
from tests.harness.runs import until

EVIL = "<script>alert('x')</script>\"><img src=http://evil.test/x onerror=alert(1)>"
GATE = {
    "margin": {"value": 0.1, "bound": -0.05, "ok": True, "note": f"{EVIL} and 1 disliked"},
    "base_nll": {"value": 0.125, "bound": 0.3, "ok": True},
}
QUESTION = f"How do I boil an egg {EVIL}"
TAGS = {
    "html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "h3", "p", "ul", "li", "b", "section", "div",
    "table", "thead", "tbody", "tr", "th", "td", "span", "figure", "figcaption", "details", "summary",
    "svg", "line", "polyline", "circle", "rect", "text",
}  # fmt: skip


class Parsed(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.fixture
async def filled(cli: Proxy, backend: FakeBackend) -> Proxy:
    """Two versions, made by the real path of ratings, and one question asked of the base and of v2."""
    steps = [
        {"event": "step", "step": n, "steps": 3, "loss": 0.5 / n, "acceptance": 0.9, "kl_old": 0.1 * n}
        for n in (1, 2, 3)
    ]
    cli.launcher.progress = [{"event": "step", "step": 9, "steps": 9, "loss": 7.0}]
    cli.launcher.progress += [{"event": "phase", "phase": "train", "again": "base_nll is 0.5"}, *steps]
    for version in (1, 2):
        ids = []
        for n in range(4):
            backend.says = f"Version {version - 1} says {n} {EVIL}"
            ids.append((await cli.chat(QUESTION if n == 0 else f"question {n}")).headers["x-rl-completion-id"])
        cli.launcher.result = {"gate": GATE, "samples": {}}
        for n, id in enumerate(ids):
            rating = "good" if n < version + 1 else "bad"
            more = {"comment": f"comment {EVIL}"} if n == 0 else {"correction": "better"} if n == 3 else {}
            rater = f"eve {EVIL}" if n == 1 else "owner"
            await cli.post("/rl/pause") if n == 2 else None  # until the result names all
            _, rated = await cli.rate(completion_id=id, rating=rating, rater=rater, **more)
            outcome = {"used": n != 2, "cause": "token" if n == 2 else None, "tokens": 5, "accepted": 4, "loss": 0.1}
            cli.launcher.result["samples"][rated["id"]] = outcome
        await cli.post("/rl/resume")
        await until(cli, live=version)
    backend.says = f"Version 2 says 0 {EVIL}"
    await cli.chat(QUESTION)
    await cli.rate(completion_id="last", rating=4, comment="better now")
    return cli


async def written(proxy: Proxy, file: Path, *args: str) -> str:
    code, out, err = await rlproxy(proxy.home, "report", str(file), *args)
    assert code == 0, err
    assert str(file) in out
    return file.read_text()


def nothing_acts(text: str) -> Parsed:
    """No element that runs, loads, or leads anywhere; only what the template has."""
    found = Parsed(text)
    assert found.tags <= TAGS, found.tags - TAGS
    assert not found.attributes & {"src", "href", "srcset", "style", "onerror", "onload", "action", "xlink:href"}
    assert "default-src 'none'" in text and "url(" not in text and "@import" not in text
    return found


async def test_what_was_rated_and_what_each_version_learned(filled: Proxy, tmp_path: Path) -> None:
    parsed = nothing_acts(await written(filled, tmp_path / "r.html"))
    assert EVIL in parsed.words  # as text, in all of these places:
    for part in (
        QUESTION, f"comment {EVIL}", f"eve {EVIL}", f"Version 0 says 0 {EVIL}", f"Version 2 says 0 {EVIL}",
        f"{EVIL} and 1 disliked", "Base NLL by version", "To the same prompt", "4 of 5", "Run 2, v2",
        "Made of 3 of 4 rated answers",
    ):  # fmt: skip
        assert part in parsed.words, part
    assert parsed.words.count("Tokens accepted") == 2 and "KL to the base" not in parsed.words


async def test_the_data(filled: Proxy) -> None:
    code, out, _ = await rlproxy(filled.home, "report", "--json")
    found = json.loads(out)
    counts = {"completions": 9, "ratings": 9, "good": 6, "bad": 3, "comments": 3, "corrections": 2}
    assert code == 0 and found["counts"] == counts and (found["live"], found["previous"]) == (2, 1)
    assert [(r["rater"], r["ratings"], r["comments"]) for r in found["raters"]] == [
        ("owner", 7, 3),
        (f"eve {EVIL}", 2, 0),
    ]
    assert (
        sum(row["ratings"] for row in found["times"]["rows"]) == 9 and found["comments"][0]["comment"] == "better now"
    )
    v2, v1, base = found["versions"]
    assert (v2["state"], v1["state"], base["state"]) == ("live", "previous", "")
    assert (v2["parent"], v2["run"], v2["base_nll"], v2["gate"]) == (1, 2, 0.125, GATE)
    assert v1["taught"] | {"rows": 0} == {
        "samples": 4, "used": 3, "good": 2, "bad": 2, "comments": 1, "corrections": 1, "rows": 0,
    }  # fmt: skip
    assert [row["used"] for row in v1["taught"]["rows"]] == [True, True, True, False]
    verdicts = {v.version: (v.good, v.good + v.bad) for v in await filled.store.stats.verdicts()}
    assert verdicts == {v["version"]: (v["share"]["good"], v["share"]["rated"]) for v in found["versions"]}
    steps = found["runs"][0]["steps"]  # of the second try, and of nothing before it
    assert [(s["step"], s["acceptance"], s["kl_ref"]) for s in steps] == [
        (1, 0.9, None),
        (2, 0.9, None),
        (3, 0.9, None),
    ]
    pair, *_ = found["replies"]
    assert (pair["before"]["version"], pair["after"]["version"]) == (0, 2)
    assert (pair["before"]["verdict"], pair["after"]["text"].strip()) == ("good", f"Version 2 says 0 {EVIL}")


async def test_both_ways_give_the_same(filled: Proxy) -> None:
    code, asked, _ = await rlproxy(filled.home, "report", "--json")
    files = {file: file.read_bytes() for file in filled.home.rglob("*") if file.is_file()}
    async with look(filled.home):  # beside a running proxy, which holds the lock
        pass
    await filled.stop()
    code, read, err = await rlproxy(filled.home, "report", "--json")
    assert code == 0 and "No proxy answers" in err
    assert json.loads(read) | {"made_at": 0} == json.loads(asked) | {"made_at": 0}
    after = {file: file.read_bytes() for file in files if "rlproxy.db" not in file.name and file.exists()}
    assert after == {file: text for file, text in files.items() if "rlproxy.db" not in file.name}
    await filled.start()


async def test_after_a_crash(filled: Proxy, tmp_path: Path) -> None:
    """What a killed proxy leaves: a log beside the database, and nobody who has the lock."""
    settings = load({"home": filled.home}, environ={}).settings
    live = await asyncio.to_thread(sources.ask, HomeClient(settings))
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("rlproxy.db", "rlproxy.db-wal"):
        shutil.copy(filled.home / name, copy / name)
    before = (copy / "rlproxy.db").read_bytes()
    assert await sources.read(copy, None) == live
    assert (copy / "rlproxy.db").read_bytes() == before


async def test_without_text_there_is_none(filled: Proxy, tmp_path: Path) -> None:
    text = await written(filled, tmp_path / "r.html", "--no-text")
    _, data, _ = await rlproxy(filled.home, "report", "--json", "--no-text")
    assert "rater 1" in nothing_acts(text).words
    for word in ("boil", "question", "Version 0 says", "comment <", "comment &lt;", "better", "eve "):
        assert word not in data and word not in text.partition("</style>")[2], word
    assert json.loads(data)["counts"]["comments"] == 3 and str(filled.home) not in data + text


async def test_nothing_but_a_report_is_written_over(cli: Proxy, tmp_path: Path) -> None:
    file = tmp_path / "thesis.html"
    file.write_text("<html>three years of work</html>")
    code, _, err = await rlproxy(cli.home, "report", str(file))
    assert code == 1 and "not a report" in err and "--force" in err and "three years" in file.read_text()
    await written(cli, file, "--force")
    await written(cli, file)
    assert "Nothing has been rated yet." in file.read_text() and "No run yet." in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    code, _, err = await rlproxy(cli.home, "report", str(tmp_path))
    assert code == 1 and "cannot be written" in err and len(err.splitlines()) == 1
    code, _, err = await rlproxy(cli.home, "report", str(tmp_path / "nowhere" / "r.html"))
    assert code == 1 and "could not be written" in err and len(err.splitlines()) == 1
    assert [one.name for one in tmp_path.iterdir() if one.is_file()] == ["thesis.html"]


async def test_no_proxy_and_no_database(tmp_path: Path) -> None:
    code, _, err = await rlproxy(tmp_path, "report", str(tmp_path / "r.html"), RLPROXY_SERVER__PORT="1")
    assert code == 1 and "There is no database" in err and "rlproxy serve" in err and not list(tmp_path.iterdir())


async def test_a_proxy_that_refuses_is_not_gone_around(cli: Proxy, tmp_path: Path) -> None:
    await cli.stop()
    await cli.start(server__api_key="k" * 20, server__admin_key="a" * 20)
    (cli.home / ADDRESS_FILE).write_text(json.dumps({"url": cli.url, "pid": os.getpid()}))
    code, _, err = await rlproxy(cli.home, "report", str(tmp_path / "r.html"))
    assert code == 1 and "key" in err and not (tmp_path / "r.html").exists()


async def test_of_another_rlproxy_or_encrypted(tmp_path: Path) -> None:
    key = Secret("0f" * 32)
    store = await Store.open(tmp_path / "sealed", key)
    await store.close()
    assert (await sources.read(tmp_path / "sealed", key)).runs == []
    with pytest.raises(StoreError, match="key_from"):
        await sources.read(tmp_path / "sealed", None)
    older_home(tmp_path / "old")
    newer = newer_schema.write(tmp_path / "newer")
    with newer_schema.installed(newer), pytest.raises(StoreError, match="older rlproxy"):
        await sources.read(tmp_path / "old", None)


async def test_weeks_of_history(tmp_path: Path) -> None:
    store = await Store.open(tmp_path)
    await history(store, tmp_path)
    verdicts = await store.stats.verdicts()
    await store.close()
    found = gather.report(await sources.read(tmp_path, None), text=True, now=1e9, offset=0)
    assert found["times"]["each"] == 86400 and 39 <= len(found["times"]["rows"]) <= 42
    assert [v["version"] for v in found["versions"]] == [2, 1, 0] == [v.version for v in verdicts][::-1]
    assert found["replies"] == []  # each version gave the same answers
    parsed = nothing_acts(page.html(found))
    assert "Base NLL by version" in parsed.words and "8 steps on 21 samples" in parsed.words


# Parts


def told(id: str, version: int | None, asked: str, text: str = "", **more: Any) -> ReportedCompletion:
    found = ReportedCompletion(
        id, float(len(id)), "m", version, "main", asked, asked, True, text or f"{id} of {version}", ()
    )
    return replace(found, **more)


def test_pairs_prefer_the_same_prompt_and_the_widest_step() -> None:
    one, two = "what is the capital of France", "What is the capital  of france"
    rows = [told("a", 0, one), told("b", 1, one), told("c", 3, one), told("d", 2, two, prompt="other")]
    (same,) = pairs(rows)
    assert (same.kind, same.old_reply.id, same.new_reply.id) == ("the same prompt", "a", "c")
    (same,) = pairs([rows[0], rows[3]])
    assert (same.kind, same.new_reply.id) == ("the same question", "d")
    (near,) = pairs([rows[0], told("e", 1, "and what is the capital of France")])
    assert (near.kind, near.new_reply.id) == ("a similar question", "e")


def test_what_is_no_pair() -> None:
    one = "what is the capital of France"
    assert pairs([told("a", 1, one), told("b", 1, one)]) == []  # one version
    assert pairs([told("a", 0, one), told("b", None, one)]) == []  # not ours
    assert pairs([told("a", 0, one, "Paris"), told("b", 1, one, "Paris")]) == []  # nothing changed
    assert pairs([told("a", 0, one), told("b", 1, "what do bees eat in winter")]) == []
    short = "go on please"
    assert len(short.split()) < FEWEST_WORDS
    assert pairs([told("a", 0, short, prompt="1"), told("b", 1, short, prompt="2")]) == []
    many = [told(f"{n}-{v}", v, f"tell me of the number {n} of {n}", prompt=str(n)) for n in range(30) for v in (0, 1)]
    assert len(pairs(many)) == MOST


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(1, 8))
def test_ticks_are_few_round_and_inside(low: float, width: float, most: int) -> None:
    found = ticks(low, low + width, most)
    assert len(found) <= most + 1
    assert all(low - width * 1e-3 <= tick <= low + width * 1.001 for tick in found)
    assert found == sorted(found)


@given(st.lists(st.tuples(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9)), min_size=1, max_size=20), st.text(max_size=20))
def test_a_plot_stays_in_its_frame_and_escapes(points: list[tuple[float, float]], label: str) -> None:
    label = "".join(c for c in label if c.isprintable())
    xs, ys = [x for x, _ in points], [y for _, y in points]
    plot = Plot(label, (min(xs), max(xs)), (min(ys), max(ys)))
    plot.line(points)
    plot.dots(points)
    plot.marks([(xs[0], label)])
    assert all(0 <= plot.across(x) <= 360 for x in xs) and all(0 <= plot.up(y) <= 170 for y in ys)
    assert Parsed(str(plot.drawn())).tags <= {"svg", "polyline", "circle", "line", "text"}


@pytest.mark.parametrize(("value", "said"), [(0.25, "0.25"), (0.1 + 0.2, "0.3"), (120.0, "120"), (26000.0, "3e+04")])
def test_a_tick_in_few_characters(value: float, said: str) -> None:
    assert plain(value) == said


@pytest.mark.parametrize("model", ["/home/anna/models/m.gguf", "C:\\Users\\anna\\m.gguf", "anna/m.gguf", "m.gguf"])
def test_the_path_of_a_model_is_not_for_others(model: str) -> None:
    rows = [told("a", 0, "q", model=model, ratings=(_rating("a", 1e9, 1.0),))]
    found = sources.ReportData(0, 0, [], [], rows)
    assert gather.report(found, text=False, now=0, offset=0)["model"] == "m.gguf"
    assert gather.report(found, text=True, now=0, offset=0)["model"] == model


@pytest.mark.parametrize(("days", "each"), [(1, 3600), (60, 86400), (300, 7 * 86400)])
def test_ratings_by_hour_day_or_week(days: int, each: int) -> None:
    rows = [
        told(str(n), 0, "q", ratings=(_rating(str(n), 1.7e9 + n * days * 86400 / 50, 1.0 if n % 2 else -1.0),))
        for n in range(50)
    ]
    found = gather.report(sources.ReportData(0, 0, [], [], rows), text=True, now=0, offset=3600)
    assert found["times"]["each"] == each and sum(row["ratings"] for row in found["times"]["rows"]) == 50
    assert all((row["at"] + 3600) % each == 0 for row in found["times"]["rows"])
    assert "<svg" in page.html(found)


def _rating(id: str, at: float, value: float) -> Rating:
    return Rating(id, id, "owner", value, None, None, 1.0, "http", None, at, True, None, scale="thumb")
