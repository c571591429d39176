"""Copy the numbers of each training run into MLflow or Weights & Biases, while it trains.

    python integrations/trackers/follow.py mlflow|wandb [--url http://127.0.0.1:8484]

It follows rlproxy's events (`GET /rl/events`) and changes nothing there: a tracker that fails costs no run. Where the
tracker is, and its key, its own variables say (MLFLOW_TRACKING_URI, WANDB_API_KEY, WANDB_MODE). An rlproxy with keys
wants one of role `rate` in RLPROXY_API_KEY. For another tracker, write a class with the three methods of `MLflow`.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, Protocol

PAUSE_S = 5.0  # before a connection that broke is made again
STEP = ("loss", "acceptance", "kl_ref", "kl_old", "kl_teacher", "grad_norm", "rate")


class Tracker(Protocol):
    """One experiment tracker. A run has a name, numbers by step, and a status when it ends."""

    def begin(self, run: int, facts: dict[str, Any]) -> None: ...
    def log(self, numbers: dict[str, float], step: int) -> None: ...
    def end(self, status: str) -> None: ...


class MLflow:
    def __init__(self) -> None:
        import mlflow

        self._mlflow = mlflow
        mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "rlproxy"))

    def begin(self, run: int, facts: dict[str, Any]) -> None:
        self._mlflow.start_run(run_name=f"run-{run}")
        self._mlflow.log_params(facts)

    def log(self, numbers: dict[str, float], step: int) -> None:
        self._mlflow.log_metrics(numbers, step=step)

    def end(self, status: str) -> None:
        self._mlflow.set_tag("status", status)
        self._mlflow.end_run("FAILED" if status in ("failed", "cancelled") else "FINISHED")


class WeightsAndBiases:
    def __init__(self) -> None:
        import wandb

        self._wandb, self._run = wandb, None

    def begin(self, run: int, facts: dict[str, Any]) -> None:
        project = os.environ.get("WANDB_PROJECT", "rlproxy")
        self._run = self._wandb.init(project=project, name=f"run-{run}", config=facts, reinit="finish_previous")

    def log(self, numbers: dict[str, float], step: int) -> None:
        self._run.log({**numbers, "step": step})

    def end(self, status: str) -> None:
        self._run.summary["status"] = status
        self._run.finish(exit_code=int(status in ("failed", "cancelled")))


class Follower:
    """Hands the events of runs to a tracker. A run that was under way before is taken up at its next event."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._run: int | None = None
        self._step = 0

    def event(self, data: dict[str, Any]) -> None:
        kind, run = data.get("event"), data["run"]
        if run != self._run:
            self._run, self._step = run, 0
            self._tracker.begin(run, {name: data[name] for name in ("samples", "attempt") if name in data})
        if kind == "step":
            self._step = data["step"]
            self._tracker.log({name: data[name] for name in STEP if data.get(name) is not None}, self._step)
        elif kind == "gate":
            checks = {name: check["value"] for name, check in data["checks"].items() if check["value"] is not None}
            self._tracker.log({f"gate/{name}": value for name, value in checks.items()}, self._step)
        elif kind == "ended":
            self._tracker.end(data["status"])
            self._run = None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A key goes where it was sent, and nowhere else."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Events:
    """The `run` events of a proxy, across lost connections: each once."""

    def __init__(self, url: str, key: str | None) -> None:
        self._url, self._key = url.rstrip("/"), key
        self._newest: str | None = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            try:
                yield from self._connected()
            except urllib.error.HTTPError as error:
                raise SystemExit(f"{self._url} answered {error.code}: {error.read().decode()[:300]}") from None
            except OSError as error:
                print(f"{self._url} does not answer ({error}); it is asked again.", flush=True)
            time.sleep(PAUSE_S)

    def _connected(self) -> Iterator[dict[str, Any]]:
        headers = {} if self._key is None else {"authorization": f"Bearer {self._key}"}
        if self._newest is not None:
            headers["last-event-id"] = self._newest
        kind = ""
        request = urllib.request.Request(f"{self._url}/rl/events", headers=headers)
        with urllib.request.build_opener(_NoRedirect).open(request) as response:
            print(f"following {self._url}", flush=True)
            for line in map(bytes.decode, response):
                name, _, value = line.rstrip("\r\n").partition(": ")
                if name == "id":
                    self._newest = value
                elif name == "event":
                    kind = value
                elif name == "data" and kind == "run":
                    yield json.loads(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tracker", choices=("mlflow", "wandb"))
    parser.add_argument("--url", default=os.environ.get("RLPROXY_URL", "http://127.0.0.1:8484"))
    arguments = parser.parse_args()
    follower = Follower(MLflow() if arguments.tracker == "mlflow" else WeightsAndBiases())
    for event in Events(arguments.url, os.environ.get("RLPROXY_API_KEY")):
        follower.event(event)


if __name__ == "__main__":
    main()
