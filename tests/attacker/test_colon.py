"""A person of a bot that names no platform, with the id of somebody on another one."""

from __future__ import annotations

import pytest

from proxy.feedback.webhooks.base import PlatformEvent


@pytest.mark.parametrize("person", ["mattermost:p1", "slack:U1", ":p1"])
def test_a_bare_id_is_nobody_of_another_platform(person: str) -> None:
    assert named(person).names == (f"signed:{person}",)


@pytest.mark.parametrize("person", ["@ann:home", "ann"])
def test_the_ids_of_matrix_are_as_before(person: str) -> None:
    assert named(person).names == (person, f"signed:{person}")


def test_openclaw_names_the_platform_itself() -> None:
    assert PlatformEvent("openclaw", "e", "telegram:42", "c", None, "command", "good", 0.0).names[0] == "telegram:42"


def named(person: str) -> PlatformEvent:
    return PlatformEvent("signed", "e", person, "c", None, "command", "good", 0.0)
