"""Whole runs in this process: what one leaves, what it reports, and where it stops."""

import io
import json

from safetensors.numpy import load_file

from tests.harness import tiny
from trainer import loop
from trainer.io.progress import Progress, Stop


def go(folder, stop=None):
    out = io.StringIO()
    with Progress(folder, out) as progress:
        result = loop.run(folder, progress, stop or Stop())
    return result, [json.loads(line) for line in out.getvalue().splitlines()]


def of(events, name):
    return [e for e in events if e["event"] == name]


def tensors(adapter):
    return load_file(adapter / "adapter_model.safetensors")


def second(path, model, lines, first, **spec):
    spec = {"version": 2, "parent": 1, "adapters": {"1": str(first)}, "out": str(path / "v0002")} | spec
    return go(tiny.run_folder(path / "run", model, lines, **spec))


class StopAfter(Progress):
    """Asks the run to stop when it reports step n."""

    def __init__(self, folder, stop, step):
        super().__init__(folder)
        self.stop, self.step = stop, step

    def event(self, event, **fields):
        super().event(event, **fields)
        if event == "step" and fields["step"] == self.step:
            self.stop.ask("the test said so")
