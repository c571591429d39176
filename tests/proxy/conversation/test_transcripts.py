"""Whose words stand where in a transcript, by the labels that clients write."""

from __future__ import annotations

import pytest

from proxy.conversation.transcripts import Transcript, beginning, has_labels, normalise


def words_of(text: str) -> list[tuple[str, str]]:
    """Who says what in it, up to the end of the line."""
    transcript = Transcript(normalise(text))
    return [(words.speaker, transcript.text[words.start :].split("\n")[0]) for words in transcript.words]


@pytest.mark.parametrize(
    "text",
    [
        "User: hi\nAssistant: hello",
        "user: hi\n\nassistant: hello",
        "[User]: hi\n\n[Bot]: hello",
        "**Human:** hi\n**AI:** hello",
        "[USER]: hi\n\n[ASSISTANT]: hello",
        "# USER\nhi\n# ASSISTANT\nhello",
        "MessageEvent (user)\n  user: hi\nMessageEvent (agent)\n  agent: hello",
        '[User]: <user_input mode="act">hi\n\n[Bot]: hello',
        "User:\t hi\r\nAssistant:\u2028hello",
    ],
)
def test_labels(text: str) -> None:
    assert words_of(text) == [("person", "hi"), ("model", "hello")]


def test_members_of_json() -> None:
    text = '[{"role": "user", "content": "hi"}, {"role":"assistant","content":"hello"}, {"content": "what"}]'
    speakers = [speaker for speaker, _ in words_of(text)]
    assert speakers[:2] == ["person", "model"]
    transcript = Transcript(normalise(text))
    assert transcript.find("hi", "person") is not None
    assert transcript.find("hi", "model") is None
    assert transcript.find("hello", "model") is not None


def test_short_words_are_whole() -> None:
    """`hi` is not how a longer question begins."""
    transcript = Transcript(normalise("User: hi there, what is new?\nAssistant: hello"))
    assert transcript.find("hi", "person") is None
    assert Transcript(normalise("User: hi\nAssistant: hello")).find("hi", "person") is not None
    assert Transcript(normalise("User: hi...\nAssistant: hello")).find("hi", "person") is not None


def test_who_is_answered() -> None:
    transcript = Transcript(normalise("User: one\nAssistant: two\nUser: three\nAssistant:"))
    assert [(transcript.text[words.start :][:5], answered) for words, answered in transcript.persons()] == [
        ("three", False),
        ("one\na", True),
    ]


@pytest.mark.parametrize("line", ["/rl good", "rl:good", "rl:bad too long", "/rl fix: x"])
def test_commands(line: str) -> None:
    transcript = Transcript(normalise(f"User: {line}\nAssistant: rlproxy: rated good.\n"))
    assert [transcript.is_command(words) for words, _ in transcript.persons()] == [True]
    assert len(list(transcript.commands())) == 1
    assert not list(Transcript(normalise(f"User: {line}\nAssistant: I do not know that.")).commands())
    assert not list(Transcript(normalise("User: what?\nAssistant: rlproxy: rated good.")).commands())


def test_what_has_no_labels() -> None:
    for text in ("", "\n" * 100, "Is the user: mine?", "users: many", "x" * 100_000, "usable\nhumane\nagents"):
        assert not has_labels(normalise(text)), text
    assert has_labels(normalise("x\n- Human: hi"))
    assert has_labels(normalise('{"content": "hi"}'))


def test_the_middle_of_a_long_text_is_not_read() -> None:
    text = f"User: {'a' * 30_000}\nUser: hi\n{'b' * 30_000}\nAssistant: hello"
    assert [speaker for speaker, _ in words_of(text)] == ["person", "model"]


def test_how_a_message_begins() -> None:
    assert beginning("\n  Look  at \tthis:\nand that") == "look at this:"
    assert len(beginning("word " * 1000)) <= 120
    assert beginning("\n\n") == ""


@pytest.mark.parametrize(
    "text",
    [
        "Benutzer: hi\nAssistent: hello",
        "Usuario: hi\nAsistente: hello",
        "Utilisateur : hi\nAssistant : hello",
        "用户：hi\n助手：hello",
        "ユーザー: hi\nアシスタント: hello",
        "사용자: hi\n어시스턴트: hello",
        "Пользователь: hi\nАссистент: hello",
    ],
)
def test_labels_in_other_languages(text: str) -> None:
    assert words_of(text) == [("person", "hi"), ("model", "hello")]
