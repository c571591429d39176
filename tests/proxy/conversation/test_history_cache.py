from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from config.sections import Redaction
from proxy.conversation.conversations import canonical, thread_and_above, without_commands
from proxy.conversation.history_cache import LEAST, ChatMessage, History, HistoryFold, HistoryLookup
from proxy.conversation.modalities import first_non_text
from proxy.conversation.redaction import Redactor
from proxy.conversation.turns import turn_of
from proxy.core import bounded_cache as module
from proxy.core.agent_wrappers import AGENTS, Agent
from scripts.harness.agent_formats import CONTEXT, INFO, slash, texts
from store.captured import tree

SECRET = "sk-proj-" + "Ab3dEf6hIj9lMn2pQr5t" * 2  # gitleaks:allow
SAID = (
    "hello", "/rl good", "<system-reminder>be kind</system-reminder>", f"my key is {SECRET}", "",
    [{"type": "text", "text": "seen"}], [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
    [{"type": "text", "text": "one", "at": 1}], [{"type": "text", "text": "one", "at": True}],
    texts(*slash("/rl good")), '"/rl bad"', INFO + "/rl good", texts(CONTEXT),
)  # fmt: skip


def messages(most: int = 12) -> st.SearchStrategy[list[ChatMessage]]:
    role = st.sampled_from(("system", "developer", "user", "assistant", "tool"))
    return st.lists(st.builds(lambda r, c: {"role": r, "content": c}, role, st.sampled_from(SAID)), max_size=most)


AGENT = st.sampled_from((None, *AGENTS))


@given(messages(), st.lists(st.tuples(st.integers(0, 12), messages(4), AGENT), max_size=5))
@settings(deadline=None)
def test_what_is_remembered_is_what_would_be_worked_out(
    first: list[ChatMessage], turns: list[tuple[int, list[ChatMessage], Agent | None]]
) -> None:
    """Turns that go on, go back and change what was said, also in requests of different agents: all facts are as those
    of a memory that knows nothing."""
    redactor = Redactor(Redaction())
    known = History(redactor)
    talk = first
    for back, more, agent in [(len(first), [], None), *turns]:
        talk = [*talk[:back], *more]
        kept = [talk[at] for at in without_commands(talk, agent)]
        told = HistoryLookup(known, kept, 100).read()
        assert told.asides == tuple(at for at, m in enumerate(kept) if m["role"] in tree.SYSTEM_ROLES)
        secrets: set[str] = set()
        assert told.prompt == tuple(redactor.message(canonical(m), secrets) for m in kept)
        assert told.secrets == secrets
        assert (told.thread, told.reply_thread) == thread_and_above(kept, redactor.message)
        chain = iter(tree.chain(m for m in told.prompt if m.role not in tree.SYSTEM_ROLES))
        assert told.nodes == tuple(
            tree.message_hash(None, m.role, m.body) if m.role in tree.SYSTEM_ROLES else next(chain) for m in told.prompt
        )
        assert (told.untrainable is None) == (first_non_text(kept) is None)
        assert turn_of({}, {}, kept, None, (), told.turns) == turn_of({}, {}, kept, None)


def counted() -> tuple[HistoryFold[int], list[ChatMessage]]:
    seen: list[ChatMessage] = []

    def step(above: int | None, message: ChatMessage) -> int:
        seen.append(message)
        return (above or 0) + 1

    return HistoryFold(step), seen


def say(*texts: Any) -> list[ChatMessage]:
    return [{"role": role, "content": text} for role, text in zip(itertools.cycle(("user", "assistant")), texts)]


def over(fold: HistoryFold[int], talk: list[ChatMessage], size: int = LEAST) -> list[int]:
    return fold.extend(fold.recall(talk), talk, size)


def test_a_turn_costs_its_new_messages_only() -> None:
    fold, seen = counted()
    assert over(fold, say("a", "b", "c")) == [1, 2, 3]
    seen.clear()
    assert over(fold, say("a", "b", "c", "d", "e")) == [1, 2, 3, 4, 5]
    assert seen == say("a", "b", "c", "d", "e")[3:]
    seen.clear()
    assert over(fold, say("a", "b", "x")) == [1, 2, 3] and len(seen) == 1  # said again in other words


def test_equal_is_not_the_same() -> None:
    fold, seen = counted()
    for number in (1, 1.0, True):
        over(fold, [{"role": "tool", "content": [{"type": "text", "n": number}]}])
    assert len(seen) == 3


def test_conversations_do_not_push_each_other_out_before_there_are_many() -> None:
    fold, seen = counted()
    talks = [say(f"talk {i}", "yes") for i in range(module.MOST)]
    for talk in talks:
        over(fold, talk)
    seen.clear()
    for talk in talks:
        over(fold, [*talk, *say("more")])
    assert len(seen) == len(talks)
    over(fold, say("one too many"))
    seen.clear()
    over(fold, [*talks[0], *say("more")])
    assert len(seen) == 3


def test_memory_is_bounded_in_bytes_and_in_time(monkeypatch: Any) -> None:
    fold, seen = counted()
    over(fold, say("huge"), module.BYTES)
    over(fold, say("a"), module.BYTES // 4)
    for i in range(4):
        over(fold, say(f"large {i}"), module.BYTES // 4)
    seen.clear()
    over(fold, say("huge", "b"), LEAST)
    over(fold, say("a", "b"), LEAST)
    assert len(seen) == 4
    now = module.time.monotonic()
    over(fold, say("then"))
    monkeypatch.setattr(module.time, "monotonic", lambda: now + 2 * module.KEPT_S)
    over(fold, say("now"))
    seen.clear()
    over(fold, say("then"))
    assert len(seen) == 1


def test_a_message_is_measured_by_what_is_in_it() -> None:
    known = History(Redactor(Redaction()))
    talk = say("12345", [{"type": "text", "text": "1234567890"}])
    assert 15 <= HistoryLookup(known, talk, LEAST).fresh < 60
    HistoryLookup(known, talk, LEAST).read()
    assert HistoryLookup(known, [*talk, *say("abc")], LEAST).fresh < 10
    known.clear()
    assert HistoryLookup(known, talk, LEAST).fresh >= 15
