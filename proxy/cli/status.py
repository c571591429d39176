"""`rlproxy status`: what is shown, once or each second.

Owns the rows and the redrawing. While it watches, the terminal's other screen is used, so that Ctrl-C leaves behind
nothing but what was there before. A proxy that goes away is said in its place, and waited for.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from proxy.cli.common import of_line, print_json, some
from proxy.cli.http import HomeClient
from proxy.cli.rendering_words import side_by_side
from proxy.cli.tables import acceptance, console, gate, verdict
from proxy.client import Refused, Unreachable
from proxy.conversation.modalities import in_words
from proxy.core.version_names import version_in_words

PATH: Final = "/rl/status"
EVERY_S: Final = 1.0
UNDER_WAY: Final = ("claimed", "running")  # of a run
ENOUGH: Final = 8  # ratings of one kind, after which the other is missed


def show(client: HomeClient, line: str | None = None, *, as_json: bool) -> None:
    status = client.call("GET", of_line(PATH, line))
    if as_json:
        print_json(status)
    else:
        console().print(table(status, client.url))


def watch(client: HomeClient, line: str | None = None, *, as_json: bool, fail: Callable[[str, int], None]) -> None:
    """Until Ctrl-C. `as_json`: a line a second, for programs."""
    if not as_json and not sys.stdout.isatty():
        fail("--watch draws on a terminal, and here is none; with --json it prints a line each second.", 2)
    path = of_line(PATH, line)
    client.call("GET", path)  # a wrong key or a wrong home is said at once, as without --watch
    previous_handler = signal.signal(signal.SIGTERM, _end)
    try:
        if as_json:
            while True:
                print_json(client.call("GET", path), indent=None)
                time.sleep(EVERY_S)
        with Live(console=console(), screen=True, auto_refresh=False) as live:
            while True:
                live.update(_now(client, path), refresh=True)
                time.sleep(EVERY_S)
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


def _end(*_: object) -> None:
    """Act as Ctrl-C does: the terminal is given back first."""
    raise KeyboardInterrupt


def _now(client: HomeClient, path: str) -> RenderableType:
    foot = Text(f"\n{time.strftime('%H:%M:%S')}, each second; Ctrl-C ends it", style="dim")
    try:
        return Group(table(client.ask("GET", path), client.url), foot)
    except (Unreachable, Refused) as error:
        return Group(Text(str(error), style="red"), foot)


def table(s: dict[str, Any], url: str) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    learning = [*_ratings(s), *_episodes(s), *_rollouts(s), *_training(s)]
    for name, value, style in [*_answering(s, url), *learning, *_health(s)]:
        grid.add_row(name, Text(value, style=style))
    return grid


Row = tuple[str, str, str]  # name, value, style


def _answering(s: dict[str, Any], url: str) -> list[Row]:
    rows: list[Row] = [("base URL", f"{url}/v1", "")]
    trains = s["trains"]
    if trains:
        rows.append(("model", f"{s['model'] or 'whichever is asked for'}, not ours", ""))
    else:
        previous = f" (before: {version_in_words(s['previous'])})" if s["previous"] != s["live"] else ""
        answering = f"{version_in_words(s['live'])} answers{previous}"
        rows.append(("model", f"{s['model'] or 'not known yet'}, {answering}", ""))
    if other_lines := [line for line in s.get("lines", ()) if line != s["line"]]:
        rows.append(("line", f"{s['line']}; also {', '.join(other_lines)} (`rlproxy line list`)", ""))
    if further := s.get("further_models"):
        rows.append(("also", f"{', '.join(further)}: captured and rated, and never trained", ""))
    if changed := s.get("changed"):
        rows.append(("changed", f"{changed['line']}; `rlproxy adapters v{s['live']}` shows it", ""))
    rows.append(("backend", s["backend"]["state"], ""))
    if trains:
        rows.append(("trains", trains["line"], ""))
    elif s["backend"]["lacks"]:
        rows.append(("", s["backend"]["lacks"], "yellow"))
    return rows


def _ratings(s: dict[str, Any]) -> list[Row]:
    ratings = s["ratings"]
    unusable = f", {ratings['stale']} too old to train" if ratings["stale"] else ""
    if untrainable := ratings["untrainable"]:
        unusable += f", {sum(untrainable.values())} never train ({', '.join(map(in_words, untrainable))})"
    kinds = f"{ratings['good']} good, {ratings['bad']} bad"
    _, _, pace = ratings["line"].partition(", ")  # about when that is
    progress = f"{ratings['fresh']} of the {ratings['needed']} that start a run{', ' if pace else ''}{pace}"
    if _never_trains(s):
        progress = f"{ratings['fresh']} that no run has used"
    rows: list[Row] = [("ratings", f"{progress}: {kinds}{unusable}", "")]
    if ratings["fresh"] >= ENOUGH and min(ratings["good"], ratings["bad"]) == 0:
        rows.append(("", "only one kind of rating: rate the other kind too", "yellow"))
    if waiting := ratings.get("dampened"):
        waiting_raters = ", ".join(f"{n} of {rater}" for rater, n in sorted(waiting.items()))
        rows.append(("", f"waiting for other raters: {waiting_raters}", "yellow"))
    if (last := s["last_run"]) and (s["baseline"] or last["status"] not in UNDER_WAY):
        line = f"{s['baseline']:+.2f}: your ratings in earlier runs on average, from -1 (bad) to +1 (good)"
        rows.append(("average", line, ""))
    return rows


def _episodes(s: dict[str, Any]) -> list[Row]:
    """Nothing where there has never been one."""
    if not (episodes := s.get("episodes")):
        return []
    line = f"{episodes['ready']} of the {episodes['needed']} that start a run"
    line += f", {episodes['forming']} in groups that have not closed" if episodes["forming"] else ""
    rows: list[Row] = [("episodes", f"{line}; {episodes['open']} open, {episodes['rewarded']} rewarded", "")]
    if episodes["ended_lately"]:
        rows.append(("", f"{episodes['ended_lately']} ended in the last minute", ""))
    requests = episodes["requests"]
    if requests["waiting"]:
        places = f"{requests['at_backend']} at the backend, {requests['waiting']} wait (backend.episodes_at_once)"
        rows.append(("", f"their requests: {places}", ""))
    metrics = (s["last_run"] or {}).get("metrics") or {}
    if group_count := int(metrics.get("groups_kept", 0)):
        rows.append(("", f"last run: {some(group_count, 'group')} compared", ""))
    if episodes["left_out"]:
        rows.append(("", "left out: " + ", ".join(f"{n} {reason}" for reason, n in episodes["left_out"].items()), ""))
    if episodes.get("own_reward_problem"):
        rows.append(("", f"train.reward: {episodes['own_reward_problem']}", "yellow"))
    if episodes["unrewarded"]:
        rows.append(("", f"{episodes['unrewarded']} without a request for an hour: their reward is missing", "yellow"))
    return rows


def _rollouts(s: dict[str, Any]) -> list[Row]:
    return [("rollouts", s["rollouts"]["line"], "")] if s.get("rollouts") else []


def _never_trains(s: dict[str, Any]) -> bool:
    """Tell if no number of ratings starts a run: a cloud without a local model, or a backend that takes no adapter."""
    return not s["trains"]["model"] if s["trains"] else not s["backend"].get("adapters", True)


def _training(s: dict[str, Any]) -> list[Row]:
    training, rows = s["training"], list[Row]()
    last = s["last_run"]
    if last and last["id"] != training["run"]:  # else it is told as this run
        reason = f": {last['reason']}" if last["reason"] else ""
        ended = f"made v{last['version']}" if last.get("version") else last["status"]
        rows.append(("last run", f"{last['id']}, {ended}{reason}", ""))
        if gate(last):
            rows.append(("its gate", verdict(last), "" if gate(last).startswith("passed") else "yellow"))
        if accepted := acceptance(last["metrics"] or {}):
            rows.append(("", accepted, ""))
    rows.append(("this run" if training["run"] else "next run", training["line"], ""))
    if training["run"] and (accepted := acceptance(training["progress"].get("filter") or {})):
        rows.append(("", accepted, ""))
    # How a rebuild ended is told until another run has something to tell.
    if (rebuild := s["rebuild"]) and (
        rebuild["state"] == "under way" or not last or last["id"] <= max(rebuild["runs"], default=0)
    ):
        rows.append(("forgotten", rebuild["line"], "yellow" if rebuild["state"] == "under way" else ""))
    if judge := s.get("judge"):
        rows.append(("judge", judge["line"], ""))
    if monitor := s["watch"]:
        rows.append(("watch", monitor["line"], "red" if monitor["state"] == "rolled back" else ""))
    return rows


def _health(s: dict[str, Any]) -> list[Row]:
    counts = s["counts"]
    unfinished_counts = [f"{counts[k]} {k}" for k in ("pending", "partial") if counts[k]]
    whole_answers = f"{some(counts['done'], 'whole answer')}, {counts['captured_today']} today"
    unfinished_note = f" ({', '.join(unfinished_counts)})" if unfinished_counts else ""
    rows: list[Row] = [
        ("captured", f"{whole_answers}{unfinished_note}; rated {counts['good']} good, {counts['bad']} bad", "")
    ]
    failures = some(counts["error"], "failed answer") if counts["error"] else "no failed answers"
    rows.append(("errors", failures, "yellow" if counts["error"] else ""))
    if s["database"]["state"] == "checking":
        seconds = time.time() - s["database"]["checked_since"]
        rows.append(("database", f"{s['database']['line']} ({seconds:.0f} s by now)", "yellow"))
    rows += _prompts(s)
    rows += _images(s["images"])
    if s["problem"]:
        rows.append(("problem", s["problem"], "red"))
    return rows


def _images(images: dict[str, Any]) -> list[Row]:
    """Nothing where no prompt had a picture."""
    rows: list[Row] = []
    if images["decoded"] or images["refused"] or images["waiting"]:
        refused = f", {images['refused']} refused" if images["refused"] else ""
        waiting = f", {images['waiting']} to be decoded" if images["waiting"] else ""
        rows.append(("pictures", f"{images['decoded']} decoded{refused}{waiting}", ""))
        if images["untrained"]:
            rows.append(("", f"answers about them do not train: {images['untrained']}", "yellow"))
    if images["problem"]:
        rows.append(("", images["problem"], "yellow"))
    return rows


def _prompts(s: dict[str, Any]) -> list[Row]:
    """Answers that a run would not train on as they were sent, or not at all."""
    rendering, rehearsal = s["match"]["rendering"], s["rehearsal"]
    rows: list[Row] = []
    if texts := side_by_side(rendering):
        rows.append(("template", rendering["line"], "" if rendering["known"] else "yellow"))
        rows += [("", text, "") for text in texts]
    if rehearsal["refused"]:
        rows.append(("prompts", rehearsal["line"], "yellow"))
        if len(rehearsal["reasons"]) > 1:
            rows += [("", f"{count} × {reason}", "yellow") for reason, count in rehearsal["reasons"].items()]
    if s["cut"]:
        rows.append(("cut", s["cut"], "yellow"))
    return rows
