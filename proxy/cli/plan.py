"""`rlproxy plan`: what a run, the server beside it and a version of one model take, before a rating is spent.

Owns the words and the tables. Nothing is started or written; a config.json may be downloaded. Not here: the formulas
(the trainer's footprint), which way is advised (its estimate), what this machine is (init's environment).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from config import backend_kinds
from proxy.cli.common import AsJson, Home, print_json, settings_of
from proxy.cli.failing import fail

if TYPE_CHECKING:
    from config.settings import Settings
    from trainer.launch import Duration, Estimate, EstimateRequest, Hardware, Way

GB: Final = 2**30
MB: Final = 10**6
BUSY: Final = 1.2  # times the time on a quiet machine, from which on a plan says it
TOKENS, CONTEXT = 300, 4096  # of a rating with its prompt, as most chats have; that Ollama keeps by default
plan_app = typer.Typer()
KINDS: Final = backend_kinds.listed()
PARTS: Final = {
    "base": "weights", "trained": "the adapter and its optimiser", "activations": "activations", "logits": "logits",
    "states": "states and keys", "process": "the process",
}  # fmt: skip


@plan_app.command()
def plan(
    model: Annotated[
        str | None,
        typer.Argument(help="A model's folder, its config.json, or a hub id.", show_default="train.weights"),
    ] = None,
    server: Annotated[str | None, typer.Option(help=f"{KINDS}.", show_default="backend.kind")] = None,
    gpu_gb: Annotated[
        float | None, typer.Option(min=0, help="Memory of the GPU; 0 for none.", show_default="this machine's")
    ] = None,
    ram_gb: Annotated[
        float | None, typer.Option(min=0.1, help="Memory of the machine.", show_default="this machine's")
    ] = None,
    ratings: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Of a run.", show_default="train.start_at")
    ] = None,
    tokens: Annotated[int, typer.Option(min=2, max=1_000_000, help="Of a prompt with its answer.")] = TOKENS,
    context: Annotated[int, typer.Option(min=1, max=10_000_000, help="Tokens that the server keeps.")] = CONTEXT,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Say what training a model takes here: memory, time, and the size of a version."""
    from trainer.launch import EstimateRequest, LaunchError, Workload

    settings = settings_of({"home": home})
    kind = server or settings.backend.kind
    if kind not in backend_kinds.BACKENDS:
        fail(f"There is no server {kind!r}; there is {KINDS}.", 2)
    for size in (gpu_gb, ram_gb):
        if size is not None and not math.isfinite(size):
            fail("A size is a number of GB, as --gpu-gb 24.", 2)
    hardware = hardware_of(settings, gpu_gb, ram_gb)
    try:
        train = settings.train
        request = EstimateRequest(
            kind, hardware, Workload(ratings or train.start_at, tokens), context, train.preset, train.overrides,
            None if model or server else served_bytes(settings),
        )  # fmt: skip
        report = PlanReport.of(settings, model or train.weights, request)
    except LaunchError as error:
        fail(str(error))
    if as_json:
        print_json(report.json())
    else:
        report.show()


def hardware_of(settings: Settings, gpu_gb: float | None = None, ram_gb: float | None = None) -> Hardware:
    """This machine's, but for what is said otherwise."""
    from proxy.cli.init import environment
    from trainer.launch import Hardware, rounds_products

    machine = environment.machine(settings.home.absolute())
    card = machine.accelerator_gb if machine.kind == "cuda" else None
    gpu = card if gpu_gb is None else gpu_gb
    return Hardware(
        round(gpu * GB) if gpu else None, round((machine.memory_gb if ram_gb is None else ram_gb) * GB),
        is_shared=machine.kind == "metal" and gpu_gb is None, rounds=rounds_products(),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlanReport:
    estimate: Estimate
    duration: Duration | None

    @classmethod
    def of(cls, settings: Settings, model: str, request: EstimateRequest) -> PlanReport:
        """Raises LaunchError."""
        from trainer.launch import estimate_run, run_seconds

        estimate = estimate_run(model, request)
        return cls(estimate, run_seconds(estimate, settings.train.threads))

    # In words

    def show(self) -> None:
        from proxy.cli.tables import console

        console().print("\n".join([*self._heading(), ""]), soft_wrap=True)
        console().print(self._ways())
        console().print("\n".join(["", *self._verdict(), ""]), soft_wrap=True)
        console().print(self._versions())

    def _heading(self) -> list[str]:
        estimate, request = self.estimate, self.estimate.request
        shape, serving, kind = estimate.shape, estimate.serving, estimate.server
        layers = " ".join(sorted({name.rpartition(".")[2] for name in estimate.trained}))
        card = f"{gb(request.hardware.gpu)} on the GPU, " if request.hardware.gpu else "no GPU, "
        workload = request.workload
        lines = [
            f"Model    {shape.profile}; {shape.profile.source}",
            f"Trains   {layers}, at rank {estimate.rank}: {estimate.trained_numbers / 1e6:.3g} M numbers",
            f"Machine  {card}{gb(request.hardware.ram)} of memory",
            f"Run      {workload.ratings} ratings, of {workload.tokens} tokens each with their prompt",
        ]
        if kind.bits:
            times = f", {serving.copies} times (the model and two versions)" if serving.copies > 1 else ""
            lines.append(
                f"Server   {kind.name}: {gb(serving.weights)} for weights in {estimate.bits:.3g} bits, "
                f"{gb(serving.cache)} for keys and values of {request.context:,} tokens{times}"
            )
        return lines

    def _ways(self) -> Any:
        from rich.table import Table

        estimate = self.estimate
        table = Table("a run", "takes", "with the server", "fits", box=None, pad_edge=False, header_style="bold")
        for way in estimate.ways:
            takes = gb(way.memory.total) + (f" + {gb(way.ram)} RAM" if way.ram else "")
            table.add_row(way.name, takes, gb(way.memory.total + estimate.serving.total), _fit(way))
        return table

    def _verdict(self) -> list[str]:
        estimate, advised = self.estimate, self.estimate.advised
        lines = [estimate.obstacle] if estimate.obstacle else []
        if not estimate.serves:
            lines.append(
                f"{estimate.server.name} itself does not fit: it needs {gb(estimate.serving.total)} for weights in "
                f"{estimate.bits:.3g} bits. Serve a smaller model, or one in fewer bits."
            )
        if advised is None:
            lines.append("No run fits here: train on another machine, or serve a smaller model. Ratings are kept.")
            return lines
        settings = _needed_settings(advised)
        place = "beside the server" if advised.fits_beside else "while the server rests (requests wait until its end)"
        place = place if estimate.serves else "alone"
        lines.append(f"A run fits {place}: {advised.name}. {_to_set(settings)}")
        parts = ", ".join(f"{PARTS[name]} {gb(size)}" for name, size in advised.memory._asdict().items() if size >= 5e7)
        lines.append(f"Of its {gb(advised.memory.total)}: {parts}.")
        if estimate.unpacked and any("load_in_4bit" in key for way in estimate.ways for key in way.settings):
            lines.append(f"4 bits pack layers only: {gb(estimate.unpacked)} of experts stay in bfloat16.")
        lines.append(self._time())
        return lines

    def _time(self) -> str:
        if self.duration is None:
            return "Time: not known without torch (the train extra)."
        text = duration_text(self.duration.seconds)
        if self.duration.is_measured:
            return f"Time: about {text} on a quiet machine, by what this processor multiplies a second.{self._now()}"
        return f"Time: about {text}, computed for a card of this size. None of this was measured on a GPU."

    def _now(self) -> str:
        duration = self.duration
        if duration is None or duration.seconds_now is None or duration.seconds_now < BUSY * duration.seconds:
            return ""
        text = duration_text(duration.seconds_now)
        return f" Beside what runs here now it takes about {text}, or more: a run steps back."

    def _versions(self) -> Any:
        from rich.table import Table

        table = Table("a version for", "is", "size", box=None, pad_edge=False, header_style="bold")
        for version in self.estimate.versions:
            most = f" to {size_text(version.most)}" if version.most > version.served else ""
            table.add_row(version.servers, version.form, size_text(version.served) + most)
        stored = size_text(self.estimate.versions[0].stored)
        table.add_row("rlproxy's own folder", "adapter and optimiser", stored)
        return table

    # For programs

    def json(self) -> dict[str, Any]:
        """Bytes, but for what says otherwise."""
        estimate, request = self.estimate, self.estimate.request
        profile = estimate.shape.profile
        return {
            "model": {
                "kind": profile.architecture, "parameters": profile.total, "active": profile.active,
                "experts": profile.experts, "source": profile.source, "rank": estimate.rank,
                "layers": sorted({name.rpartition(".")[2] for name in estimate.trained}),
                "trained": estimate.trained_numbers,
            },
            "hardware": request.hardware._asdict(), "workload": request.workload._asdict(),
            "server": {
                "kind": request.server, "bits": round(estimate.bits, 3), "context": request.context,
                **estimate.serving._asdict(), "total": estimate.serving.total, "fits": estimate.serves,
                "obstacle": estimate.obstacle or None,
            },
            "ways": [_way_json(way) for way in estimate.ways],
            "advised": None if estimate.advised is None else _way_json(estimate.advised),
            "time": None if self.duration is None else self.duration._asdict(),
            "versions": [version._asdict() for version in estimate.versions],
        }  # fmt: skip


def estimate_here(settings: Settings, weights: str) -> Estimate | None:
    """For this machine and the server in the settings; None where the weights are not here yet, or nothing can be said.
    Asks no hub."""
    from trainer import launch

    kind = settings.backend.kind
    if not (weights or kind == "builtin"):
        return None
    train = settings.train
    try:
        if not launch.local(weights or launch.DEFAULT_HUB_ID):
            return None
        request = launch.EstimateRequest(
            kind, hardware_of(settings), launch.Workload(train.start_at, TOKENS), CONTEXT, train.preset,
            train.overrides, served_bytes(settings),
        )  # fmt: skip
        return launch.estimate_run(weights, request)
    except (launch.LaunchError, ImportError, ValueError):  # the run itself says what is wrong with them
        return None


def served_bytes(settings: Settings) -> int | None:
    """The size of the file that the server of the settings runs; None where none answers, or it does not tell."""
    from proxy.cli.init import discovery

    backend = settings.backend
    if backend.kind not in backend_kinds.GGUF or not backend.url:
        return None
    keys = {discovery.plain(backend.url): backend.api_key.get_secret_value()} if backend.api_key else {}
    models = [model for server in asyncio.run(discovery.look([backend.url], keys)) for model in server.models]
    name = (backend.model or "").removesuffix(":latest")
    sizes = [model.size for model in models if model.name == name or len(models) == 1]
    return sizes[0] if sizes else None


def short(estimate: Estimate, *, sentence: bool = False) -> str:
    """For `init` and `doctor`: what a run takes, and what has to be set for it."""
    advised = estimate.advised
    if advised is None:
        text = f"no way to train {estimate.shape.profile} fits into the memory here (`rlproxy plan` shows each)"
    else:
        settings = _needed_settings(advised)
        needs = f", with {_settings_text(settings)}" if settings else ""
        text = f"a run takes about {gb(advised.memory.total)}{needs} (`rlproxy plan`)"
    return text[0].upper() + text[1:] if sentence else text


def _needed_settings(way: Way) -> dict[str, Any]:
    return dict(way.settings) | ({} if way.fits_beside else {"train.share_gpu": True})


def _way_json(way: Way) -> dict[str, Any]:
    return {
        "name": way.name, "settings": dict(way.settings), "memory": way.memory._asdict(), "total": way.memory.total,
        "ram": way.ram, "fits_beside": way.fits_beside, "fits_resting": way.fits_resting,
    }  # fmt: skip


def _fit(way: Way) -> str:
    if way.fits_beside:
        return "beside it"
    return "while it rests" if way.fits_resting else "no"


def _to_set(settings: Mapping[str, Any]) -> str:
    return f"Set {_settings_text(settings)}." if settings else "Nothing has to be set."


def _settings_text(settings: Mapping[str, Any]) -> str:
    values = {True: "true", False: "false"}
    return " and ".join(
        f"{key} = {values[value] if isinstance(value, bool) else repr(value)}" for key, value in settings.items()
    )


def gb(size: float) -> str:
    return f"{size / GB:.0f} GB" if size >= 99.5 * GB else f"{size / GB:.1f} GB"


def size_text(size: int) -> str:
    """Write the size of a file, in units of ten."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / MB:.0f} MB"


def duration_text(seconds: float) -> str:
    if seconds < 90:
        return f"{max(10, round(seconds, -1)):.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
