"""`rlproxy connect matrix`: a homeserver that pushes what happens in the agents' rooms.

Owns the application service's registration file, the two tokens in it and in rlproxy's own files, and the check by a
ping. How files are written and brought back is `connection`'s.
"""

from __future__ import annotations

import json
import re
import secrets
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from config.settings import FILE_NAME, Settings
from config.webhooks import secret
from proxy.cli.agents.catalog import SettingEdit, Setup
from proxy.core.redirects import open_url

NAME: Final = "rlproxy"  # of the application service, and of its user
PATH: Final = "/rl/webhooks/matrix"
PING_S: Final = 15.0
_USER_ID: Final = re.compile(r"@[^:\s]+:[^\s]+")


class CannotPing(Exception):
    """One sentence: why, and what to do."""


class Homeserver(NamedTuple):
    url: str
    agents: tuple[str, ...]  # user ids


def homeserver_of(settings: Settings, url: str | None, agents: list[str]) -> Homeserver:
    """Take what is named, else what the settings have. Raises ValueError, whose text is for the person."""
    chosen = Homeserver(url or settings.webhooks.matrix.homeserver, tuple(agents or settings.webhooks.matrix.agents))
    if not chosen.agents:
        raise ValueError("Name your agent's user: `rlproxy connect matrix --user @agent:example.org`.")
    if bad := next((agent for agent in chosen.agents if not _USER_ID.fullmatch(agent)), None):
        raise ValueError(f"{bad!r} is not a Matrix user id, as @agent:example.org.")
    return chosen


def setup(settings: Settings, own_url: str, homeserver: Homeserver) -> Setup:
    """Tokens that are there stay: the homeserver has read them. Raises SettingsError."""
    home = settings.home.absolute()
    hs_token, as_token = (
        secret(settings.webhooks.matrix, key, f"webhooks.matrix.{key}") or secrets.token_urlsafe(32)
        for key in ("hs_token", "as_token")
    )
    registration = home / "matrix" / "registration.yaml"
    text = yaml.safe_dump(
        {
            "id": NAME, "url": own_url + PATH, "hs_token": hs_token, "as_token": as_token, "sender_localpart": NAME,
            "rate_limited": False,
            "namespaces": {
                "users": [{"exclusive": False, "regex": f"^{re.escape(agent)}$"} for agent in homeserver.agents],
                "rooms": [], "aliases": [],
            },
        },
        sort_keys=False,
    )  # fmt: skip
    edits = [SettingEdit(registration, "text", (), text)]
    for key, token in (("hs_token", hs_token), ("as_token", as_token)):
        if getattr(settings.webhooks.matrix, key) is not None:
            continue  # it comes from the environment
        file = getattr(settings.webhooks.matrix, f"{key}_file") or home / "matrix" / key
        edits.append(SettingEdit(file, "text", (), token + "\n"))
        edits.append(SettingEdit(home / FILE_NAME, "toml", ("webhooks", "matrix", f"{key}_file"), str(file)))
    edits.append(SettingEdit(home / FILE_NAME, "toml", ("webhooks", "matrix", "homeserver"), homeserver.url))
    edits.append(SettingEdit(home / FILE_NAME, "toml", ("webhooks", "matrix", "agents"), list(homeserver.agents)))
    return Setup(edits, _next_steps(registration))


def _next_steps(registration: Path) -> str:
    return (
        f"1. Add to the homeserver's settings (Synapse: homeserver.yaml), where it can read that file:\n"
        f"     app_service_config_files: [{registration}]\n"
        "2. Start the homeserver and rlproxy anew.\n"
        "3. `rlproxy connect matrix` once more: it has the homeserver call rlproxy, and says whether that works."
    )


def ping(settings: Settings, own_url: str) -> float:
    """Milliseconds that the homeserver took to reach rlproxy. Raises CannotPing. Source: Matrix specification 1.7,
    "Pinging"."""
    section = settings.webhooks.matrix
    token = secret(section, "as_token", "webhooks.matrix.as_token")
    request = urllib.request.Request(  # noqa: S310  the person's own homeserver
        f"{section.homeserver.rstrip('/')}/_matrix/client/v1/appservice/{NAME}/ping",
        data=json.dumps({"transaction_id": secrets.token_hex(4)}).encode(),
        headers={"authorization": f"Bearer {token}", "content-type": "application/json"},
        method="POST",
    )
    try:
        with open_url(request, PING_S) as response:
            return float(json.load(response)["duration_ms"])
    except urllib.error.HTTPError as error:
        raise CannotPing(_reason(error, own_url + PATH)) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CannotPing(f"The homeserver at {section.homeserver} does not answer ({error}); start it.") from None


def _reason(error: urllib.error.HTTPError, url: str) -> str:
    try:
        answer: Any = json.loads(error.read(10_000))
    except ValueError:
        answer = {}
    code = answer.get("errcode") if isinstance(answer, dict) else None
    if code in ("M_UNKNOWN_TOKEN", "M_FORBIDDEN"):
        return "The homeserver does not know rlproxy yet: add the registration to its settings, and start it anew."
    if code in ("M_CONNECTION_FAILED", "M_CONNECTION_TIMED_OUT", "M_BAD_STATUS", "M_URL_NOT_SET"):
        return (
            f"The homeserver does not reach rlproxy at {url} ({code}): start both anew. If it cannot call that "
            "address, put one that it can into the registration's `url`."
        )
    return f"The homeserver answered the ping with {error.code} {code or ''}; its log says more."
