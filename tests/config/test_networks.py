"""Addresses of a single sign-on proxy: named ones only."""

from __future__ import annotations

import pytest

from config.errors import SettingsError
from config.settings import load


@pytest.mark.parametrize("text", ["10.0.0.7", "10.0.0.0/28", "127.0.0.0/8", "::1", "fd00::/64", "2001:db8::7"])
def test_networks(text: str) -> None:
    assert load({"server.sso_proxies": [text]}, environ={}).settings.server.sso_proxies == (text,)


@pytest.mark.parametrize(
    "text",
    [
        "0.0.0.0/0", "::/0", "::ffff:10.0.0.7", "::ffff:0:0/96", "::/8", "10.0.0.7/28", "10.0.0", "proxy.lan", "",
        "10.0.0.7,10.0.0.8", " 10.0.0.7", "10.0.0.300", "167772167",
    ],
)  # fmt: skip
def test_what_is_not_a_named_network(text: str) -> None:
    with pytest.raises(SettingsError, match=r"server\.sso_proxies"):
        load({"server.sso_proxies": [text]}, environ={})


def test_headers() -> None:
    assert (
        load({"server.sso_header": "X-Forwarded-Email"}, environ={}).settings.server.sso_header == "x-forwarded-email"
    )
    for name in ("authorization", "Cookie", "x-rl-user", "x api", "", "x-a\n", "host"):
        with pytest.raises(SettingsError, match=r"server\.sso_header"):
            load({"server.sso_header": name}, environ={})


def test_from_the_environment() -> None:
    environ = {"RLPROXY_SERVER__SSO_PROXIES": '["10.0.0.7"]'}
    assert load({}, environ=environ).settings.server.sso_proxies == ("10.0.0.7",)
