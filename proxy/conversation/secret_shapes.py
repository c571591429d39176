"""Shapes of secrets: those of known providers' keys and tokens, private keys, cards, e-mail addresses.

Owns where in a text they are. A shape needs letters that only its issuer writes (`ghp_`, `AKIA`, …). A name, a UUID, a
hash or `password: str` in source code has none, nor has what is written in place of a key (`sk-xxxxxxxx`). Each is
looked for by those letters first, which costs a fraction of a search by pattern. Secrets of one shape may stand in a
row, with nothing or one joining sign between them. Every search reads each character a bounded number of times,
whatever the text is (tests/attacker/test_linear.py). Not here: what becomes of what is found (`redaction`).
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple


class Span(NamedTuple):
    start: int
    end: int


class Shape(NamedTuple):
    letters: str  # what it begins with
    begins: re.Pattern[str]  # searched for: the letters, where a secret may begin
    pattern: re.Pattern[str]  # matched where the letters are


def _shape(letters: str, pattern: str, *, bounded: bool = True, not_next: str = "") -> Shape:
    """`not_next`: the characters that must not follow, for then it is part of something longer. The next of a row may.
    `bounded`: the letters are short, so nothing that belongs to a word may stand before them. A run of letters, digits,
    `_` and `-` is looked at from its start only."""
    begin = re.escape(letters)
    end = f"(?:(?!{not_next})|(?={not_next}?{begin}))" if not_next else ""
    begins = begin + _no_word_before(begin) if bounded else begin
    return Shape(letters, re.compile(begins, re.ASCII), re.compile(begin + pattern + end, re.ASCII))


def _no_word_before(begin: str) -> str:
    """A look behind these letters: no word goes on there, or its last letter belongs to an escape. Those are `\\n` and
    `\\u003d` in JSON within a text, `%3D` in an address. Chinese and Japanese put no space before a key."""
    escapes = (r"\\[nrt]", r"%[\s\S]{2}", r"\\u[\s\S]{4}", r"\\x[\s\S]{2}")
    return "(?:" + "|".join([rf"(?<![\w-]{begin})", *(f"(?<={escape}{begin})" for escape in escapes)]) + ")"


_MIXED: Final = r"(?=[\w-]*[a-z])(?=[\w-]*[A-Z])(?=[\w-]*\d)"  # lower and upper case and digits: no name has all three
KEYS: Final = (
    _shape("sk-ant-", r"[\w-]{20,}", bounded=False),  # Anthropic
    _shape("sk-or-v1-", r"[0-9a-f]{40,}", bounded=False),  # OpenRouter
    # OpenAI, Langfuse; the plain ones are LiteLLM's, DeepSeek's and OpenAI's old ones.
    _shape("sk-", r"(?:proj|svcacct|admin)-[\w-]{20,}"),
    _shape("sk-lf-", r"[0-9a-f-]{36}"),
    _shape("sk-", rf"(?:(?=[a-zA-Z]*\d)[A-Za-z0-9]{{20,}}|{_MIXED}[\w-]{{20,}})"),
    # One OpenAI key in 5,000 happens to have no digit; its length tells it from a name.
    _shape("sk-", r"(?=[a-z]*[A-Z])(?=[A-Z]*[a-z])[A-Za-z]{48}(?![A-Za-z0-9])"),
    _shape("sk_live_", r"\w{16,}"),  # Stripe
    _shape("sk_test_", r"\w{16,}"),
    _shape("rk_live_", r"\w{16,}"),
    _shape("whsec_", r"[A-Za-z0-9+/=]{24,}"),  # Stripe, Standard Webhooks
    _shape("AKIA", r"[A-Z2-7]{16}", not_next=r"[\w/+=]"),  # AWS
    _shape("ASIA", r"[A-Z2-7]{16}", not_next=r"[\w/+=]"),
    _shape("AIza", r"[\w-]{35}", not_next=r"[\w-]"),  # Google
    _shape("ya29.", r"[\w-]{20,}"),
    _shape("GOCSPX-", r"[\w-]{20,}"),
    *(_shape(f"gh{kind}_", r"[A-Za-z0-9]{36,}") for kind in "pousr"),  # GitHub
    _shape("github_pat_", r"\w{22,}", bounded=False),
    *(_shape(name, r"[\w-]{20,}") for name in ("glpat-", "gldt-", "glrt-", "glcbt-", "glptt-")),  # GitLab
    *(_shape(f"xox{kind}-", r"(?=[\w-]*\d)[\w-]{16,}") for kind in "abeprs"),  # Slack
    _shape("xapp-", r"\d-[\w-]{16,}"),
    _shape("hooks.slack.com/services/", r"T\w+/B\w+/\w{16,}", bounded=False),
    _shape("hf_", r"[A-Za-z0-9]{30,}"),  # Hugging Face
    _shape("gsk_", r"[A-Za-z0-9]{40,}"),  # Groq
    _shape("xai-", r"[A-Za-z0-9]{60,}"),
    _shape("pplx-", r"[A-Za-z0-9]{40,}"),  # Perplexity
    _shape("r8_", r"[A-Za-z0-9]{37}", not_next=r"\w"),  # Replicate
    _shape("nvapi-", r"[\w-]{40,}"),  # NVIDIA
    _shape("tvly-", rf"{_MIXED}[\w-]{{24,}}"),  # Tavily
    _shape("lsv2_", r"(?:pt|sk)_\w{32,}"),  # LangSmith
    _shape("npm_", r"[A-Za-z0-9]{36}", not_next=r"\w"),
    _shape("pypi-AgE", r"[\w-]{50,}"),
    _shape("dckr_pat_", r"[\w-]{20,}"),  # Docker
    _shape("SG.", r"[\w-]{22}\.[\w-]{43}", not_next=r"[\w-]"),  # SendGrid
    _shape("dop_v1_", r"[0-9a-f]{64}"),  # DigitalOcean
    *(_shape(f"shp{kind}_", r"[0-9a-fA-F]{32}", not_next=r"\w") for kind in ("at", "ca", "pa", "ss")),  # Shopify
    _shape("ATATT3", r"[\w=-]{100,}"),  # Atlassian
    _shape("lin_api_", r"[A-Za-z0-9]{32,}"),  # Linear
    _shape("ntn_", r"[A-Za-z0-9]{40,}"),  # Notion
    _shape("dapi", r"[0-9a-f]{32}", not_next=r"\w"),  # Databricks
    _shape("hvs.", r"[\w-]{24,}"),  # Vault
    _shape("glsa_", r"[A-Za-z0-9]{32}_[0-9a-f]{8}"),  # Grafana
    _shape("figd_", r"[\w-]{36,}"),  # Figma
    _shape("sbp_", r"[0-9a-f]{40}", not_next=r"\w"),  # Supabase
    _shape("AGE-SECRET-KEY-1", r"[A-Z0-9]{50,}"),
    _shape("rlp_", r"[0-9a-f]{8}_[\w-]{43}"),  # our own (proxy.access.keys)
)
JWT: Final = (_shape("eyJ", r"[\w-]{10,}\.[\w-]*\.[\w-]{16,}(?:\.[\w-]*){0,2}(?:\.[\w-]{16,})*"),)
# Told by what stands before: the first group is the secret.
NAMED_SHAPES: Final = (
    _shape("AccountKey=", r"([A-Za-z0-9+/]{86}==)", bounded=False),  # Azure
    *(
        _shape(
            name,
            r"""(?:\\{0,7}["'])?\s{0,30}[=:]\s{0,30}(?:\\{0,7}["'])?([A-Za-z0-9/+]{40})""",
            bounded=False,
            not_next="[A-Za-z0-9/+=]",
        )
        for name in ("aws_secret_access_key", "AWS_SECRET_ACCESS_KEY", "SecretAccessKey", "secretAccessKey")
    ),
)
# Telegram: after the bot's number.
BOT: Final = re.compile(r":(AA[\w-]{33})(?:(?![\w-])|(?=[_-]?\d{6,12}:AA))", re.ASCII)
# Those that base64 could spell: all their letters are letters of it.
IN_BASE64: Final = tuple(shape for shape in KEYS if shape.letters.isalnum())
_ROOM: Final = b"0" * 16  # letters in a row: every key is within such a run
_LETTERS: Final = bytes(ord("0") if re.match(r"[\w+/=.-]", chr(i), re.ASCII) else ord(" ") for i in range(256))
STEP: Final = 1 << 18  # characters
OVERLAP: Final = 64
DISTINCT: Final = 8  # letters: what has fewer is written in place of a key

_BEGIN: Final = "-----BEGIN "
_END: Final = "-----END "
_KEY_BEGINS: Final = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
KEY_LINE: Final = 32  # characters of its body in a line
_KEY_LINE: Final = re.compile(rf"[A-Za-z0-9+/=]{{{KEY_LINE}}}")
_KEY_BODY: Final = re.compile(r"(?:[\s\"'+,]|\\[nr]|[A-Za-z0-9+/=]{16,}|[\w-]{4,20}: [^\n\\]{1,100})*")
KEY_LENGTH: Final = 20_000  # characters in which a private key ends
END_LENGTH: Final = 100  # characters in which the line ends that ends it
LONGEST: Final = KEY_LENGTH + END_LENGTH  # characters of a secret: what is cut is searched first, or so far beyond

_DIGIT: Final = re.compile("[0-9]")
_DIGITS: Final = bytes(ord("0") if chr(i).isdigit() and i < 128 else ord(" ") for i in range(256))
# In what `_DIGITS` makes of it: every run of digits in which a number of a card begins, in one piece or in groups. What
# is between groups has up to three bytes, or is `%20`, whose digits stand before those of the next group. Digits of an
# escape may stand before the first. Dates and most ids do not begin so.
_FOUR_DIGITS: Final = b"0000"
_MAYBE_CARD: Final = re.compile(rb"0000(?<!00000)(?=0{10}|(?:00){0,2} {1,3}(?:00)?0000(?:00)? {1,3}(?:00)?0000)")
_CARD_BEGINS: Final = 40  # bytes, at most, that `_MAYBE_CARD` looks at
# One sign, the same each time: also spaces that do not break a line, as pages and word processors write them, hyphens
# likewise, and a space as addresses write it.
_BETWEEN: Final = "[ +\\-\u00a0\u2007\u2009\u200b\u202f\u2010-\u2013]|%20"
# Visa, Mastercard, American Express, Diners, Discover, JCB, UnionPay; and the longer ones of the last.
_ISSUED: Final = (
    r"4\d{15}|(?:5[1-5]|2[2-7])\d{14}|3[47]\d{13}|3(?:0[0-5]|[68]\d)\d{11}"
    r"|6(?:011|5\d\d|4[4-9]\d)\d{12}|35\d{14}|62\d{14}"
)
_LONG: Final = r"62\d{17}(?!\d)"
_CARD: Final = re.compile(
    rf"{_LONG}|{_ISSUED}|(?=[2-6])(?:"
    rf"\d{{4}}({_BETWEEN})\d{{4}}\1\d{{4}}\1\d{{4}}(?:\1\d{{3}})?(?!\d)|\d{{4}}({_BETWEEN})\d{{6}}\2\d{{4,5}}(?!\d))",
    re.ASCII,
)
_OF_CARD: Final = re.compile(f"{_LONG}|{_ISSUED}", re.ASCII)
_ESCAPES: Final = (("\\u", 4), ("\\x", 2))  # of a character, and how many digits it has
_ENDS_ESCAPE: Final = re.compile(r"[\s\S]{0,4}\\[nrt]|[\s\S]{0,3}%[\s\S]{2}|\\u[\s\S]{4}|[\s\S]{0,2}\\x[\s\S]{2}")
_DOUBLED: Final = bytes.maketrans(b"0123456789", b"0246813579")  # and the digits of that added up
_JOINING: Final = ("-", "_", "+", ".")  # between two numbers of a row; else they would make one of something longer

_LOCAL: Final = string.ascii_letters + string.digits + "_.%+-"
_DOMAIN: Final = re.compile(r"@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})\.){1,8}[A-Za-z]{2,24}(?![\w-])", re.ASCII)
_NO_PERSON: Final = ("git", "hg", "svn")  # git@host is where a repository is


def room_in(letters: bytes) -> bool:
    """Tell if there is room in it for any secret but an e-mail address: a run of letters, or digits as a card has them.
    The bytes are in any code of which ASCII is a part."""
    if len(letters) > STEP:
        return True
    if _ROOM in letters.translate(_LETTERS):
        return True
    digits = letters.translate(_DIGITS)
    return _FOUR_DIGITS in digits and _MAYBE_CARD.search(digits) is not None


def keys(text: str) -> Iterator[Span]:
    dense = _dense(text)
    yield from _keys(text, [shape for shape in KEYS if shape.letters in dense] if dense else ())
    for shape in [shape for shape in NAMED_SHAPES if shape.letters in text]:
        yield from (Span(*match.span(1)) for match in _matches(text, shape))
    for token in BOT.finditer(text) if ":AA" in text else ():
        if text[max(0, token.start() - 6) : token.start()].isdecimal():
            yield Span(*token.span(1))


def keys_in_base64(text: str) -> Iterator[Span]:
    """The same of a text that has no letters but those of base64."""
    return _keys(text, IN_BASE64)


def _keys(text: str, shapes: Iterable[Shape]) -> Iterator[Span]:
    for shape in shapes:
        for match in _matches(text, shape):
            if len(set(match[0][len(shape.letters) :])) >= DISTINCT:
                yield Span(*match.span())


def jwts(text: str) -> Iterator[Span]:
    for shape in JWT:
        yield from (Span(*match.span()) for match in _matches(text, shape))


def private_keys(text: str) -> Iterator[Span]:
    """From BEGIN to END with what is between, or to where the text was cut. BEGIN alone, as in source code, is none."""
    position, end = text.find(_BEGIN), 0
    while position >= 0:
        resume = position + len(_BEGIN)
        if (begin := _KEY_BEGINS.match(text, position)) is not None:
            start = begin.end()
            if 0 <= end < start:  # else it is known already, or there is none from here on
                end = text.find(_END, start)
            stop, last = _end_of_key(text, start, end)
            if _KEY_LINE.search(text, start, stop):
                yield Span(position, last)
                resume = last
            else:  # a line of a key may be cut where we stopped to look
                resume = max(start, stop - KEY_LINE)
        position = text.find(_BEGIN, resume)


def _end_of_key(text: str, start: int, end: int) -> tuple[int, int]:
    """Where the body of a key ends, and its last line. `end`: the next END, if there is one."""
    if start <= end <= start + KEY_LENGTH - len(_END):
        last = text.find("-----", end + len(_END), end + END_LENGTH)
        if last >= 0:
            return end, last + 5
    body = _KEY_BODY.match(text, start, start + KEY_LENGTH)
    stop = body.end() if body is not None else start
    return stop, stop


def cards(text: str) -> Iterator[Span]:
    if _DIGIT.search(text) is None:
        return
    digits = text.encode("ascii", "replace").translate(_DIGITS)  # a byte a character, so places are the same
    scanned_end = 0
    for position in _runs_of_card(digits):
        start = position if position < scanned_end else _start_of_card(text, position)
        if position < scanned_end or start is None:
            continue
        row = _row_of_cards(text, start)
        # One alone may be the beginning of something longer; two numbers in a row that both hold are cards.
        if len(row) > 1 or (row and not _goes_on(text, row[0].end)):
            yield from row
            scanned_end = row[-1].end


def _runs_of_card(digits: bytes) -> Iterator[int]:
    """Where runs of digits begin in which a number of a card may begin. In steps, since a search holds up all other
    threads."""
    position = digits.find(_FOUR_DIGITS)
    while position >= 0:
        end = position + STEP
        for run in _MAYBE_CARD.finditer(digits, position, end + _CARD_BEGINS):
            if run.start() < end:
                yield run.start()
        position = digits.find(_FOUR_DIGITS, end)


def _row_of_cards(text: str, position: int) -> list[Span]:
    """Numbers of cards from here on, each right behind the one before, or behind one joining sign."""
    row: list[Span] = []
    while (end := _end_of_card(text, position)) is not None:
        row.append(Span(position, end))
        position = end + (text[end : end + 1] in _JOINING)
    return row


def _end_of_card(text: str, position: int) -> int | None:
    card = _CARD.match(text, position)
    if card is None:
        return None
    number, between = card[0], card[1] or card[2]
    if between is not None:
        number = number.replace(between, "")
        if _OF_CARD.fullmatch(number) is None:
            return None
    return card.end() if luhn(number) else None


def emails(text: str) -> Iterator[Span]:
    for domain in _DOMAIN.finditer(text):
        position = domain.start()
        leading = text[max(0, position - 64) : position]
        local = leading[len(leading.rstrip(_LOCAL)) :]
        if local and local not in _NO_PERSON:
            yield Span(position - len(local), domain.end())


def luhn(number: str) -> bool:
    digits = number.encode("ascii")
    return (sum(digits[::-2]) + sum(digits[-2::-2].translate(_DOUBLED)) - len(digits) * ord("0")) % 10 == 0


SpanFinder = Callable[[str], Iterator[Span]]
FINDERS: Final[dict[str, SpanFinder]] = {
    "private_key": private_keys, "jwt": jwts, "api_key": keys, "card": cards, "email": emails,
}  # fmt: skip
MARKS: Final[dict[str, str]] = {"private_key": _BEGIN, "jwt": "eyJ", "email": "@"}  # in every text that has one
# What may be in a text of base64's letters alone: no picture has them by chance, and a list of secrets is such a text.
BASE64_FINDERS: Final[dict[str, SpanFinder]] = {"api_key": keys_in_base64, "card": cards}


def _dense(text: str) -> str:
    """The parts of a text that have room for a key: little of most, to be searched fifty times. In steps, since this
    holds up all other threads; they overlap by more than what a key begins with."""
    return "\n".join(run for start in range(0, len(text), STEP) for run in _runs(text[start : start + STEP + OVERLAP]))


def _runs(text: str) -> Iterator[str]:
    marks = text.encode("ascii", "replace").translate(_LETTERS)  # a byte a character, so places are the same
    position = marks.find(_ROOM)
    while position >= 0:
        end = marks.find(b" ", position)
        end = len(marks) if end < 0 else end
        yield text[position:end]
        position = marks.find(_ROOM, end)


def _matches(text: str, shape: Shape) -> Iterator[re.Match[str]]:
    """Each begins behind the one before, or in its last letters where it had taken those of the next for its own."""
    position = _next(text, shape, 0)
    while position >= 0:
        match, resume = shape.pattern.match(text, position), position + 1
        while match is not None:
            yield match
            resume = match.end() + 1
            match = _in_row(text, shape, match.end())
        position = _next(text, shape, resume)


def _next(text: str, shape: Shape, start: int) -> int:
    """Where the letters of a shape stand next, so that a secret may begin; -1 for nowhere. In steps, since a search
    holds up all other threads."""
    while (start := text.find(shape.letters, start)) >= 0:
        end = start + STEP
        if (begin := shape.begins.search(text, start, end)) is not None:
            return begin.start()
        start = end - len(shape.letters) + 1
    return -1


def _in_row(text: str, shape: Shape, end: int) -> re.Match[str] | None:
    """The secret right behind one that ends here."""
    size = len(shape.letters)
    start = text.find(shape.letters, end - size + 1, end + 1 + size)
    while start >= 0:
        if (match := shape.pattern.match(text, start)) is not None:
            return match
        start = text.find(shape.letters, start + 1, end + 1 + size)
    return None


def _of_ascii(character: str) -> bool:
    """A letter or digit that a number may go on with."""
    return character.isascii() and character.isalnum()


def _start_of_card(text: str, position: int) -> int | None:
    """Where the number begins in a run of digits; None where the run is part of something longer. The first digits may
    belong to an escape (`%22`, `\\u0022`), and so may the letter before them (`\\n`, `%3D`)."""
    sign = text[position - 1] if position else " "
    if sign == "%":
        return position + 2
    if sign in "_.+-":
        return None
    if not _of_ascii(sign):
        return position
    for mark, length in _ESCAPES:
        if text.startswith(mark, max(0, position - 2), position):
            return position + length
    return position if _ENDS_ESCAPE.fullmatch(text, max(0, position - 6), position) else None


def _goes_on(text: str, end: int) -> bool:
    """The number is part of something longer: a UUID, a hash, a fraction."""
    next_signs = text[end : end + 2]
    return bool(next_signs) and (
        _of_ascii(next_signs[0]) or next_signs[0] in "_-+" or (next_signs[0] == "." and next_signs[1:].isdigit())
    )
