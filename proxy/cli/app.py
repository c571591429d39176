"""The `rlproxy` command.

Owns which commands there are, and those that are about rlproxy itself: serve, doctor, connect, config. The others stand
in a module for each subject. Every command but `serve` and `config` asks the running proxy over HTTP, or opens a home
that nobody serves. Heavy imports are inside the commands: `--help` must be quick.

Exit codes: 0 done, 1 refused or failed, 2 wrong use, 3 no proxy answers.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Annotated

import typer

from config import backend_kinds
from proxy.cli.checks.command import eval_app
from proxy.cli.common import AsJson, DryRun, Home, print_json, settings_of, show
from proxy.cli.data import data_app
from proxy.cli.database.encrypt import encrypt_app
from proxy.cli.database.migrate import migrate_app
from proxy.cli.episodes import episodes_app
from proxy.cli.experiment import experiment_app
from proxy.cli.failing import fail
from proxy.cli.help_texts import Grouped
from proxy.cli.init.command import init
from proxy.cli.judge import judge_app
from proxy.cli.keys import keys_app
from proxy.cli.learn import learn_app
from proxy.cli.lessons import lessons_app
from proxy.cli.lines import line_app
from proxy.cli.model_export.command import model_app
from proxy.cli.plan import plan_app
from proxy.cli.rate import rate_app
from proxy.cli.retrain.command import retrain_app
from proxy.cli.service.command import service_app

app = typer.Typer(
    name="rlproxy",
    cls=Grouped,
    help="Capture what your model answers, rate it, and watch it learn: an OpenAI-compatible proxy that trains inline.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(init)
for commands in (
    plan_app,
    rate_app,
    learn_app,
    retrain_app,
    episodes_app,
    eval_app,
    judge_app,
    data_app,
    encrypt_app,
    migrate_app,
):  # no name: commands of their own
    app.add_typer(commands)
config_app = typer.Typer(help="The settings.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(config_app, name="config")
app.add_typer(service_app, name="service")
app.add_typer(keys_app, name="keys")
app.add_typer(line_app, name="line")
app.add_typer(lessons_app, name="lessons")
app.add_typer(model_app, name="model")
app.add_typer(experiment_app, name="experiment")


def _say_version(is_requested: bool) -> None:
    if is_requested:
        from importlib.metadata import version

        print(f"rlproxy {version('rlproxy')}")
        raise typer.Exit


@app.callback()
def _about(
    version: Annotated[
        bool, typer.Option("--version", help="Say which version this is.", is_eager=True, callback=_say_version)
    ] = False,
) -> None: ...


@app.command()
def serve(
    home: Home = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one.", show_default="8484")] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(backend_kinds.LEARNING)}, or openai (a cloud, any other).",
            show_default="builtin",
        ),
    ] = None,
    backend_url: Annotated[str | None, typer.Option(help="Where the backend answers.")] = None,
    model: Annotated[str | None, typer.Option(help="The model's name at the backend.")] = None,
    weights: Annotated[str | None, typer.Option(help="Its weights for training: a folder or a hub id.")] = None,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads of the built-in backend.", show_default="auto")
    ] = None,
    start_at: Annotated[int | None, typer.Option(help="Fresh ratings that start a run.", show_default="32")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.", show_default="info")] = None,
) -> None:
    """Run the proxy until Ctrl-C."""
    gc.disable()  # next to nothing that a start makes is garbage, and to look for it takes a tenth of the start
    settings = settings_of({
        "home": home, "server.host": host, "server.port": port, "backend.kind": backend, "backend.url": backend_url,
        "backend.model": model, "backend.threads": threads, "train.weights": weights, "train.start_at": start_at,
        "log.level": log_level,
    })  # fmt: skip
    _structlog_without_rich()
    import asyncio

    from proxy import server
    from proxy.core.errors import ProxyError
    from proxy.core.start_errors import CannotStart
    from store.errors import StoreBusy, StoreError

    server.configure_logs(settings.log.level, settings.log.format == "json")
    try:
        asyncio.run(server.serve(settings, server.key_of(settings)))
    except StoreBusy as busy:
        end = f"end it (`kill {busy.pid}`)" if busy.pid else "end it"
        fail(f"{busy} If that is the rlproxy you want, use it; else {end}, or keep another home: --home FOLDER.")
    except (ProxyError, StoreError, CannotStart) as error:
        fail(str(error))


def _structlog_without_rich() -> None:
    """It loads rich where that is found, to draw tracebacks, and ours are plain: 3 MB, and a tenth of the start."""
    if "structlog" in sys.modules or "rich" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]  # nothing of this name is found
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]


@app.command()
def stop(home: Home = None, as_json: AsJson = False) -> None:
    """End the rlproxy of this home, as Ctrl-C does: answers under way may end first."""
    from proxy.cli.service.stop import stop_proxy

    settings = settings_of({"home": home})
    pid = stop_proxy(settings)
    show({"pid": pid}, as_json, f"rlproxy (process {pid}) has ended; `rlproxy serve` starts it again")


@app.command()
def doctor(
    home: Home = None,
    bundle: Annotated[
        Path | None, typer.Option("--bundle", help="Write all of it for a bug report, without any conversation.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what works, what does not, and what to do about it."""
    from proxy.cli.doctor import checks as doctor
    from proxy.cli.tables import show_checks

    facts = doctor.gather(settings_of({"home": home}))
    checks = doctor.examine(facts)
    if bundle is not None:
        from proxy.cli.doctor.bundle import NotBundled, write

        try:
            print(f"{bundle} has {', '.join(write(bundle, facts, checks))}; look into it first.", file=sys.stderr)
        except NotBundled as error:
            fail(str(error))
    if as_json:
        print_json([check._asdict() for check in checks])
    else:
        show_checks(checks)
    if any(check.state == "problem" for check in checks):
        raise typer.Exit(1 if facts.answers else 3)


# Agents

Agent = Annotated[
    str,
    typer.Argument(
        help="claude-code, codex, opencode, openclaw, aider, continue, hermes, cursor, open-webui, llm, or matrix."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command()
def connect(
    agent: Agent,
    model: Annotated[str | None, typer.Option(help="The model's name; without it the proxy is asked.")] = None,
    key: Annotated[str | None, typer.Option(help="The key that it shows; without it one is made if needed.")] = None,
    panel: Annotated[
        bool | None,
        typer.Option("--panel/--no-panel", help="Open `watch` beside claude-code or codex.", show_default="as before"),
    ] = None,
    user: Annotated[list[str] | None, typer.Option(help="Matrix: the user id of your agent; several times.")] = None,
    homeserver: Annotated[str | None, typer.Option(help="Matrix: where the homeserver answers.")] = None,
    dry_run: DryRun = False, yes: Yes = False, home: Home = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Point an agent's own settings here, and give it a /rl command."""
    from proxy.cli.agents import command
    from proxy.cli.agents.agent_keys import CannotConnect, ConnectOptions
    from proxy.cli.http import NO_PROXY
    from proxy.client import Unreachable

    settings, options = settings_of({"home": home}), ConnectOptions(model, key, dry_run, yes, as_json, panel)
    try:
        if agent == "matrix":
            outcome = command.connect_matrix(settings, homeserver, user or [], options)
            reached = f"The homeserver reaches rlproxy, in {outcome['ms']:.0f} ms." if outcome["ms"] is not None else ""
            show(outcome, as_json, reached or outcome["note"])
            return
        outcome = command.connect(settings, agent, options)
    except CannotConnect as refused:
        fail(str(refused))
    except Unreachable as error:
        fail(str(error), NO_PROXY)
    if as_json:
        print_json(outcome)
        return
    if outcome["files"]:
        state = "would be connected" if dry_run else "is connected" if outcome["changed"] else "was connected already"
        print(f"{agent} {state}: {outcome['url']}, model {outcome['model']}. `rlproxy disconnect {agent}` undoes it.")
    print(outcome["note"])


@app.command()
def disconnect(
    agent: Agent, dry_run: DryRun = False, yes: Yes = False, home: Home = None, as_json: AsJson = False
) -> None:
    """Take that back: the files as they were, to the byte where nobody changed them since."""
    from proxy.cli.agents import command
    from proxy.cli.agents.agent_keys import CannotConnect

    try:
        outcome = command.disconnect(settings_of({"home": home}), agent, dry_run=dry_run, yes=yes, quiet=as_json)
    except CannotConnect as refused:
        fail(str(refused))
    show(outcome, as_json, f"{agent} {'would be' if dry_run else 'is'} disconnected")


# Settings


@config_app.command("show")
def config_show(
    home: Home = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="Settings file.", show_default="HOME/rlproxy.toml")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Every setting, its value, and where that came from."""
    from config.errors import SettingsError
    from config.settings import load
    from proxy.web.retention import as_it_is
    from store.errors import StoreError

    try:
        loaded = load({"home": home}, file=file)
        rows = as_it_is(loaded.describe(), loaded.settings.home)
    except SettingsError as error:
        fail(str(error), 2)
    except StoreError as error:
        fail(str(error))
    if as_json:
        print_json([row._asdict() for row in rows])
        return
    from proxy.cli.tables import show_settings

    show_settings(rows)
