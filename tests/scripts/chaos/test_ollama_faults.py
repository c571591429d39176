"""How the fault matrix of Ollama judges an answer; the faults themselves need a real server."""

from __future__ import annotations

from scripts.chaos.ollama_faults import Observations


def test_an_answer_before_its_version_was_learned_is_judged_by_what_is_learned() -> None:
    """A promoted version answers clients while the script still asks it for its texts."""
    observations, texts = Observations(), {"base": {"one"}, "v2": {"two"}}
    observations.met("base", "one", texts)
    observations.met("v3", "three", texts)
    texts["v3"] = {"three"}
    observations.judge(texts)
    assert (observations.answers, dict(observations.by_version), observations.wrong) == (2, {"base": 1, "v3": 1}, [])


def test_an_answer_of_another_version_is_wrong() -> None:
    observations, texts = Observations(), {"base": {"one"}, "v2": {"two"}}
    observations.met("v2", "one", texts)
    observations.met("v2", "nobody's", texts)
    observations.judge(texts)
    assert observations.wrong == ["v2 said 'one', as base do", 'v2 said "nobody\'s"']


def test_an_answer_that_was_right_then_stays_right() -> None:
    """After the update that takes all versions away no text is theirs any more."""
    observations, texts = Observations(), {"v2": {"two"}}
    observations.met("v2", "two", texts)
    texts["v2"] = set()
    observations.judge(texts)
    assert observations.wrong == []
