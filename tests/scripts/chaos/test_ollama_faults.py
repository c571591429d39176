"""How the fault matrix of Ollama judges an answer; the faults themselves need a real server."""

from __future__ import annotations

from scripts.chaos.ollama_faults import Seen


def test_an_answer_before_its_version_was_learned_is_judged_by_what_is_learned() -> None:
    """A promoted version answers clients while the script still asks it for its texts."""
    seen, texts = Seen(), {"base": {"one"}, "v2": {"two"}}
    seen.met("base", "one", texts)
    seen.met("v3", "three", texts)
    texts["v3"] = {"three"}
    seen.judge(texts)
    assert (seen.answers, dict(seen.by), seen.wrong) == (2, {"base": 1, "v3": 1}, [])


def test_an_answer_of_another_version_is_wrong() -> None:
    seen, texts = Seen(), {"base": {"one"}, "v2": {"two"}}
    seen.met("v2", "one", texts)
    seen.met("v2", "nobody's", texts)
    seen.judge(texts)
    assert seen.wrong == ["v2 said 'one', as base do", 'v2 said "nobody\'s"']


def test_an_answer_that_was_right_then_stays_right() -> None:
    """After the update that takes all versions away no text is theirs any more."""
    seen, texts = Seen(), {"v2": {"two"}}
    seen.met("v2", "two", texts)
    texts["v2"] = set()
    seen.judge(texts)
    assert seen.wrong == []
