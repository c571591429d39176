"""The flow of `rlproxy init`: looks, asks, shows, writes, installs, proves.

Owns the order of these and the words between them. Until the person has agreed to what is shown, nothing is written;
what is done by `proxy.cli.init`'s modules says what went wrong in one sentence.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config.backend_kinds import BACKENDS
from config.settings import Settings
from proxy.backends.lmstudio import FOLDER
from proxy.cli.common import command_for, mask, some
from proxy.cli.init import discovery, environment, extras, plan, smoke_test
from proxy.cli.init.answers import Answers, read
from proxy.cli.init.console import Console, Interrupted
from proxy.cli.init.extras import CannotInstall
from proxy.cli.init.plan import InitPlan, NotWritable
from proxy.cli.init.questions import Choices, Interview, Surroundings, keys
from proxy.cli.init.smoke_test import Proof, Unproven
from proxy.cli.service.managers import Manager, NoService, find
from proxy.core.address_file import address


@dataclass(frozen=True, slots=True)
class ConfirmedPlan:
    """The plan as the person saw it, and all that carrying it out needs."""

    plan: InitPlan
    choices: Choices
    machine: environment.ThisMachine
    service: Manager | None  # what starts rlproxy at login, if that was chosen
    asks: bool  # whether somebody is there to be asked more
    installs: bool  # whether pip may run without a question


def agree(console: Console, settings: Settings, answers: Path | None, *, asks: bool) -> ConfirmedPlan | None:
    """Nothing is written in here; None where the person says no. Raises BadAnswers, NotWritable, Interrupted."""
    given_answers = read(answers) if answers else Answers()
    home = settings.home.absolute()
    manager = find(home)
    urls = [url for url in (given_answers.url, settings.backend.url, os.environ.get("OLLAMA_HOST", "")) if url]
    servers = asyncio.run(discovery.look([*urls, *discovery.loopback()], keys(settings.backend, given_answers.url)))
    agents = environment.agents(settings.home)
    surroundings = Surroundings(servers, agents, environment.machine(home), settings, manager.kind if manager else None)
    _show_found(console, surroundings)
    models_dir = settings.backend.models_dir or Path(FOLDER).expanduser()
    choices = Interview(surroundings, given_answers, console if asks else None, models_dir).choices()
    init_plan = plan.make(home, choices)
    service = manager if choices.start_at_login else None
    _show_plan(console, init_plan, choices, service)
    if asks and (init_plan.changes or service) and not console.agree("Write this?", default=True):
        return None
    return ConfirmedPlan(init_plan, choices, surroundings.machine, service, asks, bool(given_answers.install))


def _show_found(console: Console, surroundings: Surroundings) -> None:
    console.say(f"Machine   {surroundings.machine.line}")
    for server in surroundings.servers:
        models = ", ".join(m.name for m in server.models[:6]) or "no model"
        further_models = f" and {len(server.models) - 6} more" if len(server.models) > 6 else ""
        console.say(
            f"Server    {server.kind} {server.version}".rstrip() + f" at {server.url}: {models}{further_models}"
        )
        if server.note:
            console.say(f"          {server.note}")
    if not surroundings.servers:
        console.say("Server    none runs on the usual ports; the built-in one needs none")
    names = [f"{a.name}{' (connected)' if a.connected else ''}" for a in surroundings.agents]
    console.say(f"Agents    {', '.join(names) or 'none that I know'}")


def _show_plan(console: Console, init_plan: InitPlan, choices: Choices, service: Manager | None) -> None:
    if choices.weights and choices.why_weights:  # a guess has to be looked at, also by who was not asked
        console.say(f"Weights   {choices.weights}: {choices.why_weights}")
    console.say()
    for change in init_plan.changes:
        console.say(mask(change.diff().rstrip("\n"), *init_plan.keys))
    if service is not None:
        console.say(f"+++ {service.file}\n" + "\n".join(f"+{line}" for line in service.text().splitlines()))
    if init_plan.backup:
        console.say(f"The settings as they were are kept: {init_plan.backup.file}")
    if not (init_plan.changes or service):
        console.say("Nothing has to be written: the settings are these already.")
    for note in init_plan.notes:
        console.say(f"Note: {note}")
    if choices.out_of_reach:
        console.say(f"Note: {choices.out_of_reach}")
    if not choices.weights and not BACKENDS[choices.kind].tells_weights:
        console.say("Note: without weights to train, answers are kept and rated, and nothing trains.")


# From then on


def carry_out(console: Console, confirmed_plan: ConfirmedPlan, *, start: bool) -> dict[str, Any]:
    """The report that `--json` prints. A failure is its `problem`; steps that follow from it are left out."""
    init_plan, choices = confirmed_plan.plan, confirmed_plan.choices
    report = {
        "file": str(init_plan.file.file), "changed": init_plan.file.changes, "settings": plan.values(choices),
        "backup": init_plan.backup and str(init_plan.backup.file), "agents": list(init_plan.agents),
        "notes": init_plan.notes, "why_weights": choices.why_weights, "written": [], "missing": None, "proof": None,
        "next": None, "problem": None,
    }  # fmt: skip
    serve = command_for("rlproxy serve", init_plan.settings).strip("`")
    try:
        was_running = smoke_test.running(init_plan.settings) if start or confirmed_plan.service else None
        plan.write(init_plan)
        report["written"] = [str(change.file) for change in init_plan.changes]
        for agent in init_plan.agents:
            undo = command_for(f"rlproxy disconnect {agent}", init_plan.settings)
            console.say(f"{agent} is connected. {undo} undoes it.")
        report["missing"] = _install(console, confirmed_plan)
        if report["missing"] or not start:
            report["next"] = report["missing"] or serve
        elif was_running is not None and init_plan.file.changes and not confirmed_plan.service:
            process = f" (process {was_running})" if was_running else ""
            console.say(f"rlproxy runs{process} with the settings from before: stop it, and start it again.")
            report["next"] = serve
        else:
            report["proof"] = _prove(console, confirmed_plan, runs=was_running is not None)
        if choices.out_of_reach:
            report["problem"] = f"Answers are kept and rated, and nothing trains yet. {choices.out_of_reach}"
    except (NotWritable, CannotInstall, Unproven, NoService) as error:
        report["problem"] = str(error)
    except (Interrupted, KeyboardInterrupt):
        report["problem"] = f"Interrupted; what was written stays, and `{serve}` starts it."
    if report["problem"]:
        print(f"rlproxy: {report['problem']}", file=sys.stderr)
    return report


def _install(console: Console, confirmed_plan: ConfirmedPlan) -> str | None:
    """The command that has still to be run, or None where nothing is missing any more."""
    choice = (confirmed_plan.choices.kind, confirmed_plan.choices.weights, confirmed_plan.machine.kind)
    if not (names := extras.missing(*choice)):
        return None
    command = extras.command(names)
    words = shlex.join(command)
    console.say(f"\nTraining here needs the extra {', '.join(names)}, which is not installed:\n  {words}")
    if not (confirmed_plan.asks or confirmed_plan.installs):
        return words
    console.say("Asking pip how much that is…")
    _show_download(console, extras.download(command), confirmed_plan.machine)
    if confirmed_plan.asks and not console.agree(f"Install it into {sys.prefix} now?", default=False):
        return words
    extras.install(command)
    if incomplete := extras.missing(*choice):
        raise CannotInstall(f"pip is done, and {', '.join(incomplete)} is still not whole: look at what it said.")
    return None


def _show_download(console: Console, download: extras.Download, machine: environment.ThisMachine) -> None:
    size = (
        "of unknown size, as some index does not tell it"
        if download.gb is None
        else f"{download.gb:.1f} GB to download"
    )
    console.say(f"{len(download.packages)} packages, {size}: {', '.join(download.packages)}")
    if download.cuda and machine.kind == "cpu":
        torch = next((package for package in download.packages if package.startswith("torch==")), "torch")
        console.say(
            "There is no NVIDIA GPU here, and these are PyTorch's packages for one. Its build for CPUs is a tenth of "
            f"that: install it first, with `pip install {torch} --index-url …` as PyTorch's start page says for CPU, "
            "then this."
        )


def _prove(console: Console, confirmed_plan: ConfirmedPlan, *, runs: bool) -> dict[str, Any]:
    settings, service, wait = confirmed_plan.plan.settings, confirmed_plan.service, _waiting(console)
    process: int | None = None
    if service is not None:
        if runs and not service.state().running:  # by hand: the two would fight for the home folder
            install = command_for("rlproxy service install", settings)
            raise Unproven(f"rlproxy runs already, started by hand: stop it, then {install}.")
        service.install()
        console.say(f"{service.name} starts now, and at every login.")
        smoke_test.until_ready(settings, wait, lambda: False, settings.home / "logs" / smoke_test.LOG)
    elif not runs:
        console.say("\nrlproxy starts…")
        if settings.backend.kind == "builtin":
            console.say("Its model is loaded first, and fetched where it is not here yet: a minute or more.")
        process = smoke_test.start(settings, wait)
    console.say(f"One question: {smoke_test.QUESTION}")
    proof = smoke_test.prove(
        settings,
        confirmed_plan.choices.model,
        wait,
        lambda proof, compares: _show_seen(console, proof, compares=compares),
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
    if proof.match:
        console.say(f"  {proof.match}")
    elif proof.was_awaited:
        console.say(f"  Not known yet; {command_for('rlproxy doctor', settings)} will say it.")
    console.say("That rating is taken back: it was not an opinion.\n")
    url = address(settings)
    console.say(f"Point your agent's base URL here: {url}/v1    The page: {url}/")
    good, bad, chat, watch = (
        command_for(f"rlproxy {arguments}", settings)
        for arguments in ("good", "bad too long", "chat", "status --watch")
    )
    console.say(f"Rate its answers: {good} or {bad}, `/rl good` as a message in your agent, or on the page.")
    console.say(f"Talk to it right here with {chat}; {watch} shows what it waits for and what it learns.")
    if process is not None:
        console.say(
            f"rlproxy runs in the background as process {process}; `kill {process}` stops it, and "
            f"{command_for('rlproxy serve', settings)} starts it again."
        )


def _waiting(console: Console) -> Callable[[float], None]:
    """Says now and then that it still waits."""
    last_notice = [0.0]

    def wait(seconds: float) -> None:
        if seconds - last_notice[0] >= 10:
            last_notice[0] = seconds
            console.say(f"  still waiting, {seconds:.0f} s")
        elif seconds < last_notice[0]:
            last_notice[0] = 0.0

    return wait
