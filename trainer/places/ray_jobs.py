"""A cluster of Ray, by the Jobs API of its head.

Owns the jobs: `rlproxy-`, the run's id, and the number of the attempt. Submitting the same one twice is refused by Ray,
so no attempt is doubled. Ray does not start a job again, and forgets all of them with its head; what the files say is
how a run ended. Only HTTP is spoken: this machine needs no Ray. Not here: the files (shared_disk, bucket_jobs).
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import shlex
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from config.places import PlaceAddress, ray_resources
from trainer.places.depot import JobState
from trainer.places.job import RunOrder
from trainer.places.place import PlaceError, PlaceSettings, PlaceUnreachable
from trainer.places.shared_disk import CALL_S, job_files

NAME: Final = "rlproxy-"  # before the id
LOOK_S: Final = 1.0  # between two questions to the head
LARGEST: Final = 2**26  # bytes of an answer: the list of all jobs that Ray remembers
MOST_NOTE: Final = 300  # characters of what Ray says of a job: the last lines of its log are at the end
UNDER_WAY: Final = ("PENDING", "RUNNING")
TOKEN: Final = "RAY_AUTH_TOKEN"  # noqa: S105  the variable that Ray itself reads


class RayAttempt(NamedTuple):
    """One job of Ray: an attempt of a run."""

    number: int
    status: str  # PENDING, RUNNING, STOPPED, SUCCEEDED, FAILED
    message: str

    @property
    def is_under_way(self) -> bool:
        return self.status in UNDER_WAY


class RayPlace:
    def __init__(self, settings: PlaceSettings, address: PlaceAddress) -> None:
        """Raises ValueError (train.where_options)."""
        self.takes_keys = False  # a job's command line and its environment lie in Ray's own store
        host = f"[{address.host}]" if ":" in address.host else address.host
        self._url = f"http://{host}:{address.port}"
        self._resources = ray_resources(settings.options)
        self._files = job_files(settings, address.folder)

    async def hello(self, weights: str) -> Mapping[str, Any]:
        await self._ask("GET", "/api/version")
        return await self._files.hello(weights)

    async def receive(self, id: str, archive: Path, weights: str) -> None:
        await self._files.receive(id, archive, weights)

    async def start(self, id: str, order: RunOrder) -> bool:
        last = await self._last(id)
        if (last is not None and last.is_under_way) or await self._files.has_result(id):
            return False
        name = _name(id, last.number + 1 if last else 1)
        command, log = f"exec {await self._files.attempt(id, order)}", self._files.log(id)
        command += f" >> {shlex.quote(str(log))} 2>&1" if log else ""
        job = {"submission_id": name, "entrypoint": command, "metadata": {"rlproxy": id}, **self._resources}
        try:
            await self._ask("POST", "/api/jobs/", job)
        except PlaceError:
            if await self._last(id) == last:
                raise  # else another rlproxy, or a try of ours whose answer was lost, has submitted it
            return False
        return True

    async def look(self, id: str, offset: int, wait_s: float) -> JobState:
        last = await self._last(id)  # before the files: what it wrote at its end is there then
        state = await self._files.look(id, offset)
        is_under_way = last is not None and last.is_under_way
        if state.state == "absent" and not is_under_way:
            return state
        if last is not None and is_under_way:
            if not state.progress:
                await asyncio.sleep(min(wait_s, LOOK_S))
            note = last.message if last.status == "PENDING" else last.status
            return replace(state, state="under way", has_result=False, note=note)
        if state.state == "under way":  # Ray is quicker than its nodes
            return replace(state, note="the job is ending")
        note = f"{last.status}: {last.message[-MOST_NOTE:]}" if last else ""
        return replace(state, note=state.note or note)

    async def stop(self, id: str) -> None:
        """One that waits for its resources goes out of the queue, one at work stops at its next step."""
        await self._files.stop(id)
        last = await self._last(id)
        if last is not None and last.status == "PENDING":
            await self._ask("POST", f"/api/jobs/{_name(id, last.number)}/stop")

    async def send(self, id: str, archive: Path) -> None:
        await self._files.send(id, archive)

    async def remove(self, id: str) -> None:
        for attempt in await self._attempts(id):
            path = f"/api/jobs/{_name(id, attempt.number)}"
            if attempt.is_under_way:
                await self._ask("POST", f"{path}/stop")
                raise PlaceUnreachable(f"the job {_name(id, attempt.number)} is still ending.")
            await self._ask("DELETE", path)
        await self._files.remove(id)

    async def _last(self, id: str) -> RayAttempt | None:
        return max(await self._attempts(id), default=None)

    async def _attempts(self, id: str) -> list[RayAttempt]:
        answer = await self._ask("GET", "/api/jobs/")
        jobs = answer if isinstance(answer, list) else []
        prefix = _name(id, None)
        names = {str(job.get("submission_id") or ""): job for job in jobs if isinstance(job, dict)}
        return [
            RayAttempt(int(number), str(job.get("status")), str(job.get("message") or ""))
            for name, job in names.items()
            if name.startswith(prefix) and (number := name.removeprefix(prefix)).isdecimal()
        ]

    async def _ask(self, method: str, path: str, body: Any = None) -> Any:
        """Raises PlaceError for what Ray refuses, PlaceUnreachable where it does not answer."""
        try:
            async with asyncio.timeout(CALL_S):
                return await asyncio.to_thread(_call, method, self._url + quote(path), body)
        except TimeoutError:
            raise PlaceUnreachable(f"{self._url} did not answer within {CALL_S:.0f} s.") from None
        except urllib.error.HTTPError as error:
            lines = error.read(2000).decode("utf-8", "replace").strip().splitlines() or [error.reason or "no reason"]
            words = f"{self._url} answered {error.code} ({lines[-1][:200].rstrip('.')})"
            if error.code in (401, 403):
                raise PlaceError(f"{words}; {TOKEN} in the environment is its token.") from None
            raise (PlaceUnreachable if error.code in (502, 503, 504) else PlaceError)(f"{words}.") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise PlaceUnreachable(
                f"{self._url} does not answer ({error}): is it the dashboard of Ray's head?"
            ) from None


def _name(id: str, number: int | None) -> str:
    return f"{NAME}{id}-{'' if number is None else number}"


def _call(method: str, url: str, body: Any) -> Any:
    """Blocking. Raises OSError, ValueError, HTTPException."""
    headers = {"Content-Type": "application/json"}
    if token := os.environ.get(TOKEN):
        headers["Authorization"] = f"Bearer {token}"
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, headers, method=method)  # noqa: S310  http, as the setting says
    opener = urllib.request.build_opener(_NoRedirect)
    with opener.open(request, timeout=CALL_S) as response:
        answer = response.read(LARGEST + 1)
    if len(answer) > LARGEST:
        raise ValueError(f"its answer has more than {LARGEST} bytes")
    return json.loads(answer) if answer.strip() else None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token does not follow to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None
