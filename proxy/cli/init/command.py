"""`rlproxy init`: looks, asks, shows, writes, installs, proves.

Owns the order of these and the words between them. Until the person has agreed to what is shown, nothing is written;
what is done by `proxy.cli.init`'s modules says what went wrong in one sentence.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proxy.cli.common import Home, command_for, fail, masked, settings_of, some

if TYPE_CHECKING:
    from config.settings import Settings
    from proxy.cli.init.answers import Answers
    from proxy.cli.init.console import Console
    from proxy.cli.init.extras import Needed
    from proxy.cli.init.plan import InitPlan
    from proxy.cli.init.questions import Choices, Surroundings
    from proxy.cli.init.smoke_test import Proof
    from proxy.cli.service import Manager

KEPT = "Interrupted; nothing was written."


def init(
    home: Home = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing: the defaults.")] = False,
    answers: Annotated[
        Path | None, typer.Option("--answers", help="Ask nothing: a TOML or JSON file, docs/start/quick-start.md.")
    ] = None,
    start: Annotated[bool, typer.Option("--start/--no-start", help="Start rlproxy and prove that it works.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with --yes or --answers.")] = False,
) -> None:
    """Set rlproxy up: finds your model server and your agents, asks five questions, and shows that it works."""
    from proxy.cli.init.answers import Answers, BadAnswers, read
    from proxy.cli.init.console import Console, Interrupted
    from proxy.cli.init.plan import NotWritable, make

    asks = not (yes or answers)
    if asks and (as_json or not sys.stdin.isatty()):
        fail("init asks questions, and here is nobody to answer them: use --yes, or --answers FILE.", 2)
    console = Console(sys.stderr if as_json else sys.stdout)
    settings = settings_of({"home": home})
    try:
        given = read(answers) if answers else Answers()
        found, manager = _look(settings, given.url)
        _show_found(console, found)
        choices = _ask(settings, found, given, console if asks else None)
        plan = make(settings.home.absolute(), choices)
        _show_plan(console, plan, choices, manager)
        something = bool(plan.changes) or choices.start_at_login
        if asks and something and not console.agree("Write this?", default=True):
            fail("Nothing was written.")
    except BadAnswers as error:
        fail(str(error), 2)
    except NotWritable as error:
        fail(str(error))
    except (Interrupted, KeyboardInterrupt):
        fail(KEPT)
    report = _carry_out(console, plan, choices, found, manager, given, asks=asks, start=start)
    if choices.out_of_reach and not report["problem"]:
        report["problem"] = f"Answers are kept and rated, and nothing trains yet. {choices.out_of_reach}"
        print(f"rlproxy: {report['problem']}", file=sys.stderr)
    if as_json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    if report["problem"]:
        raise typer.Exit(1)


# Until something is written


def _look(settings: Settings, answered: str | None) -> tuple[Surroundings, Manager | None]:
    import asyncio

    from proxy.cli.init import discovery, environment
    from proxy.cli.init.questions import Surroundings, keys
    from proxy.cli.service import find

    urls = [u for u in (answered, settings.backend.url, os.environ.get("OLLAMA_HOST", "")) if u]
    servers = asyncio.run(discovery.look([*urls, *discovery.loopback()], keys(settings.backend, answered)))
    manager = find(settings.home.absolute())
    agents = environment.agents(settings.home)
    kind = manager.kind if manager else None
    return Surroundings(servers, agents, environment.machine(settings.home.absolute()), settings, kind), manager


def _show_found(console: Console, found: Surroundings) -> None:
    console.say(f"Machine   {found.machine.line}")
    for server in found.servers:
        models = ", ".join(m.name for m in server.models[:6]) or "no model"
        more = f" and {len(server.models) - 6} more" if len(server.models) > 6 else ""
        console.say(f"Server    {server.kind} {server.version}".rstrip() + f" at {server.url}: {models}{more}")
        if server.note:
            console.say(f"          {server.note}")
    if not found.servers:
        console.say("Server    none runs on the usual ports; the built-in one needs none")
    names = [f"{a.name}{' (connected)' if a.connected else ''}" for a in found.agents]
    console.say(f"Agents    {', '.join(names) or 'none that I know'}")


def _ask(settings: Settings, found: Surroundings, given: Answers, console: Console | None) -> Choices:
    from proxy.backends.lmstudio import FOLDER
    from proxy.cli.init.questions import Interview

    models_dir = settings.backend.models_dir or Path(FOLDER).expanduser()
    return Interview(found, given, console, models_dir).choices()


def _show_plan(console: Console, plan: InitPlan, choices: Choices, manager: Manager | None) -> None:
    if choices.weights and choices.why_weights:  # a guess has to be looked at, also by who was not asked
        console.say(f"Weights   {choices.weights}: {choices.why_weights}")
    console.say()
    for change in plan.changes:
        console.say(masked(change.diff().rstrip("\n"), *plan.keys))
    if choices.start_at_login and manager is not None:
        console.say(f"+++ {manager.file}\n" + "\n".join(f"+{line}" for line in manager.text().splitlines()))
    if plan.backup:
        console.say(f"The settings as they were are kept: {plan.backup.file}")
    if not plan.changes and not choices.start_at_login:
        console.say("Nothing has to be written: the settings are these already.")
    for note in plan.notes:
        console.say(f"Note: {note}")
    if choices.out_of_reach:
        console.say(f"Note: {choices.out_of_reach}")
    if not choices.weights and choices.kind in ("ollama", "lmstudio", "llamacpp", "openai"):
        console.say("Note: without weights to train, answers are kept and rated, and nothing trains.")


# From then on


def _carry_out(
    console: Console, plan: InitPlan, choices: Choices, found: Surroundings, manager: Manager | None, given: Answers,
    *, asks: bool, start: bool,
) -> dict[str, Any]:  # fmt: skip
    """Everything after the agreement; what fails is said, and what follows from it left out."""
    from proxy.cli.init.extras import CannotInstall
    from proxy.cli.init.plan import NotWritable, write
    from proxy.cli.init.smoke_test import Unproven, running
    from proxy.cli.service import NoService

    report = _report(plan, choices)
    serve = command_for("rlproxy serve", plan.settings).strip("`")
    try:
        was_running = running(plan.settings) if start or choices.start_at_login else None
        write(plan)
        report["written"] = [str(change.file) for change in plan.changes]
        for agent in plan.agents:
            undo = command_for(f"rlproxy disconnect {agent}", plan.settings)
            console.say(f"{agent} is connected. {undo} undoes it.")
        report["missing"] = _install(console, choices, found, given, asks=asks)
        if report["missing"]:
            report["next"] = report["missing"]
            return report
        if not start:
            report["next"] = serve
        elif was_running is not None and plan.file.changes and not choices.start_at_login:
            process = f" (process {was_running})" if was_running else ""
            console.say(f"rlproxy runs{process} with the settings from before: stop it, and start it again.")
            report["next"] = serve
        else:
            report["proof"] = _prove(console, plan.settings, choices, manager, runs=was_running is not None)
    except (NotWritable, CannotInstall, Unproven, NoService) as error:
        report["problem"] = str(error)
    except KeyboardInterrupt:
        report["problem"] = f"Interrupted; what was written stays, and `{serve}` starts it."
    if report["problem"]:
        print(f"rlproxy: {report['problem']}", file=sys.stderr)
    return report


def _report(plan: InitPlan, choices: Choices) -> dict[str, Any]:
    from proxy.cli.init.plan import values

    return {
        "file": str(plan.file.file), "changed": plan.file.changes, "settings": values(choices),
        "backup": plan.backup and str(plan.backup.file), "agents": list(plan.agents), "notes": plan.notes,
        "why_weights": choices.why_weights, "written": [], "missing": None, "proof": None, "next": None,
        "problem": None,
    }  # fmt: skip


def _install(console: Console, choices: Choices, found: Surroundings, given: Answers, *, asks: bool) -> str | None:
    """The command that has still to be run, or None where nothing is missing any more."""
    from proxy.cli.init import extras

    names = extras.missing(choices.kind, choices.weights, found.machine.kind)
    if not names:
        return None
    needed = extras.needed(names)
    command = extras.in_words(needed.command)
    console.say(f"\nTraining here needs the extra {', '.join(names)}, which is not installed:\n  {command}")
    if not asks and not given.install:
        return command
    console.say("Asking pip how much that is…")
    _show_download(console, needed, found)
    if asks and not console.agree(f"Install it into {sys.prefix} now?", default=False):
        return command
    extras.install(needed)
    if still := extras.missing(choices.kind, choices.weights, found.machine.kind):
        raise extras.CannotInstall(f"pip is done, and {', '.join(still)} is still not whole: look at what it said.")
    return None


def _show_download(console: Console, needed: Needed, found: Surroundings) -> None:
    from proxy.cli.init import extras

    what = extras.download(needed.command)
    size = "of unknown size, as some index does not tell it" if what.gb is None else f"{what.gb:.1f} GB to download"
    console.say(f"{len(what.packages)} packages, {size}: {', '.join(what.packages)}")
    if what.cuda and found.machine.kind == "cpu":
        torch = next((word for word in needed.command if word.startswith("torch")), "torch")
        console.say(
            "There is no NVIDIA GPU here, and these are PyTorch's packages for one. Its build for CPUs is a tenth of "
            f"that: install it first, with `pip install {torch} --index-url …` as PyTorch's start page says for CPU, "
            "then this."
        )


def _prove(
    console: Console, settings: Settings, choices: Choices, manager: Manager | None, *, runs: bool
) -> dict[str, Any]:
    from proxy.cli.init import smoke_test

    wait = _waiting(console)
    process: int | None = None
    if choices.start_at_login and manager is not None:
        if runs and not manager.state().running:  # by hand: the two would fight for the home folder
            install = command_for("rlproxy service install", settings)
            raise smoke_test.Unproven(f"rlproxy runs already, started by hand: stop it, then {install}.")
        manager.install()
        console.say(f"{manager.name} starts now, and at every login.")
        smoke_test.until_ready(settings, wait, lambda: False, settings.home / "logs" / smoke_test.LOG)
    elif not runs:
        console.say("\nrlproxy starts…")
        process = smoke_test.start(settings, wait)
    console.say(f"One question: {smoke_test.QUESTION}")
    proof = smoke_test.prove(
        settings, choices.model, wait, lambda proof, more: _show_seen(console, proof, compares=more)
    )
    _show_end(console, settings, proof, process)
    ratings = proof.status["ratings"]
    return {
        "completion_id": proof.completion, "answer": proof.answer, "rated": proof.rated, "seconds": proof.seconds,
        "fresh": ratings["fresh"], "needed": ratings["needed"], "match": proof.match, "process": process,
        "waits_for": proof.status["training"]["waits_for"],
    }  # fmt: skip


def _show_seen(console: Console, proof: Proof, *, compares: bool) -> None:
    ratings, training = proof.status["ratings"], proof.status["training"]
    console.say(f"  {' '.join(proof.answer.split()) or '(an empty answer)'}")
    console.say(f"kept as {proof.completion}, after {proof.seconds:.1f} s; rated good, and the status shows it:")
    console.say(f"  {some(ratings['fresh'], 'rating')}; training {training['line']}")
    if compares:
        console.say(
            "Does the server run the weights that would train? Both are asked the same; a minute or so on a CPU…"
        )


def _show_end(console: Console, settings: Settings, proof: Proof, process: int | None) -> None:
    from proxy.core.address_file import address

    if proof.match:
        console.say(f"  {proof.match}")
    elif proof.asked:
        console.say(f"  Not known yet; {command_for('rlproxy doctor', settings)} will say it.")
    console.say("That rating is taken back: it was not an opinion.\n")
    url = address(settings)
    console.say(f"Point your agent's base URL here: {url}/v1    The page: {url}/")
    good, bad, chat, watch = (
        command_for(f"rlproxy {what}", settings) for what in ("good", "bad too long", "chat", "status --watch")
    )
    console.say(f"Rate its answers: {good} or {bad}, `/rl good` as a message in your agent, or on the page.")
    console.say(f"Talk to it right here with {chat}; {watch} shows what it waits for and what it learns.")
    if process is not None:
        console.say(
            f"rlproxy runs in the background as process {process}; `kill {process}` stops it, and "
            f"{command_for('rlproxy serve', settings)} starts it again."
        )


def _waiting(console: Console) -> Any:
    """Says now and then that it still waits."""
    said = [0.0]

    def wait(seconds: float) -> None:
        if seconds - said[0] >= 10:
            said[0] = seconds
            console.say(f"  still waiting, {seconds:.0f} s")
        elif seconds < said[0]:
            said[0] = 0.0

    return wait
