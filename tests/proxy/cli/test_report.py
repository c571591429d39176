"""`rlproxy report` over real stores: what is in it, and that nothing in it acts."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from proxy.web.pages.report import html
from scripts.fakes.backend import FakeBackend
from scripts.harness import newer_schema
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from store.copies.read_only import look
from store.errors import StoreError
from store.file.db_key import Secret
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
    "table", "thead", "tbody", "tr", "th", "td", "span", "figure", "figcaption", "details", "summary", "ol", "q",
    "meter",
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
    text = await written(filled, tmp_path / "r.html")
    parsed = nothing_acts(text)
    assert EVIL in parsed.words  # as text, in all of these places:
    for part in (
        QUESTION, f"comment {EVIL}", f"eve {EVIL}", f"Version 0 says 0 {EVIL}", f"{EVIL} and 1 disliked", "Run 2, v2",
        "6 good and 3 bad ratings of people", "The 4 ratings that made it", "4 of 5 tokens trained", "not used: token",
        "2 of 2 checks passed", "v2 answers, before it v1",
    ):  # fmt: skip
        assert part in parsed.words, part
    # The second try of each run alone is drawn.
    assert parsed.words.count("Tokens accepted") == 2 and "KL to the base" not in parsed.words
    verdicts = await filled.store.stats.verdicts()
    assert [f"{v.good} of {v.good + v.bad}" in parsed.words for v in verdicts] == [True] * 3


async def test_the_report_of_a_running_proxy_is_that_of_its_files(filled: Proxy, tmp_path: Path) -> None:
    beside = await written(filled, tmp_path / "beside.html")
    await filled.stop()
    files = {file: file.read_bytes() for file in filled.home.rglob("*") if file.is_file()}
    alone = await written(filled, tmp_path / "alone.html")
    after = {file: file.read_bytes() for file in files if "rlproxy.db" not in file.name and file.exists()}
    assert after == {file: content for file, content in files.items() if "rlproxy.db" not in file.name}
    moment = re.compile(r"\d+ \w+ \d+ \d\d:\d\d;")
    assert moment.sub("", alone) == moment.sub("", beside)
    await filled.start()


async def test_after_a_crash(filled: Proxy, tmp_path: Path) -> None:
    """What a killed proxy leaves: a log beside the database, and nobody who has the lock."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("rlproxy.db", "rlproxy.db-wal"):
        shutil.copy(filled.home / name, copy / name)
    before = (copy / "rlproxy.db").read_bytes()
    code, _, err = await rlproxy(copy, "report", str(tmp_path / "r.html"))
    assert code == 0, err
    assert "comment" in (tmp_path / "r.html").read_text() and (copy / "rlproxy.db").read_bytes() == before


async def test_without_text_there_is_none(filled: Proxy, tmp_path: Path) -> None:
    text = await written(filled, tmp_path / "r.html", "--no-text")
    assert "rater 1" in nothing_acts(text).words and "4 of 5 tokens trained" in text
    for word in ("boil", "question", "Version 0 says", "comment <", "comment &lt;", "better", "eve "):
        assert word not in text.partition("</style>")[2], word
    assert str(filled.home) not in text


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


async def test_of_another_rlproxy_or_encrypted(tmp_path: Path) -> None:
    key = Secret("0f" * 32)
    store = await Store.open(tmp_path / "sealed", key)
    await store.close()
    async with look(tmp_path / "sealed", key) as sealed:
        assert "No run yet." in await html(sealed, has_text=True)
    with pytest.raises(StoreError, match="key_from"):
        async with look(tmp_path / "sealed"):
            pass
    older_home(tmp_path / "old")
    newer = newer_schema.write(tmp_path / "newer")
    with newer_schema.installed(newer), pytest.raises(StoreError, match="older rlproxy"):
        async with look(tmp_path / "old"):
            pass
