"""Estimate what a run, a server beside it and a version of one model would take on one machine.

Owns the ways to train that a machine has, which of them is advised, and what is assumed of each kind of server. The
formulas are footprint's. Not here: the words (the proxy's `rlproxy plan`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from config import presets
from config.backend_kinds import BACKENDS, GGUF, GGUF_BITS, BackendTraits
from trainer.formats.manifest import AdapterError
from trainer.formats.model_shape import ModelShape, Shapes, read
from trainer.policy import autoscale, footprint
from trainer.policy.footprint import RunMemory, Store, Workload

Place = Literal["cpu", "cuda", "metal"]
RESERVED: Final = 0.05  # of a card or of memory, for the system
# Operations a second that training reaches on a card of this memory, nobody has measured it here: a third of what the
# makers say of a T4, an RTX 3090 and an A100.
GPU_RATES: Final = ((16.5, 2e13), (48.5, 2.5e13), (1e9, 1e14))
GPU_BANDWIDTH: Final = 4e11  # bytes a second that writing reads weights with, likewise
BUS_BANDWIDTH: Final = 1.6e10  # bytes a second from memory to the card: PCIe 4 with 16 lanes, half of it reached
START_S: Final = 20.0  # to import torch, load weights and write files
# Of what a processor multiplies a second, a run reaches so much: attention, norms and small products take the rest.
# Four runs on one machine (docs/lab/sizes.md).
CPU_REACHED: Final = 0.4


class Hardware(NamedTuple):
    """Bytes."""

    gpu: int | None  # of the card; None: there is none
    ram: int
    is_shared: bool = False  # one memory for both, as on a Mac
    rounds: bool = False  # the CPU multiplies in bfloat16


class Way(NamedTuple):
    """A way to train, and what it takes."""

    name: str
    settings: Mapping[str, Any]
    memory: RunMemory  # where the model trains; with the server beside it, where that fits
    recomputes: bool  # its layers, instead of keeping activations
    store: Store
    ram: int  # of the machine's memory, where frozen layers are on the CPU
    fits_beside: bool
    fits_resting: bool  # while the server rests


class VersionSize(NamedTuple):
    """Bytes of one version."""

    servers: str
    form: str
    stored: int  # in rlproxy's folder
    served: int  # that the server loads
    most: int  # once it has learned much


class ServingMemory(NamedTuple):
    weights: int
    cache: int  # keys and values of one context
    copies: int

    @property
    def total(self) -> int:
        return (self.weights + self.cache) * self.copies


class Duration(NamedTuple):
    seconds: float  # with nothing else to do
    is_measured: bool  # by this machine's processor, else from a card's rate
    seconds_now: float | None = None  # beside what runs on the processor now; None: not known


class EstimateRequest(NamedTuple):
    """Everything that an estimate depends on besides the model."""

    server: str  # as backend.kind
    hardware: Hardware
    workload: Workload
    context: int = 4096  # tokens that the server keeps
    preset: str = "balanced"
    overrides: Mapping[str, Any] = MappingProxyType({})
    served_bytes: int | None = None  # of the file that the server runs, where it tells

    @property
    def kind(self) -> BackendTraits:
        return BACKENDS[self.server]


@dataclass(frozen=True, slots=True)
class Estimate:
    shape: ModelShape
    request: EstimateRequest
    rank: int
    trained: Shapes
    trained_numbers: int
    obstacle: str  # why nothing that trains can be loaded by this server; empty where something can
    serving: ServingMemory
    ways: list[Way]
    advised: Way | None
    versions: list[VersionSize]

    @property
    def server(self) -> BackendTraits:
        return self.request.kind

    @property
    def bits(self) -> float:
        """Bits of a weight at the server: by the size of its file, else as most people have it."""
        return _bits(self.shape, self.request)

    @property
    def serves(self) -> bool:
        """Tell whether the server fits where nothing trains."""
        return self.serving.total <= room(self.request.hardware)

    @property
    def version(self) -> VersionSize | None:
        """The form in which this server keeps it."""
        forms = {"peft": 0, "gguf": 1, "merged": 2, "mlx": 3}
        return None if self.server.version_form is None else self.versions[forms[self.server.version_form]]

    @property
    def unpacked(self) -> int:
        """Bytes of experts that 4 bits do not reach."""
        if not self.shape.profile.mixture:
            return 0
        return footprint.layers_bytes(self.shape) - 2 * footprint.linear_parameters(self.shape)


def room(hardware: Hardware) -> int:
    """Bytes where the model trains and is served."""
    return round((hardware.gpu or hardware.ram) * (1 - RESERVED))


def rounds_products() -> bool:
    """Tell whether a run on this processor multiplies in bfloat16: its flags say that it can, and it is faster so. The
    flags alone where there is no torch to measure with (torch_load asks torch for both)."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    if not any(f" {name}" in flags for name in ("amx_bf16", "avx512_bf16")):
        return False
    if find_spec("torch") is None:
        return True
    from trainer.policy import torch_speed

    return torch_speed.measure_products().rounding_pays


def of(path: Path, request: EstimateRequest) -> Estimate:
    """`path`: a model's folder or config.json. Raises ProfileError, in one sentence; ValueError for a mixture without
    attention."""
    shape = read(path)
    fitted, _ = autoscale.fit(
        presets.resolve(request.preset, dict(request.overrides)), request.preset, request.overrides, shape.profile
    )
    trained, obstacle = _trained(shape, fitted.layers, request.kind)
    numbers = footprint.adapter_parameters(trained, fitted.rank)
    serving = _serving(shape, request)
    ways = [_way(shape, numbers, request, serving, option, fitted.max_seq_len) for option in _options(request.hardware)]
    file_bits = _bits(shape, request) if request.server in GGUF else GGUF_BITS
    versions = _versions(shape, trained, numbers, file_bits)
    return Estimate(shape, request, fitted.rank, trained, numbers, obstacle, serving, ways, _advised(ways), versions)


def _trained(shape: ModelShape, setting: str, kind: BackendTraits) -> tuple[Shapes, str]:
    """The layers that a run would train; and why none can be loaded, where that is so."""
    layers, _ = autoscale.trained_layers(shape.linears, setting, shape.profile)
    left_out = ""
    if kind.version_form is not None:
        try:
            layers, _ = autoscale.worn_layers(layers, dict(shape.config), kind.version_form)
        except AdapterError as error:
            left_out = str(error)
    return {name: shape.linears[name] for name in layers}, left_out


def _serving(shape: ModelShape, request: EstimateRequest) -> ServingMemory:
    """A version in the form of a whole model takes the model's place."""
    kind, copies = request.kind, 1
    if request.hardware.gpu:  # on a CPU all processes map one file
        copies = kind.copies
    weights = footprint.file_bytes(shape, _bits(shape, request))
    return ServingMemory(weights, footprint.cache_bytes(shape, request.context, kind.cache_bytes), copies)


def _bits(shape: ModelShape, request: EstimateRequest) -> float:
    return request.kind.bits if request.served_bytes is None else 8 * request.served_bytes / shape.profile.total


# --- ways to train ------------------------------------------------------------------------------------------------


class _Option(NamedTuple):
    name: str
    settings: Mapping[str, Any]
    store: Store
    is_offloaded: bool = False


def _options(hardware: Hardware) -> list[_Option]:
    """In the order in which they are advised: what is exact first."""
    if hardware.is_shared:
        return [_Option("float32, with MLX", {}, "float32")]
    if hardware.gpu is None:
        usual: Store = "rounded" if hardware.rounds else "float32"
        return [_Option("float32", {}, usual), _Option("bfloat16", {"train.compute": "bfloat16"}, "bfloat16")]
    return [
        _Option("bfloat16", {}, "bfloat16"),
        _Option("4 bits", {"train.load_in_4bit": True}, "4 bits"),
        _Option("frozen layers on the CPU", {"train.offload": True}, "bfloat16", is_offloaded=True),
    ]


def _way(
    shape: ModelShape, numbers: int, request: EstimateRequest, serving: ServingMemory, option: _Option, max_seq_len: int
) -> Way:
    hardware = request.hardware
    total = room(hardware)

    device = "cuda" if hardware.gpu else "cpu"

    def memory(free: int) -> tuple[RunMemory, bool]:
        plan = footprint.memory_plan(shape, option.store, device, free, max_seq_len=max_seq_len)
        needed = footprint.run_memory(shape, numbers, request.workload, option.store, plan, device)
        if option.is_offloaded:
            return footprint.offloaded(needed, shape, numbers, request.workload), True
        return needed, plan.recomputes(footprint.micro_batch(request.workload.tokens, plan))

    (least, recomputes_least), (resting, recomputes) = memory(total - serving.total), memory(total)
    ram = footprint.offloaded_ram(shape, numbers) if option.is_offloaded else 0
    has_ram = ram <= hardware.ram * (1 - RESERVED)
    fits_beside = least.total + serving.total <= total and has_ram
    fits_resting = request.kind.rests and resting.total <= total and has_ram
    if fits_beside:
        return Way(option.name, option.settings, least, recomputes_least, option.store, ram, True, fits_resting)
    return Way(option.name, option.settings, resting, recomputes, option.store, ram, False, fits_resting)


def _advised(ways: list[Way]) -> Way | None:
    return next((way for way in ways if way.fits_beside or way.fits_resting), None)


# --- versions -----------------------------------------------------------------------------------------------------


def _versions(shape: ModelShape, trained: Shapes, numbers: int, bits: float) -> list[VersionSize]:
    """`bits`: of a weight in a GGUF file of the model."""
    stored, adapter = footprint.stored_bytes(numbers), footprint.adapter_bytes(numbers)
    return [
        VersionSize("built-in, vLLM, SGLang", "a PEFT adapter", stored, adapter, adapter),
        VersionSize("llama.cpp, Ollama before 0.34.1", "a GGUF adapter", stored, adapter, adapter),
        VersionSize(
            "Ollama, LM Studio",
            "a whole GGUF model",
            stored,
            footprint.file_bytes(shape, bits),
            footprint.most_merged_bytes(shape, trained, bits),
        ),
        VersionSize("mlx-lm", "an MLX adapter", stored, adapter, adapter),
    ]


# --- time ---------------------------------------------------------------------------------------------------------


def duration(estimate: Estimate, threads: int) -> Duration | None:
    """Estimate the time of the advised way; None where there is none, or without torch. Multiplies for a second to know
    the processor.
    """
    way, hardware = estimate.advised, estimate.request.hardware
    if way is None or hardware.is_shared or find_spec("torch") is None:
        return None
    work = footprint.run_work(estimate.shape, estimate.request.workload, recomputes=way.recomputes)
    if hardware.gpu is not None:
        rate = next(rate for most, rate in GPU_RATES if hardware.gpu <= most * footprint.GB)
        reading = work.passes * way.memory.base / GPU_BANDWIDTH
        if way.ram:  # each pass brings all layers to the card
            passes = work.passes + footprint.read_passes(estimate.request.workload)
            reading += passes * footprint.layers_bytes(estimate.shape) / BUS_BANDWIDTH
        return Duration(START_S + (work.scoring + work.steps + work.writing) / rate + reading, False)
    from trainer.policy import torch_speed

    speed = torch_speed.measure()
    rounded = speed.bfloat16 if way.store != "float32" else speed.float32
    scored = speed.bfloat16 if way.store == "bfloat16" else speed.float32
    seconds = work.scoring / scored + work.steps / rounded + work.writing / rounded
    # Two threads are 1.4 times as fast as one; more were not tried.
    quiet_s = START_S + seconds / CPU_REACHED / math.sqrt(threads)
    return Duration(quiet_s, True, quiet_s * slowdown if (slowdown := _slowdown(threads)) is not None else None)


def _slowdown(threads: int) -> float | None:
    """How many times longer a run of so many threads takes beside what the processor does now; None where the system
    does not tell."""
    if not hasattr(os, "getloadavg"):
        return None
    return max(1.0, (os.getloadavg()[0] + threads) / (os.cpu_count() or 1))
