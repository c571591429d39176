"""`rlproxy judge`: what people say next, who labels it, and how far that agrees with their ratings."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from proxy.cli.common import AsJson, Home, client_of, print_json, some, unix_seconds

judge_app = typer.Typer()


@judge_app.command()
def judge(
    accept: Annotated[bool, typer.Option("--accept", help="Accept what leaves this machine.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Show what people say next, and how far the judge agrees with their ratings."""
    client = client_of(home)
    answer = client.call("POST", "/rl/judge/accept") if accept else client.call("GET", "/rl/judge")
    if as_json:
        print_json(answer)
    else:
        _show(answer)


@judge_app.command()
def rescore(
    since: Annotated[datetime | None, typer.Option(help="From this day or moment on, local time.")] = None,
    episodes: Annotated[
        bool, typer.Option("--episodes", help="Episodes that no run has used, with your train.reward.")
    ] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Score stored turns with your own code, signals.module and signals.check; or episodes, with train.reward."""
    body = {"since": unix_seconds(since) if since else 0.0, "episodes": episodes}
    answer = client_of(home).call("POST", "/rl/rescore", body)
    if as_json:
        print_json(answer)
    elif episodes:
        print(f"{some(answer['left'], 'episode')} scored in the background; `rlproxy episodes` shows the rewards")
    else:
        print(f"{some(answer['left'], 'turn')} scored in the background; `rlproxy judge` says how many are left")


def _show(report: dict[str, Any]) -> None:
    from rich.table import Table

    from proxy.cli.tables import console
    from proxy.core.version_names import label

    out = console()
    out.print(f"mode {report['mode']}" + (f", judge {report['model']} at {report['url']}" if report["model"] else ""))
    if report["mode"] != "off":
        out.print(report["statement"])
    cost = report["cost"]
    waits = f": {report['waits_for']}" if report["waits_for"] else ""
    out.print(f"{some(report['waiting'], 'signal')} waiting{waits}")
    out.print(f"{cost['today']} of {cost['daily']} tokens today, {cost['all']} in all")
    counts = Table("signal", "label", "by", "count", box=None)
    for row in report["signals"]:
        counts.add_row(row["kind"], row["label"] or row["state"], row["judge"], str(row["count"]))
    if report["signals"]:
        out.print(counts)
    if own_code := report["own"]:
        out.print(
            f"your own code: {some(own_code['left'], 'turn')} left"
            + (f"; {own_code['problem']}" if own_code["problem"] else "")
        )
    if check := report["check"]:
        out.print(
            f"your own check: {some(check['flagged'], 'answer')} flagged, {check['unchecked']} left"
            + (f"; {check['problem']}" if check["problem"] else "")
        )
    for judge_row in report["judges"]:
        out.print(f"\n{judge_row['judge']}: {judge_row['state']}")
        table = Table("finds", "shared", "kappa (95 %)", "both", "person only", "judge only", "neither", box=None)
        for side in ("bad", "good"):
            agreement = judge_row[side]
            low, high = agreement["interval"] or (0.0, 0.0)
            kappa = "" if agreement["kappa"] is None else f"{agreement['kappa']:.2f} ({low:.2f} to {high:.2f})"
            cells = (str(agreement["table"][name]) for name in ("both", "person_only", "judge_only", "neither"))
            table.add_row(side, f"{agreement['shared']} of {agreement['needed']}", kappa, *cells)
        out.print(table)
        for turn in judge_row["disagreements"]:
            out.print(f"  {turn['completion_id']}: people {turn['person']:+.1f}, the judge {turn['judge']:+.1f}")
    for version in report["by_version"]:
        name = label(version["version"])
        praise = version["praise"] or 0.0
        out.print(f"{name}: {version['characters'] or 0:.0f} characters an answer, {praise:.0%} praise their reader")
