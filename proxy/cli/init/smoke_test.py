"""The proof that it works: one question through the proxy, one rating, seen in its status, and taken back.

Owns the order, and the proxy that is started for it where none runs. The rating is taken back in the end: it is about
the wires, and must not teach. Not here: what is said about it (command).
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from config.settings import Settings
from proxy.cli.common import command_for
from proxy.cli.http import HomeClient
from proxy.client import Refused, Unreachable
from proxy.core.address_file import owner
from proxy.core.start_errors import STARTING
from trainer.launch import last_line, open_log

START_S: Final = 900.0  # the built-in server may have to get its model first
MATCH_S: Final = 180.0  # three short answers and one look at weights that are here
POLL_S: Final = 0.5
SESSION: Final = "rlproxy-init"
QUESTION: Final = "Say in one sentence why the sky is blue."
LOG: Final = "serve.log"


class Unproven(Exception):
    """One sentence: what does not work yet, and what to do."""


class Proof(NamedTuple):
    completion: str
    answer: str
    rated: int  # ratings that the status showed, with ours
    status: dict[str, Any]  # as it was then
    match: str | None  # what the comparison of model and weights said; None: not asked, or not yet
    seconds: float
    was_awaited: bool = False  # whether it was waited for


def running(settings: Settings) -> int | None:
    """The process of this home's proxy, 0 where it does not say; None where none answers."""
    try:
        is_rlproxy = HomeClient(settings).ask("GET", "/healthz") == {"ok": True}
    except (Unreachable, Refused, ValueError):  # nobody, or somebody else
        return None
    return (owner(settings) or 0) if is_rlproxy else None


def start(settings: Settings, wait: Callable[[float], None]) -> int:
    """`rlproxy serve` in the background; returns its process when it answers. Raises Unproven."""
    logs = settings.home / "logs"
    command = [sys.executable, "-P", "-m", "proxy.cli", "serve", "--home", str(settings.home)]
    interrupts: list[int] = []
    previous_handler = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:  # Ctrl-C in the middle of this would leave a process that nobody knows of
        with open_log(logs / LOG) as out:
            # A session of its own: neither this terminal's Ctrl-C nor its end is meant for it.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
    finally:
        signal.signal(signal.SIGINT, previous_handler)
    try:
        if interrupts:
            raise KeyboardInterrupt
        until_ready(settings, wait, lambda: process.poll() is not None, logs / LOG)
    except BaseException:
        process.terminate()
        raise
    return process.pid


def until_ready(settings: Settings, wait: Callable[[float], None], ended: Callable[[], bool], log: Path) -> None:
    """Raises Unproven."""
    began = last_load = time.monotonic()
    reason = ""
    while time.monotonic() - began < START_S:
        try:
            client = HomeClient(settings)
            client.ask("GET", "/readyz")
            return
        except Unreachable:
            reason = "it does not answer yet"
        except Refused as refused:
            reason = str(refused)
            if reason.startswith(STARTING):  # its model is fetched and loaded, however long that takes
                last_load = time.monotonic()
            elif time.monotonic() - last_load > settings.backend.ready_timeout_s:
                break
        if ended():
            raise Unproven(f"rlproxy did not start: {last_line(log).removeprefix('rlproxy: ')}")
        wait(time.monotonic() - began)
        time.sleep(POLL_S)
    raise Unproven(f"rlproxy was started and is not ready: {reason} (its log: {log}).")


def prove(
    settings: Settings, model: str, wait: Callable[[float], None], notify: Callable[[Proof, bool], None]
) -> Proof:
    """`notify` is told as soon as the status shows the rating, and whether a comparison follows. Raises Unproven."""
    client, doctor = HomeClient(settings), command_for("rlproxy doctor", settings)
    started_at = time.monotonic()
    try:
        model = model or str(client.ask("GET", "/rl/status")["model"])
        body = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 64}
        response = client.ask("POST", f"/s/{SESSION}/v1/chat/completions", body)
        seconds = time.monotonic() - started_at
        completion = str(response["id"])
        text = str(response["choices"][0]["message"].get("content") or "")
        rated_before = _count_rated(client.ask("GET", "/rl/status"))
        rating = {"completion_id": completion, "rating": "good", "source": "cli"}
        stored_rating = client.ask("POST", "/v1/feedback", rating)
        try:
            status = client.ask("GET", "/rl/status")
            if _count_rated(status) != rated_before + 1:
                raise Unproven(f"The rating of {completion} was taken and is not in the status; {doctor} tells more.")
            proof = Proof(completion, text, rated_before + 1, status, None, seconds)
            backend = status["backend"]
            compares = _comparable(settings) and bool(backend["adapters"]) and not backend["obstacle"]
            waits = compares and status["match"]["state"] == "unasked"
            notify(proof, waits)
            match = _match(client, status["match"], wait) if compares else None
        finally:
            client.ask("DELETE", f"/v1/feedback/{stored_rating['id']}")
    except (Refused, Unreachable) as error:
        raise Unproven(str(error)) from None
    except (KeyError, TypeError, IndexError) as error:
        raise Unproven(f"What answered is not a chat completion ({error!r}); {doctor} tells more.") from None
    return proof._replace(match=match, was_awaited=waits)


def _count_rated(status: dict[str, Any]) -> int:
    return int(status["counts"]["good"]) + int(status["counts"]["bad"])


def _comparable(settings: Settings) -> bool:
    """Only with weights that are here: this is not the moment to download gigabytes. The built-in server trains what it
    serves, so there is nothing to compare."""
    from proxy.cli.init.weights_search import local

    return settings.backend.kind != "builtin" and local(settings.train.weights or "/") is not None


def _match(client: HomeClient, weights_check: dict[str, Any], wait: Callable[[float], None]) -> str | None:
    """Compare the served model with the weights; this begins with the first rating."""
    started_at = time.monotonic()
    while weights_check["state"] == "unasked" and time.monotonic() - started_at < MATCH_S:
        wait(time.monotonic() - started_at)
        time.sleep(POLL_S)
        weights_check = client.ask("GET", "/rl/status")["match"]
    return None if weights_check["state"] == "unasked" else str(weights_check["line"])
