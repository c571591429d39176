"""Text as it comes: no half characters, no stop strings, nothing lost."""

import pytest

from trainer.serve.reply_text import ReplyText


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


@pytest.mark.parametrize("text", [b"\xff" * 100, b"\xff" * 9 + "€👍".encode(), "\ufffd".encode() * 50 + b"end"])
def test_what_is_broken_for_good_comes_out_and_is_not_decoded_again_and_again(text):
    class Counting(Bytes):
        read = 0

        def decode(self, ids, **_):
            Counting.read += len(ids)
            return super().decode(ids)

    reply = ReplyText(Counting())
    out = [reply.push(byte) for byte in text]
    assert Counting.read < 40 * len(text)
    assert len("".join(out)) > len(text.decode(errors="replace")) - 8
    assert "".join([*out, reply.finish()]) == text.decode(errors="replace")


def test_tokens_that_say_nothing_are_not_decoded_again_and_again():
    class Special(Bytes):
        longest = 0

        def decode(self, ids, **_):
            Special.longest = max(Special.longest, len(ids))
            return super().decode([one for one in ids if one < 128])

    reply = ReplyText(Special())
    out = [reply.push(one) for one in (65, *[200] * 1000, 66)]
    assert "".join([*out, reply.finish()]) == "AB" and Special.longest < 20
