"""A run before it trains: the claim of its samples, and the run folder that the trainer reads.

Not here: when a run may start (preconditions), its lines (run_folder), who carries it out (run_supervisor).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from config.languages import gate_questions
from proxy.conversation.modalities import IMAGE_REASONS, in_words
from proxy.images import run_pictures
from proxy.training import own_loss, prompt_languages, run_folder, served_prompts
from proxy.training.cloud_student import CloudStudent
from proxy.training.retraining.retraining import TUNED, Retraining
from proxy.training.run_files import RunFiles
from proxy.training.served_prompts import ServedPrompts
from proxy.training.weights_check import WeightsCheck
from proxy.versions.live_version import LiveVersion
from proxy.versions.services import Services
from store.file.meta import of_line
from store.learning.episode_groups import EpisodeRequirements
from store.learning.runs import BASELINE, EPISODE_BASELINE
from store.learning.samples import SampleRequirements
from store.line_records import COMMON
from store.records import Run
from trainer.launch import Seal

TUNE: Final = "tune"  # meta: the next run looks for its learning rate
EARLIER_HELD_SAMPLES: Final = 32  # held-back samples of earlier runs that the gate sees again


class Claims:
    def __init__(
        self,
        services: Services,
        live_version: LiveVersion,
        cloud_student: CloudStudent | None,
        files: RunFiles,
        weights_check: WeightsCheck,
        retraining: Retraining,
    ) -> None:
        self._settings = services.settings
        self._store = services.store
        self._backend = services.backend
        self._launcher = services.launcher
        self._live_version = live_version
        self._cloud_student = cloud_student
        self._files = files
        self._weights_check = weights_check
        self.retraining = retraining
        self._picture_training = services.picture_training
        self._images = services.images
        self.extra_choices: Callable[[], Awaitable[list[dict[str, Any]]]] | None = None  # more choices for the manifest
        self.prepare: Callable[[], Awaitable[None]] | None = None  # what has to be settled before each claim

    async def claim(self, *, min_total: int, rebuilds: bool, line: str = COMMON) -> Run | None:
        """Make a run of the fresh ratings of a line; None where there are fewer than `min_total`, or another run is
        open."""
        if self.prepare is not None:
            await self.prepare()
        train = self._settings.train
        requirements = await self._requirements(train.max_samples, min_total, line)
        return await self._store.samples.claim(
            SampleRequirements(
                **requirements,
                held_share=train.held_share,
                foreign=self._cloud_student is not None,
                share=train.max_rater_share,
                raters=train.raters,
                rebuilds=rebuilds,
                judge_share=self._settings.judge.max_share,
            )
        )

    async def claim_episodes(self, *, min_total: int, line: str = COMMON) -> Run | None:
        """Make a run of groups of episodes that have closed; None where there are fewer than `min_total` episodes, or
        none that teaches."""
        train = self._settings.train
        requirements = await self._requirements(max(2 * train.start_at_episodes, train.group_size), min_total, line)
        return await self._store.episode_groups.claim(
            EpisodeRequirements(**requirements, size=train.group_size, timeout_s=train.group_timeout_s)
        )

    async def _requirements(self, limit: int, min_total: int, line: str) -> dict[str, Any]:
        """The members of `RunRequirements`, which both claims have."""
        runs = self._settings.home / "runs"
        newest = await asyncio.to_thread(run_folder.newest_version, self._model_folder())
        return {
            "model": self._cloud_student.model if self._cloud_student else self._live_version.model,
            "live": await self._cloud_student.parent() if self._cloud_student else self._live_version.live_of(line),
            "line": line,
            "max_version_gap": self._settings.train.max_version_gap,
            "limit": limit,
            "min_total": min_total,
            "folder_of": lambda run: str(runs / f"r{run:05d}"),
            "version": max(await self._store.versions.next(), 1 + newest),
            "last_number": await asyncio.to_thread(run_folder.newest_run, runs),
        }

    async def is_strange(self, run: Run) -> bool:
        """Tell if its samples are replies of a model that is not ours, and that of this backend is; or the reverse."""
        if run.retrains:
            return False
        samples = await self._store.samples.of_run(run.id)
        if self._cloud_student is not None and await self._store.episode_groups.of_run(run.id):
            return True
        return any((s.completion.new.version is None) != (self._cloud_student is not None) for s in samples)

    async def write(self, run: Run, weights: str | None) -> None:
        """Write the run folder, unless an earlier attempt did.

        Raises BackendDown (its server renders the prompts), OwnCodeFailed (the file of train.loss cannot be read).
        """
        async with self._files.lock:  # until the folder is whole nobody forgets what it is written from
            await self._files.clean(run)
            if run_folder.complete(Path(run.folder)):
                return
            if run.retrains:
                await self.retraining.write(run)
            else:
                assert weights is not None, "due() has checked it"
                await self._write(run, weights)

    async def _left_out(self) -> list[dict[str, Any]]:
        """Rated answers about pictures, which this run leaves out."""
        counts = await self._store.samples.untrainable()
        by_reason = {in_words(reason): counts[reason] for reason in IMAGE_REASONS if counts.get(reason)}
        reasons = ", ".join(f"{reason}: {count}" for reason, count in by_reason.items())
        if (lacks := self._picture_training.reason) is not None:
            reasons += f" ({lacks})"
        value = sum(by_reason.values())
        return [{"name": "pictures_left_out", "value": value, "why": reasons}] if value else []

    async def _write(self, run: Run, weights: str) -> None:
        train = self._settings.train
        # The critic looks at more of them than the filter needs: they are what people may be asked about.
        calibration = await self._store.completions.exact_unrated(
            version=run.parent, line=run.line, limit=2 * train.calibration
        )
        adapters = {a.version: a.path for a in await self._store.versions.all() if not a.is_deleted}
        if (rebuild := await self._store.unlearning.state()) is not None:
            adapters |= rebuild.paths  # to tell how likely they found their own replies
        groups = (
            # Of what was claimed.
            [sample for sample in await self._store.samples.of_run(run.id) if sample.rating.live],
            await self._store.samples.recent_held(run.model, EARLIER_HELD_SAMPLES, run.line),
        )
        turns = await self._store.episode_groups.run_turns(run.id)
        moments = await self._store.opinions.moments(train.max_rater_share, train.raters, run.line)
        if turns:  # a run has either
            lines = await asyncio.to_thread(run_folder.episode_lines, turns)
        else:
            ids = {sample.completion.new.id for group in groups for sample in group}
            lessons = await self._store.lessons.in_prompts(ids)
            lines = await asyncio.to_thread(run_folder.lines, *groups, train, moments, lessons)
        languages = await prompt_languages.choose(self._launcher, lines)
        served = ServedPrompts()
        if not self._cloud_student:  # whose replies no server of ours has given
            completions = {sample.completion.new.id: sample.completion for group in groups for sample in group}
            completions |= {turn.completion.new.id: turn.completion for turn in turns}
            served = await served_prompts.add(self._backend, lines, completions, gate_questions(languages.codes))
        pictures = await run_pictures.take_out(lines, self._store, self._images)
        await asyncio.to_thread(
            run_folder.write,
            run,
            lines,
            calibration,
            settings=self._settings,
            weights=weights,
            adapters=adapters,
            out=self._model_folder() / f"v{run.version:04d}",
            baseline=float(await self._store.meta.get(of_line(BASELINE, run.line), 0.0)),
            episode_baseline=float(await self._store.meta.get(of_line(EPISODE_BASELINE, run.line), 0.0)),
            version_gap=_version_gap(run, lines, train.max_version_gap),
            languages=languages.codes,
            neutral=served.neutral,
            comparison=None if self._cloud_student else self._weights_check.noise,
            objective=self._cloud_student.objective if self._cloud_student else None,
            # Another model's replies have no log-probs of this policy: they train by `kto` alone.
            loss=None if self._cloud_student else await asyncio.to_thread(own_loss.read, train),
            server_format="peft" if self._cloud_student else self._backend.server_format,
            tune=bool(await self._store.meta.get(of_line(TUNE, run.line), False)),
            tuned=(await self._store.meta.get(TUNED, {})).get(of_line(run.model, run.line)),
            choices=[
                *(self._cloud_student.choices if self._cloud_student else ()),
                prompt_languages.as_choice(languages),
                *served.choices,
                *await self._left_out(),
                *(await self.extra_choices() if self.extra_choices else ()),
                *run_folder.scored_by(turns),
            ],
            pictures=pictures,
            seal=Seal(await self._store.runs.key(run.id)),
        )
        await self._store.meta.set(of_line(TUNE, run.line), False)  # the folder says so from here on

    async def tune(self, line: str) -> None:
        """The line's next run looks for its learning rate."""
        await self._store.meta.set(of_line(TUNE, line), True)

    async def reset(self, line: str) -> None:
        """The line's next run begins with a baseline of 0."""
        await self._store.meta.set(of_line(BASELINE, line), 0.0)

    async def note_rate(self, run: Run, rate: float) -> None:
        """A sweep has found this learning rate, whatever becomes of its run."""
        rates = await self._store.meta.get(TUNED, {})
        await self._store.meta.set(TUNED, {**rates, of_line(run.model, run.line): rate})

    def _model_folder(self) -> Path:
        model = self._cloud_student.model if self._cloud_student else self._live_version.model
        return run_folder.of_model(self._settings.adapters_dir, model)


def _version_gap(run: Run, lines: Sequence[Mapping[str, Any]], setting: int) -> int:
    """The gap that the trainer allows, in version numbers: those of a line have gaps where other lines have versions.
    Which samples are too old was decided as they were claimed; those that only the gate sees again do not count."""
    trained = [line for line in lines if line["split"] != "held" and line["version"] is not None]
    ages: list[int] = [run.parent - line["version"] for line in trained]
    return max([setting, *ages])
