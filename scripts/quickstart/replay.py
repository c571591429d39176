"""`make quick-starts`: replay README.md and docs/start/quick-start.md word for word as a new user, and time it.

The replay has a fresh clone of what is committed here and a fresh virtual environment. Each quick start has an empty
HOME and terminals that know nothing (`env -i`, a plain PATH). The commands are those of the pages (pages.py). The
replay shares three things with this machine: pip's settings, XDG_CACHE_HOME, where the small model is, and packages
that were downloaded before. That download is timed apart, and then no index is asked. Real servers come from
scripts/test_backends; Ollama and LM Studio are fakes.

    python -m scripts.quickstart.replay [readme builtin llamacpp mlx ollama lmstudio demo]

The usual ports have to be free; `unshare -n sh -c 'ip link set lo up && …'` has all of them to itself.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from scripts.harness.circumstances import circumstances
from scripts.quickstart.pages import PARTS, ROOT, PageError, Pages
from scripts.quickstart.servers import SERVERS, run
from scripts.quickstart.terminal import Failed, Terminal
from trainer.formats.weights import cache_folder

OUT: Final = ROOT / "benchmarks" / "quick_starts.json"
NAMES: Final = ("readme", "builtin", "llamacpp", "mlx", "ollama", "lmstudio", "demo")
PORTS: Final = (8484, 11434, 8000, 1234, 8080, 30000)  # ours, and those where init looks
RATINGS: Final = 4
RUN_S: Final = 1500.0  # on a machine that others use, too, a run takes several times as long


class Replay:
    """One quick start: what is typed, and how long each step took."""

    def __init__(self, name: str, pages: Pages, folder: Path) -> None:
        self.name, self.pages, self._folder = name, pages, folder
        self.home = folder / name
        self.home.mkdir()
        self.steps: list[dict[str, Any]] = []
        self.terminals: list[Terminal] = []

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.steps.append({"step": name, "seconds": round(time.monotonic() - began, 1)})
        print(f"  {self.name}: {name}, {self.steps[-1]['seconds']} s", flush=True)

    def terminal(self, **env: str) -> Terminal:
        terminal = Terminal(self._folder, {**clean(self.home), **env})
        self.terminals.append(terminal)
        return terminal

    def in_venv(self) -> Terminal:
        terminal = self.terminal()
        terminal.run(self.pages["new terminal"])
        return terminal

    def ask(self, terminal: Terminal) -> dict[str, Any]:
        answered: dict[str, Any] = json.loads(terminal.run(self.pages["ask"]))
        if not answered.get("id", "").startswith("rl-") or not answered["choices"][0]["message"]["content"]:
            raise Failed(f"what answered is no answer of rlproxy's: {answered}")
        return answered

    def first_ratings(self, terminal: Terminal) -> None:
        """The README's: ask, rate, look."""
        with self.step("ask"):
            answered = self.ask(terminal)
        with self.step("rate"):
            terminal.run(self.pages["bad"], shows=f"rated bad: {answered['id']}")
        with self.step("status"):
            terminal.run(self.pages["status"], shows=": 0 good, 1 bad")

    def init(self, terminal: Terminal, answers: str | None) -> int:
        """Returns the process that it left running."""
        option = "--yes"
        if answers is not None:
            (self.home / "answers.toml").write_text(answers)
            option = f"--answers {self.home}/answers.toml"
        with self.step("init"):
            output = terminal.run(f"{self.pages['init']} {option}", shows="rated good, and the status shows it")
        return int(output.split("runs in the background as process ")[1].split(";")[0])

    def learn(self, terminal: Terminal, process: int) -> None:
        """A few ratings, a run with a restart in its middle, and its version answers."""
        with self.step(f"{RATINGS - 1} more ratings"):
            for n in range(1, RATINGS):
                self.ask(terminal)
                terminal.run(self.pages["good" if n % 2 else "bad"], shows="rated ")
        began = time.monotonic()
        with self.step("answers"):
            terminal.run(self.pages["answers"], shows="rl-")
        with self.step("train"):
            terminal.run(self.pages["train"], shows="a run starts")
            self.until(terminal, "the run is under way", lambda status: bool(status["training"]["progress"]))
        serving = self.restart(terminal, process)
        with self.step("the run, until its version is live"):
            self.until(terminal, "v1 is live", lambda status: status["live"] == 1)
        print(f"  {self.name}: from `rlproxy train` to v1, {time.monotonic() - began:.0f} s", flush=True)
        with self.step("v1 answers"):
            headers = terminal.run(self.pages["ask"] + " -o /dev/null -D -").lower()
            if "x-rl-adapter: v1" not in headers:
                raise Failed(f"v1 is live and did not answer: {headers}")
            terminal.run(self.pages["versions"], shows="v1")
            terminal.run(self.pages["status"], shows="v1 answers")
        serving.interrupt()

    def restart(self, terminal: Terminal, process: int) -> Terminal:
        """Restart the proxy as init says: `kill` stops it, `rlproxy serve` starts it; what was rated is still there."""
        with self.step("restart"):
            old_status = status_of(terminal)
            terminal.run(f"kill {process}")
            while alive(process):
                time.sleep(0.1)
            serving = self.serve()
            new_status = status_of(terminal)
            if new_status["counts"] != old_status["counts"]:
                raise Failed(f"after a restart the status says {new_status['counts']}, not {old_status['counts']}")
        return serving

    def serve(self) -> Terminal:
        serving = self.in_venv()
        serving.begin(self.pages["serve"], shows="rlproxy is ready")
        return serving

    def until(self, terminal: Terminal, goal: str, holds: Callable[[dict[str, Any]], bool]) -> None:
        began = time.monotonic()
        while not holds(status := status_of(terminal)):
            last = status["last_run"] or {}
            if last.get("status") in ("rejected", "failed", "empty", "cancelled"):
                raise Failed(f"run {last['id']} is {last['status']}: {last['reason']}")
            if time.monotonic() - began > RUN_S:
                raise Failed(f"after {RUN_S:.0f} s not yet so: {goal}; training {status['training']['line']}")
            time.sleep(1)


def readme(replay: Replay) -> None:
    """The README's way without init."""
    with replay.step("serve"):
        serving = replay.serve()
    replay.first_ratings(replay.in_venv())
    serving.interrupt()


def with_a_run(replay: Replay) -> None:
    terminal = replay.in_venv()
    process = replay.init(terminal, None)
    replay.first_ratings(terminal)
    replay.learn(terminal, process)


def without_a_run(answers: str | None) -> Callable[[Replay], None]:
    def play(replay: Replay) -> None:
        terminal = replay.in_venv()
        process = replay.init(terminal, answers)
        replay.first_ratings(terminal)
        serving = replay.restart(terminal, process)
        with replay.step("status after it"):
            terminal.run(replay.pages["status"], shows=": 0 good, 1 bad")
        serving.interrupt()

    return play


def demo(replay: Replay) -> None:
    with replay.step("demo, QUICK=1"):
        terminal = replay.terminal(QUICK="1")
        terminal.run("cd rlproxy")  # after the clone one is in there
        terminal.run(replay.pages["demo"])


PLAYS: Final[dict[str, Callable[[Replay], None]]] = {
    "readme": readme, "builtin": with_a_run, "llamacpp": with_a_run, "mlx": with_a_run,
    "ollama": without_a_run('backend = "ollama"\nweights = ""\n'), "lmstudio": without_a_run(None), "demo": demo,
}  # fmt: skip


def status_of(terminal: Terminal) -> dict[str, Any]:
    status: dict[str, Any] = json.loads(terminal.run(f"{PARTS['status']} --json"))
    return status


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def clean(home: Path) -> dict[str, str]:
    """The environment of a new user's shell, with what is shared with this machine."""
    shared = {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
    return {
        **shared, "HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TERM": "dumb",
        "XDG_CACHE_HOME": str(cache_folder().parent), "OLLAMA_MODELS": str(home.parent),
    }  # fmt: skip


def downloads() -> tuple[Path, float]:
    """All packages that `make setup` wants, in one folder; the seconds, 0 where they were there."""
    folder = cache_folder() / "quick-starts" / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    locked, limits = ROOT / "scripts" / "locked-dev.txt", ROOT / "scripts" / "constraints.txt"
    stamp, made_from = folder / ".made-from", hashlib.sha256(locked.read_bytes() + limits.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == made_from:
        return folder, 0.0
    began = time.monotonic()
    pip = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "-q", "download", "-d", str(folder)]
    for requirements in (["-c", str(limits), "torch==2.13.0"], ["--require-hashes", "--no-deps", "-r", str(locked)]):
        subprocess.run([*pip, *requirements], check=True)
    stamp.write_text(made_from)
    return folder, time.monotonic() - began


def clone_and_setup(pages: Pages, folder: Path, wheels: Path) -> list[dict[str, Any]]:
    """Once for all: the README's clone and setup, by a new user without a network."""
    origin = folder / "origin" / "rlproxy"
    subprocess.run(["git", "clone", "-q", "--bare", str(ROOT), str(origin)], check=True)
    replay = Replay("setup", pages, folder)
    links = os.environ.get("PIP_FIND_LINKS", "")
    terminal = replay.terminal(PIP_NO_INDEX="1", PIP_FIND_LINKS=f"{wheels} {links}".strip())
    with replay.step("git clone"):
        terminal.run(pages["clone"].replace("<this repository>", str(origin)))
    with replay.step("make setup"):
        terminal.run(pages["setup"], limit_s=1800)
    terminal.run("command -v rlproxy", shows=str(folder))
    terminal.close()
    return replay.steps


def find_taken_ports() -> list[int]:
    ports = []
    for port in PORTS:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                ports.append(port)
    return ports


def play(name: str, pages: Pages, folder: Path) -> dict[str, Any]:
    """One quick start, whatever becomes of it."""
    if ports := find_taken_ports():
        return {"name": name, "steps": [], "problem": f"not replayed: port {ports[0]} is somebody else's"}
    replay, server, problem = Replay(name, pages, folder), None, None
    try:
        if name in SERVERS:
            start = SERVERS[name](replay.home.parent)
            if lacks := [file for file in start.needs if not file.exists()]:
                raise Failed(f"not replayed: {lacks[0].name} is not here; `make test-backends` gets it")
            server = run(start, folder / f"{name}-server.log")
        PLAYS[name](replay)
    except (Failed, PageError, RuntimeError, KeyError, ValueError, IndexError) as error:
        problem = str(error) or repr(error)
    finally:
        end_what_serves(replay.home)
        for terminal in replay.terminals:
            terminal.close()
        if server is not None:
            server.kill()  # mlx_lm.server waits for its threads when told to end
            server.wait()
    return {"name": name, "steps": replay.steps, "problem": problem}


def end_what_serves(home: Path) -> None:
    """A proxy of this HOME that a failure left behind."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        process = json.loads((home / ".rlproxy" / "serving.json").read_text())["pid"]
        os.kill(process, signal.SIGTERM)
        for _ in range(300):
            if not alive(process):
                return
            time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(NAMES)}; without any: all")
    names = parser.parse_args().names or list(NAMES)
    if unknown := set(names) - set(NAMES):
        parser.error(f"there is no quick start {', '.join(unknown)}")
    about = circumstances()
    if about["commit"].endswith("-dirty"):
        print("What is not committed is not replayed: it is a clone.", file=sys.stderr)
    folder = Path(tempfile.mkdtemp(prefix="rlproxy-quick-starts-"))
    try:
        pages = Pages()
        wheels, seconds = downloads()
        setup = clone_and_setup(pages, folder, wheels)
        about |= {"downloads_s": round(seconds, 1), "setup": setup}
        results = []
        for name in names:
            results.append(play(name, pages, folder))
            keep(about, results[-1])
    except (Failed, PageError) as error:
        print(f"{error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for result in results:
        total = sum(step["seconds"] for step in [*setup, *result["steps"]])
        print(f"{result['name']}: {result['problem'] or 'every step'}; {total:.0f} s with clone and setup")
    return 1 if any(result["problem"] for result in results) else 0


def keep(about: dict[str, Any], result: dict[str, Any]) -> None:
    """Quick starts that were not replayed now stay as they were; each says when it was, at which commit and load."""
    load = round(os.getloadavg()[1], 1)  # of the last five minutes, its own share among it
    stamp = {"date": about["date"], "commit": about["commit"], "load": load}
    rows = json.loads(OUT.read_text(encoding="utf-8"))["found"] if OUT.exists() else []
    by_name = {row["name"]: row for row in rows} | {result["name"]: {**result, **stamp}}
    report = {**about, "found": [by_name[name] for name in NAMES if name in by_name]}
    OUT.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
