"""`rlproxy eval`: the user's own checks, of several versions on the same prompts.

Owns the options, which versions are asked, and what is written. Each answer is kept as it comes, so the same command
goes on after a kill. Not here: the checks and what they come to (proxy.checks).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from proxy.cli.common import AsJson, Home, client_of, print_json, settings_of
from proxy.cli.failing import fail

if TYPE_CHECKING:
    from config.settings import Settings
    from proxy.checks.answers import AnswerCache
    from proxy.checks.checks_file import Suite
    from proxy.checks.evaluation import AskedVersion, EvaluationRow
    from proxy.cli.http import HomeClient

eval_app = typer.Typer()

INTERRUPTED: Final = 130
MOST_VERSIONS: Final = 12


class EvalPlan(NamedTuple):
    suite: Suite
    versions: Sequence[AskedVersion]
    model: str
    at_once: int
    cache: AnswerCache


@eval_app.command("eval")
def evaluate(
    file: Annotated[Path, typer.Argument(help="Your checks: config/checks.example.toml is an example.")],
    versions: Annotated[
        str | None, typer.Option("--versions", help="As base,v6,v7.", show_default="base and the live one")
    ] = None,
    junit: Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML to this file, too.")] = None,
    at_once: Annotated[int, typer.Option("--at-once", min=1, max=64, help="Prompts asked at once.")] = 4,
    examples: Annotated[
        int, typer.Option("--examples", min=0, max=500, help="Ask the base with so many rated answers shown, too.")
    ] = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Ask again what was answered before.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit 1 where the last version fails a check beyond its at_least.")
    ] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Ask versions the same prompts, and check every answer."""
    from proxy.checks import results
    from proxy.checks.answers import AnswerCache
    from proxy.checks.candidate import find_failures
    from proxy.checks.checks_file import ChecksError, read
    from proxy.checks.junit import junit as as_junit
    from proxy.checks.summary import summarise
    from proxy.cli.http import NO_PROXY
    from proxy.client import Unreachable

    settings = settings_of({"home": home})
    client = client_of(home)
    try:
        plan = _plan(settings, client, read(file), versions, at_once, examples)
        if not settings.store.key_from:
            plan = plan._replace(cache=AnswerCache(settings.home, reads=not fresh))
        rows = asyncio.run(_rows(settings, client, plan, quiet=as_json))
    except ChecksError as error:
        fail(str(error))
    except Unreachable as error:
        fail(f"{error} Answers that came are kept: the same command goes on.", NO_PROXY)
    except OSError as error:
        fail(f"an answer could not be kept ({error.strerror}); free some space, and the same command goes on.")
    except KeyboardInterrupt:
        fail("stopped; answers that came are kept, and the same command goes on.", INTERRUPTED)
    numbers = [each.version for each in plan.versions]
    summary = summarise(plan.suite, numbers, rows, _episodes(client, plan.suite, numbers))
    try:
        if not settings.store.key_from:
            results.keep(settings.home, summary)
        if junit is not None:
            junit.write_bytes(as_junit(summary))
    except OSError as error:
        fail(f"{error.filename or 'a result'} could not be written ({error.strerror}); all answers are kept.")
    if as_json:
        print_json(summary)
    else:
        from proxy.cli.checks.tables import show_evaluation

        show_evaluation(summary)
    if not any(row.answer for row in rows) and plan.suite.prompt:
        fail(f"no prompt was answered: {rows[0].problem}")
    if strict and find_failures(plan.suite, [row for row in rows if row.version == numbers[-1]]):
        raise typer.Exit(1)


def _plan(
    settings: Settings, client: HomeClient, suite: Suite, versions: str | None, at_once: int, examples: int
) -> EvalPlan:
    """Raises ChecksError; ends the command where the proxy refuses or is not there."""
    from proxy.checks.answers import AnswerCache
    from proxy.checks.checks_file import ChecksError
    from proxy.cli.checks import captured
    from proxy.cli.checks.shots import base_with_examples

    listing = client.call("GET", "/rl/adapters")
    model = client.call("GET", "/rl/status")["model"]
    candidates = choose_versions(versions, listing, model)
    if suite.captured is not None:
        prompts = captured.prompts(client, suite.captured)
        if not prompts and not suite.prompt:
            raise ChecksError(
                "no captured prompt is left to ask: those that trained are left out unless [captured] has "
                "`trained = true`. Nothing was asked."
            )
        suite = suite.with_prompts(prompts)
    if examples:
        excluded = {prompt.completion for prompt in suite.prompt if prompt.completion}
        candidates.insert(1, base_with_examples(client, model, examples, excluded))
    if settings.store.key_from:
        print("The home is encrypted: neither answers nor results are kept on the disk.", file=sys.stderr)
    return EvalPlan(suite, candidates, model, at_once, AnswerCache(None))


def choose_versions(text: str | None, listing: Mapping[str, Any], model: str) -> list[AskedVersion]:
    """The versions that `text` names, in its order. Raises ChecksError."""
    from proxy.checks.checks_file import ChecksError
    from proxy.checks.evaluation import AskedVersion

    created = {adapter["version"]: adapter["created_at"] for adapter in listing["data"] if adapter["path"]}
    names = ["base", f"v{listing['live']}"] if text is None else [name.strip() for name in text.split(",")]
    numbers = []
    for name in names:
        number = "0" if name == "base" else name.removeprefix("v")
        if not number.isdecimal() or len(number) > 9 or (int(number) and int(number) not in created):
            raise ChecksError(f"there is no version {name!r}; `rlproxy adapters` lists them. Nothing was asked.")
        numbers.append(int(number))
    numbers = list(dict.fromkeys(numbers))
    if len(numbers) > MOST_VERSIONS:
        raise ChecksError(f"{len(numbers)} versions are too many: name at most {MOST_VERSIONS}. Nothing was asked.")
    return [
        AskedVersion(
            number, f"{model}@v{number}" if number else f"{model}@base", f"{model}|{number}|{created.get(number)}"
        )
        for number in numbers
    ]


async def _rows(settings: Settings, client: HomeClient, plan: EvalPlan, *, quiet: bool) -> list[EvaluationRow]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from proxy.checks.checks_file import JudgeCheck
    from proxy.checks.criteria import Criteria
    from proxy.checks.evaluation import Evaluation
    from proxy.cli.checks.ask import ask_through, judge_of
    from proxy.cli.tables import error_console

    columns = (
        TextColumn("asked"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    async with AsyncExitStack() as stack:
        judged = any(isinstance(check, JudgeCheck) for check in plan.suite.check)
        judge = await stack.enter_async_context(judge_of(settings, client, plan.model)) if judged else None
        criteria = Criteria(plan.suite, judge)
        stack.push_async_callback(criteria.stop)
        progress = stack.enter_context(
            Progress(*columns, console=error_console(), disable=quiet and not sys.stderr.isatty())
        )
        task = progress.add_task("", total=len(plan.versions) * len(plan.suite.prompt), note="")
        cached = 0

        def tell(row: EvaluationRow) -> None:
            nonlocal cached
            cached += row.is_cached
            progress.update(task, advance=1, note=f"{cached} known from before" if cached else "")

        evaluation = Evaluation(plan.suite, criteria, ask_through(client), plan.cache, at_once=plan.at_once)
        return await evaluation.run(plan.versions, tell)


def _episodes(client: HomeClient, suite: Suite, versions: Sequence[int]) -> list[dict[str, Any]]:
    """Success of these versions in the episodes that never train, where the file asks for it."""
    if suite.episodes is None:
        return []
    counts = client.call("GET", "/rl/episodes?limit=1")["versions"]
    return [each for each in counts if each["split"] == suite.episodes.split and each["version"] in versions]
