"""The `rlproxy` command.

Owns words, options, tables and exit codes. Every command but `serve` and `config` asks the running proxy over HTTP.
Heavy imports are inside the commands: `--help` must be quick.

Exit codes: 0 done, 1 refused or failed, 2 wrong use, 3 no proxy answers.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from proxy.cli_encrypt import encrypt_app
from proxy.cli_forget import cancel, forget
from proxy.cli_init import init
from proxy.cli_keys import keys_app
from proxy.cli_service import service_app

if TYPE_CHECKING:
    from proxy.cli_client import Client

app = typer.Typer(
    name="rlproxy",
    help="Capture what your model answers, rate it, and watch it learn: an OpenAI-compatible proxy that trains inline.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
config_app = typer.Typer(help="The settings.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(config_app, name="config")
app.add_typer(service_app, name="service")
app.command()(init)
audit_app = typer.Typer(help="The audit log: who did what.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(audit_app, name="audit")
app.add_typer(encrypt_app)  # no name: commands of their own
app.add_typer(keys_app, name="keys")

Home = Annotated[
    Path | None,
    typer.Option("--home", help="Folder with everything rlproxy keeps.", show_default="~/.rlproxy"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Rater = Annotated[str | None, typer.Option(help="Who rates.", show_default="owner")]
Session = Annotated[str | None, typer.Option(help="The last main turn of this session.")]
Comment = Annotated[list[str] | None, typer.Argument(help="Why; it trains too.")]
Completion = Annotated[str, typer.Option("--id", help="The completion; without it the last main turn.")]


def main() -> None:
    app()


def fail(message: str, code: int = 1) -> NoReturn:
    print(f"rlproxy: {message}", file=sys.stderr)
    raise typer.Exit(code)


def _client(home: Path | None) -> Client:
    from proxy.cli_client import Client

    return Client(_settings({"home": home}))


def _settings(flags: dict[str, Any]) -> Any:
    from config.errors import SettingsError
    from config.settings import load

    try:
        return load(flags).settings
    except SettingsError as error:
        fail(str(error), 2)


def _secret(settings: Any) -> Any:
    """The database's key, where it has one. Raises StoreError."""
    from store.secret import find

    return find(settings.store.key_from, settings.home)


def _print(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


@app.command()
def serve(
    home: Home = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one.", show_default="8484")] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            help="builtin, vllm, sglang, llamacpp, ollama, lmstudio, mlx, or openai (a cloud, any other).",
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
    settings = _settings({
        "home": home, "server.host": host, "server.port": port, "backend.kind": backend, "backend.url": backend_url,
        "backend.model": model, "backend.threads": threads, "train.weights": weights, "train.start_at": start_at,
        "log.level": log_level,
    })  # fmt: skip
    import asyncio

    from proxy import server
    from proxy.errors import ProxyError
    from store.errors import StoreError

    server.configure_logs(settings.log.level, settings.log.format == "json")
    try:
        asyncio.run(server.serve(settings, server.key_of(settings)))
    except (ProxyError, StoreError) as error:
        fail(str(error))
    except OSError as error:
        fail(
            f"{settings.server.host}:{settings.server.port} could not be listened on ({error}); choose another --port."
        )


# Ratings


@app.command()
def good(
    comment: Comment = None, id: Completion = "", session: Session = None, rater: Rater = None, home: Home = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Rate an answer good."""
    _rate("good", comment, id, session, rater, home, as_json)


@app.command()
def bad(
    comment: Comment = None, id: Completion = "", session: Session = None, rater: Rater = None, home: Home = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Rate an answer bad."""
    _rate("bad", comment, id, session, rater, home, as_json)


def _rate(
    word: str,
    comment: list[str] | None,
    id: str,
    session: str | None,
    rater: str | None,
    home: Path | None,
    as_json: bool,
) -> None:
    body: dict[str, Any] = {
        "rating": word,
        "comment": " ".join(comment or ()) or None,
        "rater": rater,
        "source": "cli",
    }
    if session and not id:
        body["session"] = session
    else:
        body["completion_id"] = id or "last"
    found = _client(home).call("POST", "/v1/feedback", body)
    if as_json:
        _print(found)
    else:
        print(
            f"rated {word}: {found['completion_id']}" + (" (replaces your earlier rating)" if found["replaced"] else "")
        )


@app.command()
def undo(
    rating: Annotated[str, typer.Argument(help="The rating; without it your newest.")] = "last",
    session: Session = None,
    rater: Rater = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Take a rating back."""
    from urllib.parse import quote, urlencode

    query = urlencode({k: v for k, v in (("rater", rater), ("session", session)) if v})
    found = _client(home).call("DELETE", f"/v1/feedback/{quote(rating, safe='')}?{query}")
    if as_json:
        _print(found)
    else:
        print(f"taken back: the rating of {found['completion_id']}")


@app.command()
def chat(
    version: Annotated[str | None, typer.Option("--version", help="v3 or base.", show_default="the live one")] = None,
    vs: Annotated[str | None, typer.Option("--vs", help="Another one beside it; you pick, blindly.")] = None,
    system: Annotated[str | None, typer.Option("--system", help="What the model is told first.")] = None,
    model: Annotated[str | None, typer.Option(help="Of a backend with many; without it the proxy's own.")] = None,
    home: Home = None,
) -> None:
    """Talk to a version, compare two, rate with one key."""
    from proxy.cli_chat import Chat

    if not sys.stdin.isatty() or not sys.stdout.isatty():
        fail("chat needs a terminal; for programs there is /v1/chat/completions.", 2)
    client = _client(home)
    name = model or client.call("GET", "/rl/status")["model"]
    if not name:
        fail("this backend has many models; say which one with --model.", 2)
    Chat(client, name, version, vs, system).run()


# Learning


@app.command()
def status(
    home: Home = None,
    watch: Annotated[bool, typer.Option("--watch", help="Keep it up to date until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """What answers, what is collected, and what training waits for."""
    from proxy import cli_status

    if watch:
        cli_status.watch(_client(home), as_json=as_json, fail=fail)
    else:
        cli_status.show(_client(home), as_json=as_json)


@app.command()
def doctor(
    home: Home = None,
    bundle: Annotated[
        Path | None, typer.Option("--bundle", help="Write all of it for a bug report, without any conversation.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What works, what does not, and what to do about it."""
    from proxy import doctor
    from proxy.cli_tables import show_checks

    facts = doctor.gather(_settings({"home": home}))
    checks = doctor.examine(facts)
    if bundle is not None:
        from proxy.bundle import NotBundled, write

        try:
            print(f"{bundle} has {', '.join(write(bundle, facts, checks))}; look into it first.", file=sys.stderr)
        except NotBundled as error:
            fail(str(error))
    if as_json:
        _print([check._asdict() for check in checks])
    else:
        show_checks(checks)
    if any(check.state == "problem" for check in checks):
        raise typer.Exit(1 if facts.answers else 3)


@app.command()
def train(home: Home = None, as_json: AsJson = False) -> None:
    """Start a run now, however few ratings there are."""
    _act(home, as_json, "/rl/train", lambda found: f"a run starts: {found['why']}")


@app.command()
def pause(home: Home = None, as_json: AsJson = False) -> None:
    """No training until `resume`; a run under way stops at its next step."""
    _act(home, as_json, "/rl/pause", lambda _: "training is paused")


@app.command()
def resume(home: Home = None, as_json: AsJson = False) -> None:
    """Train again; a run that was stopped goes on from its checkpoint."""
    _act(home, as_json, "/rl/resume", lambda _: "training goes on")


app.command()(cancel)


@app.command()
def rollback(
    home: Home = None,
    base: Annotated[bool, typer.Option("--base", help="All the way to the base model.")] = False,
    as_json: AsJson = False,
) -> None:
    """Back to the version that was live before, at once."""
    _act(home, as_json, "/rl/rollback" + ("?base" if base else ""), _live)


@app.command()
def promote(
    version: Annotated[str, typer.Argument(help="v3, 3 or base.")], home: Home = None, as_json: AsJson = False
) -> None:
    """Make any version live."""
    from urllib.parse import quote

    _act(home, as_json, f"/rl/promote/{quote(version, safe='')}", _live)


@app.command()
def reset(home: Home = None, as_json: AsJson = False) -> None:
    """Start over from the base model; nothing is deleted, `promote` brings a version back."""
    _act(home, as_json, "/rl/reset", lambda _: "the base model answers, and the next run starts from it")


def _act(home: Path | None, as_json: bool, path: str, say: Any) -> None:
    found = _client(home).call("POST", path)
    if as_json:
        _print(found)
    else:
        print(say(found))


def _live(found: dict[str, Any]) -> str:
    live = found["live"]
    return f"v{live} is live" if live else "the base model is live"


@app.command()
def adapters(home: Home = None, as_json: AsJson = False) -> None:
    """The versions, with their gate numbers."""
    found = _client(home).call("GET", "/rl/adapters")
    if as_json:
        _print(found["data"])
        return
    from proxy.cli_tables import show_adapters

    show_adapters(found)


@app.command()
def runs(
    run: Annotated[int | None, typer.Argument(help="One run in full: gate, choices, odd replies.")] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """The training runs, with what the gate said."""
    found = _client(home).call("GET", "/rl/runs" if run is None else f"/rl/runs/{run}")
    if as_json:
        _print(found["data"] if run is None else found)
        return
    from proxy.cli_tables import show_run, show_runs

    if run is None:
        show_runs(found["data"])
    else:
        show_run(found)


@app.command()
def export(
    home: Home = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write; without it stdout.")] = None,
    rated: Annotated[bool, typer.Option("--rated", help="Rated completions only.")] = False,
    session: Annotated[str | None, typer.Option(help="Of this session only.")] = None,
    user: Annotated[str | None, typer.Option(help="Of this person only.")] = None,
    version: Annotated[int | None, typer.Option(help="Of this version only; 0 is the base.")] = None,
    turn: Annotated[str | None, typer.Option(help="main or side turns only.")] = None,
    since: Annotated[datetime | None, typer.Option(help="From this day or moment on, local time.")] = None,
    until: Annotated[datetime | None, typer.Option(help="Before this day or moment.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array instead of JSON lines.")] = False,
) -> None:
    """What was captured, one completion a line: docs/export.md."""
    from urllib.parse import urlencode

    only: dict[str, Any] = {"session": session, "user": user, "version": version, "turn": turn}
    only |= {"since": since and int(since.timestamp()), "until": until and int(until.timestamp())}
    query = urlencode({k: v for k, v in {"rated": 1 if rated else None, **only}.items() if v is not None})
    lines = _client(home).lines(f"/rl/export?{query}")
    out = output.open("w", encoding="utf-8") if output else sys.stdout
    count = 0
    try:
        for line in lines:
            if as_json:
                out.write("[\n" if count == 0 else ",\n")
            out.write(line if as_json else line + "\n")
            count += 1
        if as_json:
            out.write("\n]\n" if count else "[]\n")
    finally:
        if output:
            out.close()
    if output:
        print(f"{count} completions written to {output}", file=sys.stderr)


@app.command()
def capture(
    what: Annotated[str, typer.Argument(help="off or on.")],
    session: Annotated[str, typer.Argument(help="The session, as in /s/SESSION/v1.")],
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Keep nothing of a session from now on, or keep it again."""
    found = _client(home).call("POST", "/rl/capture", {"session": session, "capture": what})
    if as_json:
        _print(found)
    else:
        print(f"session {session}: " + ("nothing is kept from now on" if what == "off" else "captured again"))


app.command()(forget)


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="What `rlproxy export` wrote.")],
    ours: Annotated[bool, typer.Option("--ours", help="Its version numbers are those of this home.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Take in an export; what is here already is passed over."""
    from proxy.cli_import import Unreadable, batches

    client = _client(home)
    total: dict[str, Any] = {"stored": 0, "known": 0, "ratings": 0, "refused": []}
    try:
        for first, lines in batches(file):
            found = client.post_lines("/rl/import" + ("?ours" if ours else ""), lines)
            for key in ("stored", "known", "ratings"):
                total[key] += found[key]
            total["refused"] += [{**one, "line": one["line"] + first} for one in found["refused"]]
    except Unreadable as error:
        fail(str(error))
    if as_json:
        _print(total)
    else:
        print(f"{total['stored']} completions and {total['ratings']} ratings taken, {total['known']} were here before")
        for one in total["refused"]:
            print(f"line {one['line']} was not taken: {one['why']}", file=sys.stderr)
    if total["refused"]:
        raise typer.Exit(1)


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")],
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Copy the database into one file, also while rlproxy runs."""
    from store import schema
    from store.backup import backup as make
    from store.errors import StoreError

    try:
        settings = _settings({"home": home})
        size = make(settings.home / schema.NAME, file, _secret(settings))
    except StoreError as error:
        fail(str(error))
    if as_json:
        _print({"file": str(file), "bytes": size})
    else:
        print(f"{size / 1e6:.1f} MB written to {file}; adapters are files of their own, copy adapters_out too")


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="What `rlproxy backup` wrote.")],
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Put a backup in the database's place; refused while rlproxy runs, or where the backup is not whole."""
    from store.backup import restore as put
    from store.errors import StoreBusy, StoreError

    try:
        settings = _settings({"home": home})
        kept = put(settings.home, file, _secret(settings))
    except StoreBusy as busy:
        fail(f"{busy} Stop it first; nothing was changed.")
    except StoreError as error:
        fail(str(error))
    if as_json:
        _print({"restored": str(file), "kept": kept and str(kept)})
    else:
        print(f"{file} is restored" + (f"; what was there before is {kept}" if kept else ""))


@audit_app.command("verify")
def audit_verify(
    home: Home = None,
    expect: Annotated[str | None, typer.Option(help="A newest hash that you noted before.")] = None,
    as_json: AsJson = False,
) -> None:
    """Whether no line of the log was changed or taken out; also while rlproxy runs."""
    from store.backup import audit_verdict
    from store.errors import StoreError

    try:
        settings = _settings({"home": home})
        verdict = audit_verdict(settings.home, expect, _secret(settings))
    except StoreError as error:
        fail(str(error))
    if as_json:
        _print(verdict._asdict())
    elif verdict.problem is None:
        print(f"{verdict.lines} lines, unbroken. The newest hash, to be noted elsewhere: {verdict.head}")
    if verdict.problem is not None:
        fail(f"the audit log is broken after {verdict.lines} lines: {verdict.problem}.")


# Agents

Agent = Annotated[
    str, typer.Argument(help="claude-code, codex, opencode, openclaw, aider, continue, open-webui or llm.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be written, and write nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command()
def connect(
    agent: Agent,
    model: Annotated[str | None, typer.Option(help="The model's name; without it the proxy is asked.")] = None,
    dry_run: DryRun = False, yes: Yes = False, home: Home = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Point an agent's own settings here, and give it a /rl command."""
    from proxy import cli_agents
    from proxy.cli_client import NO_PROXY, NoProxyAnswers

    try:
        found = cli_agents.connect(_settings({"home": home}), agent, model, dry_run=dry_run, yes=yes, quiet=as_json)
    except cli_agents.Refused as refused:
        fail(str(refused))
    except NoProxyAnswers as error:
        fail(str(error), NO_PROXY)
    if as_json:
        _print(found)
        return
    if found["files"]:
        state = "would be connected" if dry_run else "is connected" if found["changed"] else "was connected already"
        print(f"{agent} {state}: {found['url']}, model {found['model']}. `rlproxy disconnect {agent}` undoes it.")
    print(found["note"])


@app.command()
def disconnect(
    agent: Agent, dry_run: DryRun = False, yes: Yes = False, home: Home = None, as_json: AsJson = False
) -> None:
    """Take that back: the files as they were, to the byte where nobody changed them since."""
    from proxy import cli_agents

    try:
        found = cli_agents.disconnect(_settings({"home": home}), agent, dry_run=dry_run, yes=yes, quiet=as_json)
    except cli_agents.Refused as refused:
        fail(str(refused))
    if as_json:
        _print(found)
    else:
        print(f"{agent} {'would be' if dry_run else 'is'} disconnected")


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
    from proxy.retention import as_it_is
    from store.errors import StoreError

    try:
        loaded = load({"home": home}, file=file)
        rows = as_it_is(loaded.describe(), loaded.settings.home)
    except SettingsError as error:
        fail(str(error), 2)
    except StoreError as error:
        fail(str(error))
    if as_json:
        _print([row._asdict() for row in rows])
        return
    from proxy.cli_tables import show_settings

    show_settings(rows)


if __name__ == "__main__":
    main()
