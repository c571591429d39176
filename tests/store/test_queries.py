"""No query walks a table that grows: each finds its rows by an index."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

from scripts.harness.records import HELLO, HI, adapter, claim, end, new, put, rated, rating
from store.captured.stats import COUNTS
from store.captured.tree import chain
from store.copies.export import Filter
from store.file import schema
from store.learning.labels import TrustedJudge
from store.learning.retraining import new_retrain
from store.learning.samples import SampleRequirements
from store.records import CompletionQuery, Link, NewReaction, Requester, ReturnedConversation
from store.store import Store
from tests.store.engines import in_file

# Tables and their aliases in the queries; "m" is messages, "u" runs, "s" run_samples.
GROWING = re.compile(
    r"SCAN (completions|messages|ratings|links|reactions|webhook_events|run_samples|blobs|message_blobs|listed"
    r"|b|c|l|m|r|s|child)\b"
)


async def call_everything(store: Store) -> None:
    await put(store, "a", "b", session="s", user="u")
    await put(store, "next", session="s", above=b"unknown")
    await store.judged_pairs.waiting()
    await store.judged_pairs.keep([("a", "b")], "m", "c", 1)
    await store.judged_pairs.decided("m", "c", 9)
    await store.signals.apply([TrustedJudge("m", "c", {"bad": 0.5, "good": 0.5}, pairs=True)])
    await store.signals.unseen_by_people("m", "c")
    await store.signals.apply([])
    store.completions.begin([new("open")])
    await store.completions.finish([end("open")])
    one = await store.ratings.rate(rating("a", source_event_id="e"))
    await store.ratings.newest_times(9)
    await store.versions.answer_pairs(1, 3)
    await store.lines.all()
    await store.rollouts.next_prompt(0, 2, ["x"])
    await store.rollouts.of_prompt(b"x", 0)
    await store.rollouts.spent("2026-11-29")
    await store.rollouts.counts()
    await store.rollouts.last_asked()
    await store.lines.pointers()
    await store.lines.counts()
    await store.lines.with_samples(foreign=False)
    await store.lines.last_runs()
    await store.runs.last_of("common")
    await store.completions.page(line="ann")
    await store.ratings.rate(rating("a", -1.0))
    await store.ratings.retract(one.id)
    await store.reactions.link(Link("slack", "c", "1", "a"))
    await store.reactions.linked("slack", "c", "1")
    await store.reactions.newest_linked("slack", "c", "U1")
    await store.reactions.newest_in("s")
    await store.reactions.newest_answers([], 50)
    await store.reactions.requester_of("a")
    await store.reactions.newest_answers(["s", "t"], 50)
    for at, value in enumerate((1.0, -1.0, None)):
        await store.reactions.react(
            NewReaction("b", "me", "slack", f"E{at}", "c 1", "" if at == 2 else "x", value, float(at))
        )
    await store.reactions.of_message("slack", "c 1")
    await store.reactions.first_time("slack", "E9")
    await store.ratings.get(one.id)
    await store.ratings.live("a", "me")
    await store.ratings.last("me", session="s")
    await store.ratings.last("me")
    await store.ratings.history("a")
    await store.completions.get("a")
    await store.images.waiting()
    await store.images.of_last_messages(["a"])
    await store.images.by_sha256([b"x"])
    await store.images.is_waiting(b"x")
    await store.images.thumbnail(b"x")
    for query in ({}, {"session": "s"}, {"version": 0}, {"turn": "main"}, {"unrated": True}, {"before_seq": 9}):
        await store.completions.page(**query)  # type: ignore[misc]
        await store.completions.page_size(**query)  # type: ignore[misc]
    reply = chain((HELLO, HI))[-1]
    await store.completions.messages(reply)
    requester = Requester(None, "u")
    await store.completions.find_reply(
        ReturnedConversation(reply, reply, (b"system",), "m", "s"), [requester, Requester("owner", None)]
    )
    await store.answers.newest_of([requester, Requester("owner", None)])
    await store.answers.newest_of([requester], session="s")
    for who in ({}, {"session": "s"}, {"user": "u"}, {"session": "s", "user": "u"}):
        await store.answers.newest(**who)
    await store.answers.get("a")
    await store.answers.main_turn("a")
    await store.answers.answers_to([requester], limit=9, longest=100)
    await store.answers.answers_to([requester], limit=9, longest=100, session="s")
    await store.answers.askers_in("s")
    await store.ratings.of_events("open-webui", "f:", rater="me", live=True)
    await store.answers.main_turns_of([requester], limit=9)
    await store.completions.many(["a"])
    await store.items.places(["msg_1"])
    await store.items.replies(["a"])
    await store.items.answers(["a"], 9, ["k"])
    await store.sizes.whole(["a"], ["k"])
    await store.answers.goes_on_from(reply, [requester], 100)
    await store.completions.pass_over(["b"], "retried")
    await store.completions.exact_unrated(version=0, limit=3)
    await store.completions.newest_turns(3, foreign=False)
    await rated(store, 9)
    await store.samples.fresh(live=0, max_version_gap=8)
    run, _ = await claim(store)
    await store.runs.publish(run.id, adapter(1, run.id), {}, 0.0)
    await store.samples.recent_held("m", 5)
    await store.flags.begin()
    await store.flags.check_again(0.0)
    await store.flags.unchecked(5)
    await store.flags.keep(1, "a", "a slur", "hash")
    await store.flags.forget_other_code("hash")
    await store.flags.ids()
    await store.flags.reasons(["a"])
    await store.samples.untrainable()
    await store.stats.same_prompts()
    await store.stats.ratings_before(1.0)
    history = await store.retraining.history(["c1"])
    retrain = new_retrain("n", "/n", 10, history, ["c1"], 2)
    await store.retraining.begin(retrain, "admin")
    await store.retraining.claim(
        SampleRequirements(
            model="n", live=0, max_version_gap=8, limit=2, held_share=0.1, folder_of=str, version=10, min_total=1,
            retrains=True,
        )
    )  # fmt: skip
    await store.retraining.rounds(retrain)
    await store.retraining.untried(retrain)
    await store.runs.end(2, "failed", "x", None)
    await store.retraining.end("over", "admin")
    await store.opinions.votes(0)
    await store.opinions.moments()
    await store.versions.withdraw(1, "worse", "rlproxy")
    await store.runs.give_back(run.id, "worse")
    await store.versions.point(1, "promoted by hand", "me")
    await store.runs.unfinished()
    await store.stats.counts()
    [row async for row in store.transfer.export()]
    [row async for row in store.transfer.export(Filter(rated=True))]
    for wanted in (
        {},
        {"search": "hello wor"},
        {"session": "s"},
        {"unrated": True, "version": 0, "model": "m", "turn": "main"},
        {"newest_of_each": True, "unrated": True, "turn": "main"},
        {"conversation": 1},
    ):
        await store.inbox.page(CompletionQuery(**wanted))  # type: ignore[arg-type]
    found = await store.inbox.get("a")
    assert found is not None and found.prompt_hash is not None
    await store.inbox.siblings(found.prompt_hash)
    await store.inbox.models()
    await store.inbox.any()
    await store.stats.days(0.0, 0.0)
    await store.stats.verdicts()
    for kind in ("completion", "session", "user", "rater"):
        await store.erasure.look(kind, "x")  # type: ignore[arg-type]
    await store.erasure.forget("completion", "c8", "test")
    await store.completions.forget_unrated(["a", "b"])
    await store.samples.untrainable()
    await store.completions.expiring(2000.0)
    await store.completions.expire(2000.0)
    await store.completions.forget(["a"])


@in_file
async def test_no_query_scans_a_table_that_grows(store: Store, tmp_path: Path) -> None:
    seen: set[str] = set()
    await store._writer.submit(lambda db: db.set_trace_callback(seen.add))
    await store._reader._db.set_trace_callback(seen.add)
    await call_everything(store)

    queries = {sql for sql in seen if re.match(r"\s*(SELECT|UPDATE|DELETE|WITH|INSERT)", sql)}
    assert len(queries) > 50
    with closing(sqlite3.connect(tmp_path / schema.NAME)) as db:
        for sql in queries:
            plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}")]
            if "reactions WHERE rater" in sql:  # whose a person asks to forget: that is rare, and no index is worth it
                continue
            assert not [step for step in plan if GROWING.search(step)], f"{sql}\n" + "\n".join(plan)


@in_file
async def test_narrow_queries_use_their_narrow_index(store: Store, tmp_path: Path) -> None:
    seen: list[str] = []
    await store._reader._db.set_trace_callback(seen.append)
    await store.answers.newest(session="s")
    await store.answers.newest(user="u")
    await store.answers.newest_of([Requester("owner", None)])
    await store.answers.newest_of([Requester("owner", "u")], session="s")
    await store.completions.exact_unrated(version=0, limit=3)
    await store.completions.page(session="s")
    names = ("session", "user", "key (key=? AND user=?", "session", "version", "session")
    wanted = iter([f"completions_{name}" for name in names])
    with closing(sqlite3.connect(tmp_path / schema.NAME)) as db:
        for sql in seen:
            if "ORDER BY c.seq DESC" in sql:
                plan = " ".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}"))
                assert next(wanted) in plan
                assert "TEMP B-TREE" not in plan
    assert next(wanted, None) is None


def test_the_count_of_today_reads_nothing_of_before(tmp_path: Path) -> None:
    with closing(schema.open_database(tmp_path / "x.db")) as db:
        plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {COUNTS}", {"midnight": 0.0})]
    assert plan[-3] == "SEARCH c USING INDEX completions_created (created_at>?)"
    assert plan[-1] == "SEARCH c USING INDEX completions_key (key=?)"  # rollouts, which are of a week


@in_file
async def test_a_list_reads_neither_prompts_nor_tokens(store: Store) -> None:
    await put(store, "a")
    seen: list[str] = []
    await store._reader._db.set_trace_callback(seen.append)
    (listed,) = await store.completions.page()
    assert listed.new.prompt == () and listed.end is not None and listed.end.token_ids is None
    assert not [sql for sql in seen if "messages" in sql or "c.*" in sql or "c.token_ids" in sql]
    one = await store.completions.get("a")
    assert one is not None and one.end is not None and one.new.prompt and one.end.token_ids
    assert listed.end.text == one.end.text and listed.end.exact == one.end.exact


def test_deleting_a_row_finds_what_refers_to_it_by_an_index(tmp_path: Path) -> None:
    # EXPLAIN does not show what foreign keys look up.
    with closing(schema.open_database(tmp_path / "x.db")) as db:
        tables = [row[0] for row in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        checked = 0
        for table in tables:
            indexes = [row["name"] for row in db.execute(f"PRAGMA index_list({table})") if not row["partial"]]
            leading = {db.execute(f"PRAGMA index_info({index})").fetchone()["name"] for index in indexes}
            leading |= {row["name"] for row in db.execute(f"PRAGMA table_info({table})") if row["pk"] == 1}
            for key in db.execute(f"PRAGMA foreign_key_list({table})"):
                if key["table"] in ("messages", "completions", "ratings", "blobs"):
                    assert key["from"] in leading, f"{table}.{key['from']}"
                    checked += 1
        assert checked == 25


@in_file
async def test_ratings_of_a_completion_are_found_by_it_and_not_among_all_that_live(
    store: Store, tmp_path: Path
) -> None:
    seen: set[str] = set()
    await store._writer.submit(lambda db: db.set_trace_callback(seen.add))
    await store._reader._db.set_trace_callback(seen.add)
    await call_everything(store)
    of_one = re.compile(r"\br\.completion_id (IN|=) ")
    queries = {sql for sql in seen if of_one.search(sql) and "ratings r" in sql and not sql.startswith("--")}
    assert len(queries) > 10
    with closing(sqlite3.connect(tmp_path / schema.NAME)) as db:
        scripts = [row[0] for row in db.execute("SELECT sql FROM sqlite_schema WHERE type = 'trigger'")]
        for sql in queries:
            steps = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}")]
            assert "SEARCH r USING INDEX ratings_live (live=?)" not in steps, sql
    assert all("+r.live = 1" in sql for sql in scripts if "FROM ratings r WHERE r.completion_id" in sql)
