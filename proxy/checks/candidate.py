"""The user's checks of a candidate, after the trainer's gate and before it goes live.

Owns `gate.checks`. The candidate answers the prompts of that file at the real server, where it is loaded beside the
live version. A check that holds on fewer prompts than `at_least` refuses it. Captured prompts,
episodes and judges are left to `rlproxy eval`: no judge decides what goes live. Not here: what becomes of a refused
candidate (proxy.training.publish), the trainer's own checks (trainer.run.gate).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
import structlog

from config.settings import Settings
from proxy.backends.ask import ask
from proxy.backends.base import Backend, place_for
from proxy.checks import results
from proxy.checks.answers import AnswerCache
from proxy.checks.checks_file import ChecksError, JudgeCheck, Suite, read
from proxy.checks.criteria import Criteria
from proxy.checks.evaluation import AskedVersion, Evaluation, EvaluationRow, NotAnswered
from proxy.checks.summary import summarise
from proxy.core.errors import BackendDown, ProxyError
from proxy.core.start_errors import CannotStart
from proxy.versions.live_version import LiveVersion

log = structlog.get_logger()

SHOWN_PROMPTS: Final = 3


class CheckFailure(NamedTuple):
    """One check that a candidate fails, with the names of the prompts."""

    check: str
    prompts: Sequence[str]
    total: int
    at_least: float
    reason: str

    def __str__(self) -> str:
        names = ", ".join(repr(name) for name in self.prompts[:SHOWN_PROMPTS])
        further = f" and {len(self.prompts) - SHOWN_PROMPTS} more" if len(self.prompts) > SHOWN_PROMPTS else ""
        bound = f", where {self.at_least:.0%} must pass" if self.at_least < 1 else ""
        return f"{self.check!r} on {len(self.prompts)} of {self.total} prompts{bound} ({names}{further}: {self.reason})"


class CandidateChecks:
    def __init__(self, settings: Settings, backend: Backend, live_version: LiveVersion) -> None:
        """Raises CannotStart where the file of the settings cannot be used."""
        self._file = settings.gate.checks
        self._home = settings.home
        self._keeps_results = not settings.store.key_from
        self._timeout_s = settings.backend.read_timeout_s
        self._backend = backend
        self._live_version = live_version
        if self._file is not None:
            try:
                suite = self._suite(self._file)
            except ChecksError as error:
                raise CannotStart(f"gate.checks cannot be used: {error}") from None
            _tell_of_left_out(read(self._file), suite)

    @property
    def are_set(self) -> bool:
        return self._file is not None

    async def refusal(self, version: int) -> str | None:
        """Why this version must not go live; None where it may. Raises ChecksError where the file cannot be used any
        more, ProxyError where the version cannot be loaded, and BackendDown where a prompt was not answered."""
        if self._file is None:
            return None
        suite = await asyncio.to_thread(self._suite, self._file)
        rows = await self._rows(suite, version)
        if self._keeps_results:
            await asyncio.to_thread(results.keep, self._home, summarise(suite, [version], rows))
        failures = find_failures(suite, rows)
        if not failures:
            return None
        return f"v{version} fails the checks of {suite.name}: {'; '.join(map(str, failures))}."

    async def _rows(self, suite: Suite, version: int) -> list[EvaluationRow]:
        criteria = Criteria(suite)
        live_version = self._live_version
        lease = await live_version.acquire(live_version.parse_name(live_version.name(version)))
        try:
            candidate = AskedVersion(version, lease.model, "")
            rows = await Evaluation(suite, criteria, self._ask, AnswerCache(None)).run([candidate])
        finally:
            lease.release()
            await criteria.stop()
        for row in rows:
            unknown = next((f"{name}: {each.reason}" for name, each in row.verdicts.items() if each.ok is None), None)
            if problem := row.problem or unknown:
                raise BackendDown(f"v{version} could not be checked on {row.prompt.name!r}: {problem}")
        return rows

    async def _ask(self, version: AskedVersion, body: Mapping[str, Any]) -> Any:
        try:
            with place_for(self._backend, version.model) as address:
                status, content = await ask(self._backend, address, body, self._timeout_s, "a check of a candidate")
        except ProxyError as error:
            raise NotAnswered(error.message) from error
        if status != 200:
            raise NotAnswered(f"the backend answered {status}: {content[:200].decode(errors='replace')}")
        try:
            return orjson.loads(content)
        except orjson.JSONDecodeError:
            raise NotAnswered("the backend's answer is not JSON") from None

    def _suite(self, file: Path) -> Suite:
        """The part of the file that the gate asks. Raises ChecksError."""
        suite = read(file)
        checks = tuple(check for check in suite.check if not isinstance(check, JudgeCheck))
        if not suite.prompt or not checks:
            raise ChecksError(
                f"{file} has no [[prompt]] or no [[check]] that the gate can make: it asks neither captured prompts "
                "nor judges."
            )
        gated = suite.model_copy(update={"check": checks, "captured": None, "episodes": None})
        Criteria(gated)  # a schema that is not one is told before a run, not after it
        return gated


def find_failures(suite: Suite, rows: Sequence[EvaluationRow]) -> list[CheckFailure]:
    """Checks that hold on fewer of their prompts than `at_least`."""
    failures = []
    for check in suite.check:
        verdicts = [(row.prompt.name, row.verdicts[check.name]) for row in rows if check.name in row.verdicts]
        failed = [(name, verdict.reason) for name, verdict in verdicts if verdict.ok is False]
        if failed and len(verdicts) - len(failed) < check.at_least * len(verdicts) - 1e-9:
            names = [name for name, _ in failed]
            failures.append(CheckFailure(check.name, names, len(verdicts), check.at_least, failed[0][1]))
    return failures


def _tell_of_left_out(whole: Suite, gated: Suite) -> None:
    left_out = [check.name for check in whole.check if check not in gated.check]
    left_out += [name for name in ("captured", "episodes") if getattr(whole, name) is not None]
    if left_out:
        log.info("the gate leaves out, of its file of checks", left_out=left_out, file=whole.name)
