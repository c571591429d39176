"""Keys that are handed out: shown once, hashed, bound to a name, gone when revoked."""

from __future__ import annotations

import hashlib

import pytest

from config.sections import ServerSection
from proxy.access.keys import FORM, OWNERS, SHARED, Keys, Reach, Who, given_key
from proxy.access.roles import RULES
from proxy.core.errors import BadRequest, Conflict, NotFound, Unauthorized
from scripts.harness.in_process import Proxy
from scripts.harness.records import new
from store.records import Asker, Role
from store.store import Store
from tests.store.conftest import store  # noqa: F401


async def test_a_key_from_its_making_to_its_end(store: Store) -> None:  # noqa: F811
    keys = Keys(ServerSection())
    await keys.start(store)
    assert keys.who("").role == "admin" and not keys.needed
    key, text = await keys.create("ann", "rate", "admin")
    assert FORM.fullmatch(text) and key.hash == hashlib.sha256(text.encode()).digest()
    assert keys.who(text) == keys.who(given_key({"authorization": f"bearer  {text}"})) == ("rate", key.id, "ann")
    with pytest.raises(Conflict, match="named ann already"):
        await keys.create("ann", "use", "admin")
    assert keys.list()[0]["last_used"]

    again = Keys(ServerSection())
    await again.start(store)
    assert again.who(text).bound == "ann"
    await keys.revoke("ann", "admin")
    for headers in ({"x-api-key": text}, {}, {"authorization": "Basic eDp5"}):
        with pytest.raises(Unauthorized):
            keys.who(given_key(headers))
    assert keys.by_id(key.id) is None
    with pytest.raises(NotFound):
        await keys.revoke("ann", "admin")
    assert (await keys.create("ann", "admin", "admin"))[0].id != key.id
    assert [entry["act"] for entry in await store.meta.audit_log()] == ["key created", "key revoked", "key created"]
    await again.start(store)
    with pytest.raises(Unauthorized):
        again.who(text)


@pytest.mark.parametrize("name", ["", "owner", "a b", "../x", "-x", "x" * 101, "a\n"])
async def test_names_that_are_none(store: Store, name: str) -> None:  # noqa: F811
    keys = Keys(ServerSection())
    await keys.start(store)
    with pytest.raises(BadRequest):
        await keys.create(name, "use", "admin")
    with pytest.raises(BadRequest):
        await keys.create("x", "root", "admin")


async def test_fixed_keys_go_on_beside_them(store: Store) -> None:  # noqa: F811
    keys = Keys(ServerSection(api_key="the-use-key", admin_key="the-admin-key"))
    await keys.start(store)
    assert keys.who("the-use-key") == ("rate", "", None)
    assert keys.who("the-admin-key").role == "admin"
    assert keys.who(keys.local).role == "admin"
    with pytest.raises(Unauthorized):
        keys.who("")


@pytest.mark.parametrize(
    ("route", "role"),
    [
        ("POST /v1/chat/completions", "use"),
        ("GET /v1/models", "use"),
        ("* /api/{rest}", "admin"),
        ("DELETE /v1/feedback/{id}", "rate"),
        ("POST /rl/links", "rate"),
        ("GET /rl/completions/{id}", "rate"),
        ("GET /rl/export", "admin"),
        ("GET /", "rate"),
        ("GET /metrics", "use"),
    ],
)
def test_what_needs_which_role(route: str, role: Role) -> None:
    """Whatever else there is, and what passes through: tests/attacker/test_roles.py."""
    assert RULES[route].least == role


async def test_a_key_names_the_rater_and_the_user(proxy: Proxy) -> None:
    async with proxy.http.post("/rl/keys", json={"name": "ann", "role": "rate"}) as response:
        ann = {"x-api-key": (await response.json())["key"]}
    first = await (await proxy.chat("one", headers=ann)).json()
    reply = first["choices"][0]["message"]["content"]
    said = await (await proxy.chat("one", reply, "/rl good", headers=ann)).json()
    assert "rated good" in said["choices"][0]["message"]["content"]
    (completion,) = await proxy.store.completions.page(limit=9)
    assert (completion.new.user, [r.rater for r in completion.ratings]) == ("ann", ["ann"])
    async with proxy.http.delete("/v1/feedback/last", headers=ann) as response:
        assert response.status == 200


async def test_a_key_that_may_use_models_rates_in_no_chat_either(proxy: Proxy) -> None:
    async with proxy.http.post("/rl/keys", json={"name": "phone", "role": "use"}) as response:
        phone = {"x-api-key": (await response.json())["key"]}
    reply = (await (await proxy.chat("one", headers=phone)).json())["choices"][0]["message"]["content"]
    said = await (await proxy.chat("one", reply, "/rl good", headers=phone)).json()
    assert "may ask models and not rate" in said["choices"][0]["message"]["content"]


def test_a_key_is_lent_for_a_moment() -> None:
    """What rlproxy asks itself in somebody's name is asked by their role and key."""
    keys, eve = Keys(ServerSection()), Who("rate", "0a1b2c3d", "eve")
    with keys.lent(eve) as key, keys.lent(Who("admin")) as other:
        assert keys.who(given_key({"authorization": f"Bearer {key}"})) == eve != keys.who(other)
        assert FORM.fullmatch(key) and key not in (other, keys.local)
    keyed = Keys(ServerSection(api_key="k"))  # type: ignore[arg-type]
    with keyed.lent(eve) as key:
        assert keyed.who(key) == eve
    with pytest.raises(Unauthorized):
        keyed.who(key)


async def test_a_gateway_that_names_people_makes_none_of_them_admin(proxy: Proxy) -> None:
    async def says(user: str) -> str:
        answer = await (await proxy.chat("/rl pause", headers={"x-rl-user": user})).json()
        return str(answer["choices"][0]["message"]["content"])

    assert 'server.chat_admins = ["stranger"]' in await says("stranger")
    await proxy.stop()
    await proxy.start(server__chat_admins=["ann"])
    assert "needs an admin" in await says("stranger")
    assert "paused" in await says("ann")


# Which completions a request may see

OWNER, BOSS, GATEWAY = Who("admin"), Who("admin", "b0", "boss"), Who("rate")
ANN, BOB = Who("use", "a1", "ann"), Who("rate", "b2", "bob")


def test_what_completions_are_kept_under() -> None:
    assert [who.key for who in (OWNER, BOSS, GATEWAY, ANN)] == [OWNERS, "b0", SHARED, "a1"]


@pytest.mark.parametrize(
    ("reach", "key", "user", "covered"),
    [
        (Reach(ANN), "a1", "ann", True), (Reach(ANN, "desk"), "a1", "desk", True),
        (Reach(ANN), "a1", "desk", False),
        (Reach(ANN, "desk"), "a1", "lab", False), (Reach(ANN, "desk"), "a1", "ann", True),
        (Reach(BOB, "ann"), "a1", "ann", False), (Reach(BOB), OWNERS, None, False), (Reach(BOB), SHARED, None, False),
        (Reach(GATEWAY, "ann"), SHARED, "ann", True), (Reach(GATEWAY, "ann"), "a1", "ann", False),
        (Reach(GATEWAY, "bob"), SHARED, "ann", False), (Reach(GATEWAY), SHARED, "ann", False),
        (Reach(GATEWAY), SHARED, None, True), (Reach(GATEWAY, "ann"), SHARED, None, True),
        # An admin has all, and who names somebody only theirs.
        (Reach(OWNER), "a1", "ann", True), (Reach(BOSS), "a1", "ann", True),
        (Reach(OWNER, "ann", ("ann",)), "a1", "ann", False),
        (Reach(OWNER, "ann", ("ann",)), OWNERS, "ann", True), (Reach(OWNER, "ann", ("ann",)), OWNERS, "bob", False),
        (Reach(BOSS, "ann", ("ann",)), OWNERS, "ann", True), (Reach(BOSS, "ann", ("ann",)), "b0", "ann", True),
        # From before keys were kept: the name of the key, never one that the request gives.
        (Reach(ANN), None, "ann", True), (Reach(BOB, "ann"), None, "ann", False), (Reach(BOB), None, None, False),
        (Reach(GATEWAY), None, None, False), (Reach(BOSS), None, None, True),
        (Reach(GATEWAY, "ann"), None, "ann", True), (Reach(GATEWAY), None, "ann", False),
        (Reach(OWNER), None, "ann", True), (Reach(OWNER, "ann", ("ann",)), None, "bob", False),
        (Reach(OWNER, None, ("42",)), "a1", "ann", False), (Reach(OWNER, None, ("42",)), OWNERS, None, True),
    ],
)  # fmt: skip
def test_what_a_request_may_read(reach: Reach, key: str | None, user: str | None, covered: bool) -> None:
    assert reach.covers(new("x", key=key, user=user)) is covered


@pytest.mark.parametrize(
    ("reach", "own"),
    [
        (Reach(OWNER), {(OWNERS, None), (None, None)}),
        (Reach(BOSS), {(k, u) for k in ("b0", OWNERS, None) for u in (None, "boss")}),
        (Reach(OWNER, "ann"), {(OWNERS, "ann"), (None, "ann")}),
        (Reach(ANN), {("a1", "ann"), (None, "ann")}),
        (Reach(BOB, "ann"), {("b2", "ann"), (None, "bob")}),
        (Reach(GATEWAY), {(SHARED, None), (None, None)}),
        (Reach(GATEWAY, "ann"), {(SHARED, "ann"), (None, "ann")}),
    ],
)
def test_whose_answers_somebody_means(reach: Reach, own: set[tuple[str | None, str | None]]) -> None:
    assert set(reach.own()) == {Asker(*one) for one in own}
    assert set(reach.own(unnamed=True)) >= {*reach.own(), Asker(reach.who.key, None)}
