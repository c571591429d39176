"""Text as it comes: no half characters, no stop strings, nothing lost."""

import pytest

from trainer.reply_text import ReplyText


class Bytes:
    """A tokenizer whose tokens are bytes: every character beyond ASCII is split."""

    def decode(self, ids, **_):
        return bytes(ids).decode(errors="replace")


def pieces(text, stop=()):
    reply = ReplyText(Bytes(), stop)
    out = []
    for byte in text.encode():
        out.append(reply.push(byte))
        if reply.stopped_by is not None:
            return reply, out
    out.append(reply.finish())
    return reply, out


@pytest.mark.parametrize("text", ["plain", "naïve 日本語 👍🏽 done", "👩‍👩‍👧", ""])
def test_characters_come_whole_and_all_of_them(text):
    _, out = pieces(text)
    assert "".join(out) == text
    assert not any("\ufffd" in piece for piece in out)


def test_a_character_cut_off_by_the_end_is_shown_as_broken():
    reply = ReplyText(Bytes())
    assert [reply.push(byte) for byte in "é".encode()[:1]] == [""]
    assert reply.finish() == "\ufffd"


def test_a_stop_string_never_shows_nor_its_beginning():
    reply, out = pieces("one\n\nUser: two", stop=["\nUser:"])
    assert "".join(out) == "one\n"
    assert reply.stopped_by == "\nUser:"


def test_what_only_began_like_a_stop_string_comes_out():
    reply, out = pieces("a STO b ST", stop=["STOP"])
    assert "".join(out) == "a STO b ST"
    assert reply.stopped_by is None


def test_overlapping_beginnings_are_held_as_long_as_needed():
    _, out = pieces("aabaabX", stop=["aabaac"])
    assert "".join(out) == "aabaabX"
    reply, out = pieces("aabaabaac!", stop=["aabaac"])
    assert "".join(out) == "aab"
    assert reply.stopped_by == "aabaac"


def test_the_earliest_of_several_stop_strings_ends_it():
    reply, out = pieces("x. y; z", stop=[";", "."])
    assert ("".join(out), reply.stopped_by) == ("x", ".")


def test_a_stop_string_beyond_ascii():
    reply, out = pieces("Ende。Weiter", stop=["。"])
    assert ("".join(out), reply.stopped_by) == ("Ende", "。")
