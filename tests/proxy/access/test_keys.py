"""Keys that are handed out: shown once, hashed, bound to a name, gone when revoked."""

from __future__ import annotations

import hashlib

import pytest

from config.sections import ServerSection
from proxy.access.keys import FORM, OWNERS, SHARED, Keys, Principal, Scope, key_in
from proxy.core.errors import BadRequest, Conflict, NotFound, Unauthorized
from proxy.web.route_table import ROUTES
from scripts.harness.in_process import Proxy
from scripts.harness.records import new
from store.records import Requester, Role
from store.store import Store


async def test_a_key_from_its_making_to_its_end(store: Store) -> None:
    keys = Keys(ServerSection())
    await keys.start(store)
    assert keys.principal("").role == "admin" and not keys.needed
    key, text = await keys.create("ann", "rate", "admin")
    assert FORM.fullmatch(text) and key.hash == hashlib.sha256(text.encode()).digest()
    assert (
        keys.principal(text)
        == keys.principal(key_in({"authorization": f"bearer  {text}"}))
        == ("rate", key.id, "ann", None)
    )
    with pytest.raises(Conflict, match="named ann already"):
        await keys.create("ann", "use", "admin")
    assert keys.list()[0]["last_used"]

    again = Keys(ServerSection())
    await again.start(store)
    assert again.principal(text).bound == "ann"
    await keys.revoke("ann", "admin")
    for headers in ({"x-api-key": text}, {}, {"authorization": "Basic eDp5"}):
        with pytest.raises(Unauthorized):
            keys.principal(key_in(headers))
    assert keys.by_id(key.id) is None
    with pytest.raises(NotFound):
        await keys.revoke("ann", "admin")
    assert (await keys.create("ann", "admin", "admin"))[0].id != key.id
    assert [entry["act"] for entry in await store.meta.audit_log()] == ["key created", "key revoked", "key created"]
    await again.start(store)
    with pytest.raises(Unauthorized):
        again.principal(text)


@pytest.mark.parametrize("name", ["", "owner", "a b", "../x", "-x", "x" * 101, "a\n"])
async def test_names_that_are_none(store: Store, name: str) -> None:
    keys = Keys(ServerSection())
    await keys.start(store)
    with pytest.raises(BadRequest):
        await keys.create(name, "use", "admin")
    with pytest.raises(BadRequest):
        await keys.create("x", "root", "admin")


async def test_fixed_keys_go_on_beside_them(store: Store) -> None:
    keys = Keys(ServerSection(api_key="the-use-key", admin_key="the-admin-key"))
    await keys.start(store)
    assert keys.principal("the-use-key") == ("rate", "", None, None)
    assert keys.principal("the-admin-key").role == "admin"
    assert keys.principal(keys.local).role == "admin"
    with pytest.raises(Unauthorized):
        keys.principal("")


@pytest.mark.parametrize(
    ("route", "role"),
    [
        ("POST /v1/chat/completions", "use"),
        ("GET /v1/models", "use"),
        ("* /api/{rest:.*}", "admin"),
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
    (rule,) = [row.rule for row in ROUTES if f"{row.method.upper()} {row.path}" == route]
    assert rule.least == role


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
    keys, eve = Keys(ServerSection()), Principal("rate", "0a1b2c3d", "eve")
    with keys.temporary_key(eve) as key, keys.temporary_key(Principal("admin")) as other:
        assert keys.principal(key_in({"authorization": f"Bearer {key}"})) == eve != keys.principal(other)
        assert FORM.fullmatch(key) and key not in (other, keys.local)
    keyed = Keys(ServerSection(api_key="k"))  # type: ignore[arg-type]
    with keyed.temporary_key(eve) as key:
        assert keyed.principal(key) == eve
    with pytest.raises(Unauthorized):
        keyed.principal(key)


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

OWNER, BOSS, GATEWAY = Principal("admin"), Principal("admin", "b0", "boss"), Principal("rate")
ANN, BOB = Principal("use", "a1", "ann"), Principal("rate", "b2", "bob")


def test_what_completions_are_kept_under() -> None:
    assert [principal.key for principal in (OWNER, BOSS, GATEWAY, ANN)] == [OWNERS, "b0", SHARED, "a1"]


@pytest.mark.parametrize(
    ("scope", "key", "user", "covered"),
    [
        (Scope(ANN), "a1", "ann", True), (Scope(ANN, "desk"), "a1", "desk", True),
        (Scope(ANN), "a1", "desk", False),
        (Scope(ANN, "desk"), "a1", "lab", False), (Scope(ANN, "desk"), "a1", "ann", True),
        (Scope(BOB, "ann"), "a1", "ann", False), (Scope(BOB), OWNERS, None, False), (Scope(BOB), SHARED, None, False),
        (Scope(GATEWAY, "ann"), SHARED, "ann", True), (Scope(GATEWAY, "ann"), "a1", "ann", False),
        (Scope(GATEWAY, "bob"), SHARED, "ann", False), (Scope(GATEWAY), SHARED, "ann", False),
        (Scope(GATEWAY), SHARED, None, True), (Scope(GATEWAY, "ann"), SHARED, None, True),
        # An admin has all, and who names somebody only theirs.
        (Scope(OWNER), "a1", "ann", True), (Scope(BOSS), "a1", "ann", True),
        (Scope(OWNER, "ann", ("ann",)), "a1", "ann", False),
        (Scope(OWNER, "ann", ("ann",)), OWNERS, "ann", True), (Scope(OWNER, "ann", ("ann",)), OWNERS, "bob", False),
        (Scope(BOSS, "ann", ("ann",)), OWNERS, "ann", True), (Scope(BOSS, "ann", ("ann",)), "b0", "ann", True),
        # From before keys were kept: the name of the key, never one that the request gives.
        (Scope(ANN), None, "ann", True), (Scope(BOB, "ann"), None, "ann", False), (Scope(BOB), None, None, False),
        (Scope(GATEWAY), None, None, False), (Scope(BOSS), None, None, True),
        (Scope(GATEWAY, "ann"), None, "ann", True), (Scope(GATEWAY), None, "ann", False),
        (Scope(OWNER), None, "ann", True), (Scope(OWNER, "ann", ("ann",)), None, "bob", False),
        (Scope(OWNER, None, ("42",)), "a1", "ann", False), (Scope(OWNER, None, ("42",)), OWNERS, None, True),
    ],
)  # fmt: skip
def test_what_a_request_may_read(scope: Scope, key: str | None, user: str | None, covered: bool) -> None:
    assert scope.covers(new("x", key=key, user=user)) is covered


@pytest.mark.parametrize(
    ("scope", "own"),
    [
        (Scope(OWNER), {(OWNERS, None), (None, None)}),
        (Scope(BOSS), {(k, u) for k in ("b0", OWNERS, None) for u in (None, "boss")}),
        (Scope(OWNER, "ann"), {(OWNERS, "ann"), (None, "ann")}),
        (Scope(ANN), {("a1", "ann"), (None, "ann")}),
        (Scope(BOB, "ann"), {("b2", "ann"), (None, "bob")}),
        (Scope(GATEWAY), {(SHARED, None), (None, None)}),
        (Scope(GATEWAY, "ann"), {(SHARED, "ann"), (None, "ann")}),
    ],
)
def test_whose_answers_somebody_means(scope: Scope, own: set[tuple[str | None, str | None]]) -> None:
    assert set(scope.own_requesters()) == {Requester(*one) for one in own}
    assert set(scope.own_requesters(unnamed=True)) >= {*scope.own_requesters(), Requester(scope.principal.key, None)}
