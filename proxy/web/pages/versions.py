"""Versions: where each came from, what the gate said, and which answers; and why: the ratings that made one.

Owns two views. Not here: moving the live pointer (live_version), what a run was (run_detail), comparing two answers
(compare).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

from aiohttp import web

from proxy.access.security import actor_of, require_admin
from proxy.checks.statistics import wilson
from proxy.core.errors import BadRequest, NotFound
from proxy.training.admin_acts import AdminActs
from proxy.versions.live_version import LiveVersion
from proxy.versions.what_changed import ChangesBody, PairBody, changes_body, pair_body, shown_pairs
from proxy.web.pages.checks import ChecksPanel
from proxy.web.pages.experiment import ExperimentPanel
from proxy.web.pages.view import View, html
from proxy.web.run_detail import account
from store.copies.read_only import ReadOnlyStore
from store.line_records import Pointer
from store.records import BASE, Adapter, CompletionSummary, Rating
from store.store import Store

OFFERED: Final = ("promote", "rollback")


class Node(NamedTuple):
    adapter: Adapter
    depth: int  # generations from the base
    share: Any  # of its rated answers that people found good
    changes: ChangesBody | None
    pairs: list[PairBody]  # shown of the live version alone; each has them on its own page
    samples: Sequence[TrainedSample] = ()  # in a report, which has no page of its own for each


class TrainedSample(NamedTuple):
    """One sample of a run: what was rated, and what the trainer made of it."""

    outcome: dict[str, Any]
    rating: Rating | None
    row: CompletionSummary | None
    surprise: float | None  # mean −log p of its tokens, as it was said


class VersionsPage:
    def __init__(
        self,
        view: View,
        store: Store,
        live_version: LiveVersion,
        acts: AdminActs,
        experiment: ExperimentPanel,
        checks: ChecksPanel,
    ) -> None:
        self._view = view
        self._store = store
        self._live_version = live_version
        self._acts = acts
        self._experiment = experiment
        self._checks = checks

    async def page(self, request: web.Request) -> web.Response:
        panels = {**await self._experiment.values(), **await self._checks.values()}
        return self._view.page(request, "versions.html", **await self._all(request), **panels)

    async def lineage(self, request: web.Request) -> web.Response:
        """The list alone."""
        return html(self._view.render(request, "lineage.html", **await self._all(request)))

    async def act(self, request: web.Request) -> web.Response:
        """Promote or roll back; answers with the list as it is then."""
        require_admin(request)
        form, act = await request.post(), request.match_info["act"]
        if act not in OFFERED:
            raise NotFound(f"There is no act {act}.")
        version_text = str(form.get("version") or "")
        if act == "promote" and (not version_text.isdecimal() or len(version_text) > 9):
            raise BadRequest("Say which version.", param="version")
        version, line = int(version_text) if act == "promote" else None, self._view.line(request)
        await self._acts.do(act, actor_of(request), version, line=None if version else line)
        return await self.lineage(request)

    async def _all(self, request: web.Request) -> dict[str, Any]:
        line = self._view.line(request)
        pointer = self._live_version.pointer_of(line)
        values = await lineage_values(self._store, pointer, [pointer.live])
        if len(self._live_version.lines) > 1:
            pointed = (pointer.live, pointer.previous)  # it may have begun with another line's
            values["nodes"] = [
                node for node in values["nodes"] if node.adapter.line == line or node.adapter.version in pointed
            ]
        adapters = [node.adapter for node in reversed(values["nodes"])]
        return values | {
            "can_roll_back": can_roll_back(pointer, adapters),
            "choices": [BASE, *(a.version for a in adapters if not a.is_deleted)],
        }

    async def show(self, request: web.Request) -> web.Response:
        """The ratings that a version was trained on, each with its mask."""
        version_text = request.match_info["version"].removeprefix("v")
        adapter = (
            await self._store.versions.get(int(version_text))
            if version_text.isdecimal() and len(version_text) < 10
            else None
        )
        if adapter is None:
            raise NotFound(f"There is no version {version_text}.", param="version")
        run = await self._store.runs.get(adapter.run_id) if adapter.run_id else None
        run_account = await account(self._store, run) if run else None
        samples = await trained_samples(self._store, run_account["account"]) if run_account else []
        return self._view.page(
            request,
            "version.html",
            adapter=adapter,
            run=run,
            account=run_account,
            samples=samples,
            changes=changes_body(adapter),
            pairs=[pair_body(pair) for pair in await shown_pairs(self._store, adapter.version)],
            pointer=await self._store.versions.pointer(adapter.line),
        )


async def lineage_values(
    store: Store | ReadOnlyStore, pointer: Pointer, illustrated: Collection[int]
) -> dict[str, Any]:
    """Read the list of versions; the `illustrated` ones with prompts that they and their parents answered."""
    adapters = await store.versions.all()
    verdicts = {v.version: v for v in await store.stats.verdicts()}
    shares = {n: wilson(v.good, v.good + v.bad) for n, v in verdicts.items()}
    depth, nodes = {BASE: 0}, list[Node]()
    for adapter in adapters:  # a parent has the lower number
        version = adapter.version
        depth[version] = depth.get(adapter.parent, 0) + 1
        pairs = await shown_pairs(store, version) if version in illustrated else []
        changes, pair_bodies = changes_body(adapter), [pair_body(pair) for pair in pairs]
        nodes.insert(0, Node(adapter, depth[version], shares.get(version), changes, pair_bodies))
    return {"nodes": nodes, "base_share": shares.get(BASE), "verdicts": verdicts, "pointer": pointer}


async def trained_samples(store: Store | ReadOnlyStore, outcomes: Iterable[dict[str, Any]]) -> list[TrainedSample]:
    """Read what a run was made of; what trained stands first."""
    samples = []
    for outcome in outcomes:
        rating = await store.ratings.get(outcome["rating"])
        row = await store.inbox.get(outcome["completion"]) if outcome["completion"] else None
        whole = await store.completions.get(row.id) if row else None
        logprobs = whole.end.logprobs if whole and whole.end else None
        surprise = -sum(logprobs) / len(logprobs) if logprobs else None
        samples.append(TrainedSample(outcome, rating, row, surprise))
    return sorted(samples, key=lambda s: (not s.outcome.get("used"), s.row.seq if s.row else 0))


def can_roll_back(pointer: Pointer, adapters: Iterable[Adapter]) -> bool:
    withdrawn = {a.version for a in adapters if a.withdrawn}
    return pointer.previous != pointer.live and pointer.previous not in withdrawn
