"""No secret is stored, what is sent stays as it is, and what has no secret is stored to the byte."""

from __future__ import annotations

import io
import itertools
import json
import random
import re
import sqlite3
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from config.errors import SettingsError
from config.sections import Redaction
from config.settings import load
from proxy.conversation.capture_health import Health
from proxy.conversation.conversations import canonical, thread
from proxy.conversation.redaction import SLICED, Redactor
from proxy.conversation.secret_shapes import STEP, luhn
from proxy.conversation.underway import AnswersInProgress
from proxy.conversation.user_text import EXCERPT_LENGTH
from proxy.core.events import Events
from proxy.core.json_edit import WholeAnswer
from proxy.core.metrics import Metrics
from proxy.relay.capture.capture import Capture, CaptureServices
from scripts.harness.in_process import Proxy
from store.records import NewCompletion
from store.store import Store

ALL = Redactor(Redaction(emails=True, patterns=(r"CASE-\d{6}",)))
PEM = "-----BEGIN {0}PRIVATE KEY-----\n{1}\n-----END {0}PRIVATE KEY-----"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
# Put together here, so that no scanner takes this file for a leak.
SHAPES = [
    r"sk-[A-Za-z0-9]{48}",
    r"sk-proj-[A-Za-z0-9_-]{60,120}",
    r"sk-ant-api03-[A-Za-z0-9_-]{95}",
    r"sk-or-v1-[0-9a-f]{64}",
    r"sk-lf-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    r"sk_live_[A-Za-z0-9]{24}",
    r"AKIA[A-Z2-7]{16}",
    r"AIza[0-9A-Za-z_-]{35}",
    r"ya29\.[0-9A-Za-z_-]{60}",
    r"GOCSPX-[A-Za-z0-9_-]{28}",
    r"gh[pousr]_[A-Za-z0-9]{36}",
    r"github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}",
    r"glpat-[A-Za-z0-9_-]{20}",
    r"xoxb-[0-9]{11}-[0-9]{11}-[A-Za-z0-9]{24}",
    r"xapp-1-A[A-Z0-9]{10}-[0-9]{13}-[a-f0-9]{64}",
    r"hf_[A-Za-z]{34}",
    r"gsk_[A-Za-z0-9]{52}",
    r"xai-[A-Za-z0-9]{80}",
    r"pplx-[A-Za-z0-9]{48}",
    r"r8_[A-Za-z0-9]{37}",
    r"npm_[A-Za-z0-9]{36}",
    r"pypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{100}",
    r"dckr_pat_[A-Za-z0-9_-]{27}",
    r"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}",
    r"dop_v1_[0-9a-f]{64}",
    r"dapi[0-9a-f]{32}",
    r"rlp_[0-9a-f]{8}_[A-Za-z0-9_-]{43}",
    r"whsec_[A-Za-z0-9]{32}",
    r"eyJ[A-Za-z0-9_-]{20,60}\.eyJ[A-Za-z0-9_-]{20,80}\.[A-Za-z0-9_-]{43}",
    r"hvs\.[A-Za-z0-9_-]{90}",
]
TOKEN = "ghp_" + "a1B2c3D4e5F6" * 3
CODE = Path(__file__).resolve().parents[3]


def varied(text: str) -> bool:
    """As random keys are: what has fewer different letters is written in place of one."""
    return len(set(text[8:])) > 9 and any(c.isdigit() for c in text)


def card(digits: str) -> str:
    return next(digits + str(last) for last in range(10) if luhn(digits + str(last)))


keys = st.sampled_from(SHAPES).flatmap(lambda s: st.from_regex(s, fullmatch=True)).filter(
    lambda key: varied(key) or (key.startswith("hf_") and len(set(key)) > 12)
)  # fmt: skip
blocks = st.tuples(
    st.sampled_from(["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "]),
    st.lists(st.text(LETTERS + "+/", min_size=64, max_size=64), min_size=3, max_size=20),
).map(lambda found: PEM.format(found[0], "\n".join(found[1])))
cards = st.one_of(
    st.text("0123456789", min_size=14, max_size=14).map(lambda d: card("4" + d)),
    st.text("0123456789", min_size=13, max_size=13).map(lambda d: card("51" + d)),
    st.text("0123456789", min_size=12, max_size=12).map(lambda d: card("37" + d)),
    st.text("0123456789", min_size=14, max_size=14).map(lambda d: card("4" + d)).map(
        lambda n: "-".join(n[i : i + 4] for i in (0, 4, 8, 12))
    ),
)  # fmt: skip
addresses = st.from_regex(r"[a-z][a-z0-9.]{2,10}@[a-z]{3,10}\.(?:org|example|co\.uk)", fullmatch=True)
secrets = st.one_of(keys, blocks, cards, addresses, st.from_regex(r"CASE-[0-9]{6}", fullmatch=True))
BEFORE = [
    "",
    " ",
    "我的密钥是",
    "ключ",
    "キー",
    "\n",
    "key=",
    '"',
    "'",
    "`",
    "(",
    "token: ",
    "Bearer ",
    "https://x.example/?k=",
    '{"a": "',
    "é",
    "\\n",
]
AFTER = ["", " ", "\n", '"', "'", ")", ", and", "`.", ";", '"}', " 中", "，谢谢", "です"]
around = st.tuples(st.sampled_from(BEFORE[:-2]), st.sampled_from(AFTER))
words = st.text(st.characters(exclude_characters="@", exclude_categories=["Cs"]), max_size=30)


@given(secrets, around, words, words)
@hypothesis_settings(max_examples=100)
def test_no_secret_stays(secret: str, around: tuple[str, str], first: str, last: str) -> None:
    before, after = around
    text = f"{first} {before}{secret}{after} {last}"
    found = ALL.text(text)
    assert secret not in found and "[redacted:" in found
    assert ALL.text(found) == found
    for line in secret.split("\n")[1:-1]:
        assert line not in found


@pytest.mark.parametrize("near", range(-50, 60, 7))
def test_wherever_it_is_in_a_long_text(near: int) -> None:
    for at in (STEP, 3 * STEP):
        text = "a b " * ((at + near) // 4) + TOKEN + " and more" * 9000
        assert TOKEN not in ALL.text(text)


@given(st.lists(secrets, min_size=2, max_size=5), words)
def test_none_of_several(several: list[str], between: str) -> None:
    found = ALL.text(f"\n{between}\n".join(several))
    assert not any(secret in found for secret in several)


@pytest.mark.parametrize(
    "text",
    [
        "password: str",
        "api_key = os.environ['OPENAI_API_KEY']",
        "sk-xxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        "sk-...",
        "sk-ant-…",
        "5f2b8c1e-4111-4111-8111-111111111111",
        "d41d8cd98f00b204e9800998ecf8427e",
        "78615d3f0a1b2c3d4e5f60718293a4b5c6d7e8f9",
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "sha512-" + "Ab1+" * 21 + "==",
        "if line.startswith('-----BEGIN PRIVATE KEY-----'):\n    end = '-----END PRIVATE KEY-----'",
        "task-force-1234567890abcdefghij",
        ".sk-toggleable__content-fitted-default-arrow { }",
        "1732200000123",
        "1.4111111111111111",
        "@app.command()",
        "git@github.com:a/b.git",
        "react@18.2.0",
        "0x4111111111111111",
        "4111 1111 1111 1112",
        "eyJ.a.b",
        "ASIAN markets",
        "hf_hub_download(repo_id, filename)",
        "npm_config_registry",
        "SELECT 1 FROM ghp_users_of_the_year_2024",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert ALL.text(text) is text


def test_source_code_stays() -> None:
    for room in ("proxy", "store", "trainer", "config", "scripts"):
        for file in (CODE / room).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            if file.name != "signing.py":  # the keys that the tests of webhooks sign with
                assert Redactor(Redaction()).text(text) is text, file


@given(
    st.recursive(
        st.one_of(
            st.none(), st.booleans(), st.integers(-999, 10**9), st.text(LETTERS[:52] + " \n{}[]:=_-", max_size=80)
        ),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=4),
        max_leaves=20,
    )
)
def test_json_without_secrets_is_the_same_bytes(value: Any) -> None:
    raw = json.dumps(value, indent=1).encode()
    if Redactor(Redaction()).value(value) is not value:  # a key at random: as good as never
        raise AssertionError(value)
    assert Redactor(Redaction()).json(raw) is raw


@given(secrets)
def test_members_names_and_numbers_are_looked_at_too(secret: str) -> None:
    found = json.dumps(ALL.value({secret: [{"a": secret}], "n": int(card("4" + "1" * 14))}))
    assert json.dumps(secret)[1:-1] not in found and "411111111111111" not in found


# Of each shape a list, longer than anything that is taken for a picture

ISSUERS = (("4", 16), ("51", 16), ("2221", 16), ("37", 15), ("300", 14), ("6011", 16), ("3530", 16), ("62", 16))
# Tokens of one kind: `ghp_` right before `gho_` could be part of it.
ROWS = [shape.replace("gh[pousr]", "ghp") for shape in SHAPES if not shape.startswith("eyJ")]
BETWEEN = ["\n", "\r\n", ",", ", ", " ", "\t", ";", "|", " / ", "\n\n", '","', "\\n"]
JOINED = ["", "-", "_", "+", "."]
MORE_KEYS = [
    r"ASIA[A-Z2-7]{16}", r"sk_test_[A-Za-z0-9]{24}", r"rk_live_[A-Za-z0-9]{24}", r"gldt-[A-Za-z0-9_-]{20}",
    r"nvapi-[A-Za-z0-9_-]{64}", r"lsv2_pt_[0-9a-f]{32}_[0-9a-f]{10}", r"shpat_[0-9a-f]{32}", r"lin_api_[A-Za-z0-9]{40}",
    r"ntn_[A-Za-z0-9]{43}", r"glsa_[A-Za-z0-9]{32}_[0-9a-f]{8}", r"figd_[A-Za-z0-9_-]{40}", r"sbp_[0-9a-f]{40}",
    r"AGE-SECRET-KEY-1[A-Z0-9]{58}", r"ATATT3[A-Za-z0-9_=-]{180}",
]  # fmt: skip


def a_card(start: str, length: int, chance: random.Random) -> str:
    return card(start + "".join(chance.choices("0123456789", k=length - len(start) - 1)))


def drawn(shape: str, count: int, chance: random.Random) -> list[str]:
    """So many secrets of this shape. A regular expression of literals, classes and counts is drawn by hand: the search
    for examples would make a few letters of all of them. Those with hardly any different letters are written in place
    of a key."""
    found = (_drawn(shape, chance) for _ in itertools.count())
    return list(itertools.islice((one for one in found if len(set(one[8:])) > 9), count))


def _drawn(shape: str, chance: random.Random) -> str:
    out = []
    for token, length in re.findall(r"(\[[^]]+\]|\\.|.)(?:\{([0-9]+)(?:,[0-9]+)?\})?", shape):
        letters = re.findall(r"[ -~]", token) if not token.startswith("[") else _class(token[1:-1])
        out += chance.choices([one for one in letters if one != "\\"], k=int(length or 1))
    return "".join(out)


def _class(spelled: str) -> list[str]:
    ranges = re.findall(r"(.)-(.)|(.)", spelled)
    return [chr(n) for a, b, one in ranges for n in (range(ord(a), ord(b) + 1) if a else [ord(one)])]


def left(secrets: list[str], found: str) -> list[str]:
    """What can still be read of these: whole, or more than a third of one."""
    return [one for one in secrets if one in found or any(one[i : i + 16] in found for i in range(8, len(one) - 15))]


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("shape", [*SHAPES, *MORE_KEYS])
def test_a_long_list_of_keys_of_a_shape(shape: str, between: str) -> None:
    several = drawn(shape, 120, random.Random(shape))
    assert len(between.join(several)) > 2 * SLICED
    for redactor in (ALL, Redactor(Redaction())):
        assert left(several, redactor.text(between.join(several))) == []


@pytest.mark.parametrize("between", [*BETWEEN, *JOINED])
@pytest.mark.parametrize(("start", "length"), ISSUERS)
def test_a_long_list_of_cards(start: str, length: int, between: str) -> None:
    several = [a_card(start, length, random.Random(i)) for i in range(150)]
    assert left(several, Redactor(Redaction()).text(between.join(several))) == []


@pytest.mark.parametrize("joint", JOINED)
@pytest.mark.parametrize("shape", [*ROWS, *MORE_KEYS])
def test_a_row_of_keys_with_next_to_nothing_between(shape: str, joint: str) -> None:
    several = drawn(shape, 60, random.Random(shape))
    assert left(several, Redactor(Redaction()).text(joint.join(several))) == []


@given(
    st.lists(st.sampled_from([*SHAPES, *MORE_KEYS, *ISSUERS]), min_size=1, max_size=4),
    st.integers(1, 150), st.sampled_from(BETWEEN), st.integers(0, 10**6),
)  # fmt: skip
@hypothesis_settings(max_examples=150, deadline=None)
def test_no_list_of_secrets_is_taken_for_something_else(shapes: list[Any], count: int, between: str, seed: int) -> None:
    """Whatever is known, in any order and of any length, with anything that keeps them apart."""
    chance = random.Random(seed)
    each = [[a_card(*one, chance)] if isinstance(one, tuple) else drawn(one, 1, chance) for one in shapes * count]
    several = [one for found in each for one in found]
    chance.shuffle(several)
    assert left(several, ALL.text(between.join(several))) == []


AS_PAGES_WRITE_IT = (
    " ", "-", "+", "%20", *"\u00a0\u2007\u2009\u200b\u202f\u2010\u2011\u2012\u2013",
)  # fmt: skip


@pytest.mark.parametrize("between", AS_PAGES_WRITE_IT)
@pytest.mark.parametrize(
    ("start", "length", "groups"), [("4", 16, (4, 4, 4, 4)), ("37", 15, (4, 6, 5)), ("62", 19, (4, 4, 4, 4, 3))]
)
def test_groups_of_a_card_however_they_are_kept_apart(
    start: str, length: int, groups: tuple[int, ...], between: str
) -> None:
    number = iter(a_card(start, length, random.Random(between)))
    said = between.join("".join(itertools.islice(number, count)) for count in groups)
    for before, after in (("it is ", "."), ("https://shop.example/pay?card=", "&x=1"), ("", "")):
        assert Redactor(Redaction()).text(before + said + after) == f"{before}[redacted:card]{after}"


@pytest.mark.parametrize("before", ["%22", "%3D", "\\u0022", "\\u003d", "\\x22", "\\n", "\\t", '\\\\\\"', "&quot;"])
def test_a_secret_behind_an_escape(before: str) -> None:
    """Texts of JSON and of addresses, in which the last letter of an escape belongs to no word."""
    token = "ghp_" + "a1B2c3D4e5F6" * 3
    for secret in (token, card("4" + "20" * 7), a_card("62", 19, random.Random(1))):
        said = Redactor(Redaction()).text(f"{{k: {before}{secret}{before}}}")
        assert secret not in said and "[redacted:" in said


@pytest.mark.parametrize("escapes", range(3))
@pytest.mark.parametrize("spaces", [0, 1, 12])
def test_a_named_secret_in_json_in_json(escapes: int, spaces: int) -> None:
    secret = "wJalrXUtnFEMIaK7MDENGabPxRfiCYEXAMPLEKEY"
    said = f'{{"SecretAccessKey"{" " * spaces}:{" " * spaces}"{secret}"}}'
    for _ in range(escapes):
        said = json.dumps(said)
    assert secret not in Redactor(Redaction()).text(said)


def test_a_long_list_of_own_secrets_addresses_and_private_keys() -> None:
    several = [f"CASE{n:06}" for n in range(500)]
    own = Redactor(Redaction(patterns=(r"CASE\d{6}",)))
    assert left(several, own.text("\n".join(several))) == [] and "CASE" not in own.text("".join(several))
    people = [f"person{n}@site{n}.example" for n in range(200)]
    for between in BETWEEN:
        assert left(people, ALL.text(between.join(people))) == []
    for end in ("", "\n", " "):
        blocks = [PEM.format("RSA ", "\n".join([base64(64, n)] * 12)) for n in range(40)]
        assert left(blocks, ALL.text(end.join(blocks))) == []


def base64(length: int, seed: int) -> str:
    return "".join(random.Random(seed).choices(LETTERS + "+/", k=length))


def test_what_is_base64_has_no_secrets_by_chance() -> None:
    """Files in every form in which they are sent. Own patterns are short: in a picture one would find something."""
    redactor = Redactor(Redaction(emails=True, patterns=(r"\d{4}",)))
    for seed in range(20):
        letters = base64(76 * 2000, seed)
        lines = "\n".join(letters[i : i + 76] for i in range(0, len(letters), 76))
        for text in (letters, lines, lines.replace("\n", "\r\n"), f"see:\n\n{lines}==\n",
                     f"-----BEGIN CERTIFICATE-----\n{lines}\n-----END CERTIFICATE-----"):  # fmt: skip
            assert ALL.text(text) is text
        for head in ("data:image/png;base64,", "data:application/pdf;base64,"):
            assert redactor.text(head + letters) == head + letters


def test_a_list_in_the_clothes_of_a_picture_is_none() -> None:
    several = [a_card("4", 16, random.Random(i)) for i in range(100)]
    for head in ("data:image/png;base64,", "data:,", "data:text/plain,", ""):
        assert left(several, ALL.text(head + "\n".join(several))) == []


def test_a_picture_stays() -> None:
    picture = "data:image/png;base64," + "iVBORw0KGgo" + "AKIAABCDEFGHIJKLMNOP" * 100
    assert ALL.text(picture) is picture


def test_each_kind_can_be_off_and_patterns_are_checked() -> None:
    secret, number = "ghp_" + "a1B2c3D4e5F6" * 3, card("4" + "20" * 7)
    text = f"{secret} {number} ann@x.org"
    assert Redactor(Redaction(keys=False, cards=False)).text(text) is text
    assert Redactor(Redaction()).text(text) == "[redacted:api_key] [redacted:card] ann@x.org"
    for bad in (".*", r"\w+", "("):
        with pytest.raises(SettingsError):
            load({"redaction.patterns": [bad]}, environ={})


def test_the_time_grows_with_the_text_only() -> None:
    """A text made to be slow would take hours if a search began anew at each place: no bound in seconds is needed."""
    for hostile in ("sk-", "-eyJ", "eyJ.", "4111 ", "a@", "-----BEGIN PRIVATE KEY-----", "ghp_", ":AA", "sk-a-"):
        ALL.text(hostile * (200_000 // len(hostile)))


@given(st.lists(st.one_of(words, secrets), min_size=1, max_size=6))
def test_a_message_that_comes_again_is_the_same_again(texts: list[str]) -> None:
    redactor = Redactor(Redaction(emails=True))
    for text in [*texts, *texts]:
        message = canonical({"role": "user", "content": text})
        kinds: set[str] = set()
        plain: set[str] = set()
        assert redactor.message(message, kinds) == Redactor(Redaction(emails=True)).message(message, plain)
        assert kinds == plain


# Through the whole proxy

NUMBER = card("4" + "19" * 7)


def on_disk(home: Path, secret: str) -> list[str]:
    return [f.name for f in home.rglob("*") if f.is_file() and secret.encode() in f.read_bytes()]


async def test_what_is_sent_is_whole_and_what_is_stored_is_not(proxy: Proxy) -> None:
    tool = {"type": "function", "function": {"name": "f", "description": f"log in with {TOKEN}"}}
    answer = await proxy.chat(f"my key is {TOKEN}, card {NUMBER}", tools=[tool], metadata={"k": TOKEN}, stream=True)
    said = await answer.text()
    assert "".join(_deltas(said)).strip().endswith(f"my key is {TOKEN}, card {NUMBER}")
    assert TOKEN in json.dumps(proxy.backend.requests[-1])
    id = answer.headers["x-rl-completion-id"]
    status, _ = await proxy.rate(completion_id=id, rating="bad", comment=f"say {TOKEN}", correction=f"it is {NUMBER}")
    assert status == 201
    found = await proxy.store.completions.get(id)
    assert found is not None and found.end is not None
    assert found.new.redacted == (
        "prompt:api_key", "prompt:card", "request:api_key", "reply:api_key", "reply:card"
    )  # fmt: skip
    assert found.end.untrainable == "redacted" and not found.end.exact
    assert (found.end.prompt_token_ids, found.end.token_ids, found.end.logprobs) == (None, None, None)
    assert "[redacted:api_key], card [redacted:card]" in found.end.text
    assert await proxy.store.samples.untrainable() == {"redacted": 1}
    assert on_disk(proxy.home, TOKEN) == [] and on_disk(proxy.home, NUMBER) == []  # the WAL is one of these files
    await proxy.stop()
    assert on_disk(proxy.home, TOKEN) == [] and on_disk(proxy.home, NUMBER) == []
    await proxy.start()


async def test_a_redacted_prompt_trains_without_its_ids(proxy: Proxy) -> None:
    body = {
        "model": "fake",
        "messages": [{"role": "system", "content": f"use {TOKEN}"}, {"role": "user", "content": "hi"}],
    }
    async with proxy.http.post("/v1/chat/completions", json=body) as answer:
        id = (await answer.json())["id"]
    found = await proxy.store.completions.get(id)
    assert found is not None and found.end is not None
    assert found.new.redacted == ("prompt:api_key",) and found.new.untrainable is None
    assert found.end.token_ids is None and found.end.prompt_token_ids is None and found.end.logprobs is None
    assert not found.end.exact and "redacted" in (found.end.inexact_reason or "")
    assert orjson.loads(found.new.prompt[0].body) == {"content": "use [redacted:api_key]"}
    await proxy.rate(completion_id=id, rating="good")
    assert (await proxy.store.samples.fresh(live=0, max_version_gap=8)).good == 1


async def test_without_secrets_all_is_exact(proxy: Proxy) -> None:
    id = (await (await proxy.chat("hello", logprobs=True)).json())["id"]
    found = await proxy.store.completions.get(id)
    assert found is not None and found.end is not None
    assert found.end.exact and found.new.redacted == () and found.end.prompt_token_ids == [1, 2, 3]


async def test_the_answer_is_found_though_it_was_redacted(proxy: Proxy) -> None:
    for stream in (False, True):
        first = f"hello {stream}, my key is {TOKEN}"
        answer = await proxy.chat(first, stream=stream)
        id, said = answer.headers["x-rl-completion-id"], f"You said: {first}"
        assert await answer.text()
        told = await proxy.say(first, said, "/rl good")
        assert "rated good" in told, told
        assert [r.completion_id for r in await proxy.store.ratings.history(id)] == [id]
        await proxy.say(first, said, "and now?")
        told = await proxy.say(first, said, "and now?", "You said: and now?", "/rl bad")
        assert "rated bad" in told, told
    assert on_disk(proxy.home, TOKEN) == []


async def test_a_large_prompt_is_redacted_too(proxy: Proxy) -> None:
    said = [f"{'words ' * 200_000} {TOKEN}", "ok", "go on"]
    messages = [{"role": role, "content": text} for role, text in zip(("user", "assistant", "user"), said, strict=True)]
    body = io.BytesIO(orjson.dumps({"model": "fake", "messages": messages}))
    async with proxy.http.post("/v1/chat/completions", data=body) as answer:
        id = (await answer.json())["id"]
    found = await proxy.store.completions.get(id)
    assert found is not None and found.new.redacted == ("prompt:api_key",)
    assert on_disk(proxy.home, TOKEN) == []


@pytest.mark.parametrize("kept", range(2, len(TOKEN), 7))
async def test_a_secret_that_a_list_cuts_is_not_half_there(proxy: Proxy, kept: int) -> None:
    await proxy.chat("x" * (EXCERPT_LENGTH - kept - 1) + " " + TOKEN)
    assert len(await proxy.store.completions.page(limit=1)) == 1
    assert on_disk(proxy.home, TOKEN[: max(kept, 8)]) == []


async def test_an_error_of_the_backend_is_redacted(proxy: Proxy) -> None:
    proxy.backend.mood = "error"
    await proxy.chat(f"my key is {TOKEN}")
    assert on_disk(proxy.home, TOKEN) == []


def _deltas(stream: str) -> list[str]:
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    return [choice["delta"].get("content") or "" for event in events for choice in event["choices"]]


@given(st.lists(secrets, min_size=5, max_size=5), st.randoms(use_true_random=False))
@hypothesis_settings(max_examples=15)
async def test_no_secret_in_any_column(found: list[str], chance: random.Random) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as home:
        store = await Store.open(Path(home))
        try:
            await _captured(store, found, chance)
            every = [*found, *(line for s in found for line in s.split("\n")[1:-1])]
            for secret in every:
                assert on_disk(Path(home), secret) == []
        finally:
            await store.close()
        with sqlite3.connect(Path(home) / "rlproxy.db") as db:
            dump = "\n".join(db.iterdump())
        db.close()
        assert not any(secret in dump for secret in every)


async def _captured(store: Store, found: list[str], chance: random.Random) -> None:
    a, b, c, d, e = found
    messages = [
        {"role": "system", "content": f"use {a}"},
        {
            "role": "user",
            "content": [{"type": "text", "text": f"x {b}"}, {"type": "image_url", "image_url": {"url": c}}],
        },
        {"role": "tool", "tool_call_id": "t", "content": json.dumps({"key": d})},
    ]
    kinds: set[str] = set()
    new = NewCompletion(
        "rl-1", "rl-1", 0, time.time(), "chat", "vllm", "m", "m", 0, None, None, "main", "default", False,
        tuple(ALL.message(canonical(m), kinds) for m in messages), ALL.json(orjson.dumps({"metadata": {e: 1}}), kinds),
        thread=thread(messages, ALL.message), redacted=tuple(sorted(kinds)),
    )  # fmt: skip
    capture = Capture(CaptureServices(store, Metrics(), Health(), Events(), ALL, AnswersInProgress()), "rl-1", 1)
    await capture.begin(new)
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "f", "arguments": json.dumps({"k": chance.choice(found)})},
    }
    message = {"role": "assistant", "content": f"it is {e}", "reasoning_content": d, "tool_calls": [call]}
    logprobs = {"content": [{"token": "x", "logprob": 0.0}]}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "token_ids": [2], "logprobs": logprobs}
    body = {"choices": [choice], "usage": {"note": a}, "prompt_token_ids": [1]}
    capture.reader.take_whole(WholeAnswer(json.dumps(body).encode()))
    assert await capture.finish("done", error=f"refused {b}")


SHORT_WAY = Redactor(Redaction())
# With a pattern of one's own every text is searched.
LONG_WAY = Redactor(Redaction(patterns=("never said: \\x00\\x01\\x02",)))
_TEXTS = st.one_of(
    st.text(max_size=40),
    st.sampled_from(SHAPES).flatmap(lambda shape: st.from_regex(shape, fullmatch=True)),
    st.sampled_from((card("411111111111111"), "4111-1111-1111-1111", "4111 1111 1111 1111", TOKEN)),
    st.sampled_from((PEM.format("RSA ", "\n".join(["MIIEpAIBAAKCAQEA1b2c3d4e5f6g7h8i"] * 4)), 'say "\\u00e9\n\t"')),
)
_VALUES = st.recursive(
    _TEXTS | st.integers() | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=6,
)


@given(_VALUES)
@hypothesis_settings(deadline=None, max_examples=300)
def test_the_short_way_finds_what_the_long_way_does(value: Any) -> None:
    short, long = set[str](), set[str]()
    assert SHORT_WAY.value(value, short) == LONG_WAY.value(value, long) and short == long


def test_a_key_without_a_digit_is_found_and_a_placeholder_is_not() -> None:
    assert "sk-oiVZ" not in Redactor(Redaction()).text("key sk-oiVZAYCtbKEggbuKWsjORNsUbvBbFbpNnOqrYrYWyzXTcHaP")
    placeholder = "key sk-" + "x" * 48
    assert Redactor(Redaction()).text(placeholder) is placeholder
