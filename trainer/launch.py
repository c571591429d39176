"""Launcher of the proxy: runs, looks at weights, conversions, the built-in backend.

The one module of this room that the proxy imports, so it is free of torch. Owns the children: which command, how many
threads. Not here: how a child starts and ends (child_process), what a run does (loop), when one starts (the proxy's
run supervisor).

    LaunchError     a child did not start, or ended before it was ready
    AdapterError    an adapter folder is not what its manifest says
"""

from __future__ import annotations

import asyncio
import json
import platform
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from config import presets
from config.sections import Images
from trainer import estimate, low_priority
from trainer.child_process import (
    AWAITED_NICE,
    LaunchError,
    child_environment,
    close_stdin,
    end,
    last_line,
    lines,
    open_log,
    run_to_end,
    spawn,
)
from trainer.container import memory as machine_memory
from trainer.estimate import Duration, Estimate, EstimateRequest, Hardware, Way, rounds_products
from trainer.formats import model_info, sight
from trainer.formats.manifest import AdapterError
from trainer.formats.manifest import verify as verify_adapter
from trainer.formats.weights import DEFAULT_HUB_ID, WeightsError, local, out_of_reach, shapes_of
from trainer.idle_cores import most_threads
from trainer.io.encrypted_files import IN_THE_CLEAR, Seal, SealError, is_sealed, partial_path
from trainer.io.encrypted_files import missing as sealing_lacks
from trainer.io.run_folder import ServerFormat
from trainer.languages import LanguageChoice
from trainer.lessons.prompts import (
    HINT,
    join_lessons,
    lessons_of,
    neutral,
    teacher_comment,
    with_calls,
    with_hint,
    without_lessons,
)
from trainer.limits import default_threads
from trainer.low_priority import PriorityState, can_stand_still, standing
from trainer.places.bucket import BucketError
from trainer.places.bucket_versions import BucketVersions
from trainer.places.elsewhere import Elsewhere
from trainer.places.job import GRACE_S, Job, RunOrder
from trainer.places.local import LocalJob, start_local
from trainer.places.place import PlaceError, PlaceSettings
from trainer.policy.autoscale import LayerPlan, fit, layer_plan
from trainer.policy.footprint import Workload
from trainer.run.scalars import NO_SCALARS
from trainer.serve.__main__ import KEY_VARIABLE

__all__ = [
    "DEFAULT_HUB_ID",
    "HINT",
    "IN_THE_CLEAR",
    "WEIGHTS_NOT_HERE",
    "AdapterError",
    "BucketError",
    "BucketVersions",
    "BuiltinServer",
    "Duration",
    "Estimate",
    "EstimateRequest",
    "Hardware",
    "Job",
    "LanguageChoice",
    "LaunchError",
    "Launcher",
    "LayerPlan",
    "LocalJob",
    "LocalLauncher",
    "PlaceError",
    "PlaceSettings",
    "PriorityState",
    "Seal",
    "SealError",
    "ServerFormat",
    "Way",
    "Workload",
    "adapter_layers",
    "available",
    "can_stand_still",
    "child_environment",
    "default_threads",
    "estimate_run",
    "is_sealed",
    "join_lessons",
    "last_line",
    "lessons_of",
    "local",
    "machine_memory",
    "neutral",
    "open_log",
    "out_of_reach",
    "partial_path",
    "picture_refusal",
    "rounds_products",
    "run_seconds",
    "sealing_lacks",
    "standing",
    "teacher_comment",
    "verify_adapter",
    "with_calls",
    "with_hint",
    "without_lessons",
]

READY_S = 600.0  # without a sign: a large model from a slow disk
WEIGHTS_NOT_HERE = "the weights are not on this machine"
OWN_WORDS = "error: "  # before a sentence of trainer.serve's that says it all


class BuiltinServer(Protocol):
    """A built-in backend that answers."""

    url: str
    model: str
    weights: str
    reason: str  # how the weights were found
    pid: int

    async def wait(self) -> int: ...

    async def stop(self) -> None: ...


class Launcher(Protocol):
    place: str  # where runs train, as `train.where` says it

    def available(self, *, serves: bool = False, tensorboard: bool = False) -> str | None:
        """None, or one sentence on what has to be installed first."""

    async def refusal(self, weights: str, *, sealed: bool) -> str | None:
        """Why no run of these weights can train where it is to, in one sentence; None on this machine. `sealed`: its
        samples are encrypted."""

    async def forget(self, run_folder: Path) -> None:
        """The run has ended: nothing of it stays elsewhere; a place that does not answer is told later."""

    async def settle(self, runs: Path, unfinished: Collection[Path]) -> None:
        """Tell a place what it could not be told, now and then. `unfinished`: folders of runs that go on."""

    async def start(
        self, run_folder: Path, *, threads: int, nice: int, max_memory_gb: float = 0, key: bytes | None = None
    ) -> Job:
        """`threads` 0: by the machine; `max_memory_gb` 0: no limit; `key` opens the samples. Raises
        LaunchError; a PlaceError where the run can wait for the place."""

    async def rank(self, weights: str, preset: str, overrides: Mapping[str, Any]) -> int:
        """Shape of the adapter that a run would make."""

    async def layers(
        self,
        weights: str,
        server_format: ServerFormat,
        preset: str,
        overrides: Mapping[str, Any],
        parent: Path | None = None,
    ) -> LayerPlan | None:
        """The layers of the adapter that a run would make, as this server can load it; None where that is not known
        yet. `parent`: the adapter that the run goes on from. Raises AdapterError where it could load none."""

    async def languages(self, texts: Sequence[str]) -> LanguageChoice:
        """Languages of a run's prompts that the gate asks in. Raises LaunchError."""

    async def gguf(self, adapter: Path, weights: str | None, out: Path) -> None:
        """Write the adapter in this folder as the GGUF file `out`. Raises LaunchError."""

    async def fuse(self, adapter: Path, base: Path, out: Path) -> None:
        """Write the model in `base`, a GGUF file or a folder of weights, with the adapter in it as `out`, of the same
        kind. Raises LaunchError."""

    async def mlx(self, adapter: Path, out: Path) -> None:
        """Write the adapter in this folder as mlx-lm's folder `out`. Raises LaunchError."""

    async def probe(self, weights: str, request: Mapping[str, Any], *, threads: int, nice: int, log: Path) -> Any:
        """Look at these weights with trainer.probe; `request` has the arguments of its `look`. Returns a dict. Raises
        LaunchError."""

    def has_weights(self, weights: str) -> bool:
        """Tell whether these weights are on this machine already. Blocking."""

    async def start_server(
        self, weights: str | None, name: str | None, *, host: str = "127.0.0.1", port: int = 0, threads: int = 0,
        key: str, trust_remote_code: bool = False, images: Images | None = None, log: Path,
        tell: Callable[[str], None] = lambda line: None,
    ) -> BuiltinServer:  # fmt: skip
        """Returns when it answers, to requests with this key only. `trust_remote_code`: Python code in the weights'
        folder may run there. `images`: bounds of pictures. `tell`: called with how far the start is. Raises
        LaunchError."""

    def stand_still(self, paused: bool) -> None:
        """Stop what trains or looks at weights, or let it go on. Converters work on: a request may wait for them."""


def available(*, serves: bool = False) -> str | None:
    """`serves`: for the built-in backend, which is torch's; a run on Apple silicon does with mlx-lm (policies)."""
    missing = [name for name in ("torch", "transformers", "peft", "safetensors") if find_spec(name) is None]
    apple = (platform.system(), platform.machine()) == ("Darwin", "arm64")
    if not missing or (apple and not serves and find_spec("mlx_lm") is not None):
        return None
    if apple and not serves:
        pip = f"{sys.executable} -m pip install 'rlproxy[mlx]'"
        return f"training on a Mac needs mlx-lm: install the mlx extra with `{pip}`"
    return (
        f"training and the built-in backend need {', '.join(missing)}: install the train extra with "
        f"`{sys.executable} -m pip install 'rlproxy[train]'`"
    )


def adapter_rank(weights: str, name: str, overrides: Mapping[str, Any]) -> int:
    """The rate that the run will choose (`autoscale`); the preset's own where the weights are not on this
    machine yet."""
    preset = presets.resolve(name, overrides)
    try:
        folder = local(weights)
        return preset.rank if folder is None else fit(preset, name, overrides, model_info.read(folder))[0].rank
    except (ImportError, OSError, ValueError, KeyError, TypeError):  # the run itself says what is wrong with them
        return preset.rank


def adapter_layers(
    weights: str,
    server_format: ServerFormat,
    name: str,
    overrides: Mapping[str, Any],
    parent: Path | None = None,
) -> LayerPlan | None:
    """The layers that a run would train, and the server load; None where the weights are not on this machine yet, or do
    not say. `parent`: the adapter that the run goes on from. Raises AdapterError, in one sentence, where nothing that
    trains could be loaded."""
    try:
        folder = local(weights)
        setting = presets.resolve(name, overrides).layers
        return None if folder is None else layer_plan(folder, server_format, setting, parent)
    except AdapterError:
        raise
    except (ImportError, OSError, ValueError, KeyError, TypeError):  # the run itself says what is wrong with them
        return None


def estimate_run(spec: str, request: EstimateRequest) -> Estimate:
    """Estimate what a run, the server beside it and a version of this model would take. `spec`: a folder, a
    config.json, or a hub id; empty: the default model. Loads torch where no weights are here. Raises LaunchError."""
    try:
        return estimate.of(shapes_of(spec or DEFAULT_HUB_ID), request)
    except (WeightsError, ValueError, KeyError, TypeError, OSError) as error:  # ProfileError is a ValueError
        raise LaunchError(str(error)) from None
    except ImportError as error:
        raise LaunchError(f"{error}: pip install 'rlproxy[train]'.") from None


def run_seconds(estimated: Estimate, threads: int = 0) -> Duration | None:
    """Estimate the time of the advised way, with nothing else to do; None where no way fits, or without torch."""
    return estimate.duration(estimated, threads or most_threads())


class LocalLauncher:
    def __init__(self, place: PlaceSettings = PlaceSettings()) -> None:  # noqa: B008  frozen
        """`place`: where runs train; all else is done on this machine. Raises ValueError."""
        self._stoppable: set[asyncio.subprocess.Process] = set()
        self._elsewhere = Elsewhere(place)
        self.place = place.address
        self.refusal = self._elsewhere.refusal
        self.forget = self._elsewhere.forget
        self.settle = self._elsewhere.settle

    def available(self, *, serves: bool = False, tensorboard: bool = False) -> str | None:
        return available(serves=serves) or (NO_SCALARS if tensorboard and find_spec("tensorboardX") is None else None)

    async def start(
        self, run_folder: Path, *, threads: int, nice: int, max_memory_gb: float = 0, key: bytes | None = None
    ) -> Job:
        order = RunOrder(run_folder, threads, nice, max_memory_gb, key)
        remote_job = await self._elsewhere.start(order)
        return remote_job or await start_local(order, self._stoppable, self._elsewhere.tinker)

    def has_weights(self, weights: str) -> bool:
        return local(weights) is not None

    async def probe(self, weights: str, request: Mapping[str, Any], *, threads: int, nice: int, log: Path) -> Any:
        threads = threads or default_threads()[1]
        process = await spawn(
            ["-m", "trainer.probe", weights, "--threads", str(threads)],
            threads=threads,
            log=log,
            environment={"CUDA_VISIBLE_DEVICES": ""},  # the server is using the GPU, all of it maybe
            nice=min(nice, AWAITED_NICE),
        )
        self._stoppable.add(process)
        answer: dict[str, Any] | None = None
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(request).encode() + b"\n")
            async with asyncio.timeout(READY_S):
                async for line in lines(process):
                    answer = line  # the last one counts
                await process.wait()
        except TimeoutError:
            raise LaunchError(f"looking at the weights took longer than {READY_S:.0f} s (see {log}).") from None
        finally:
            self._stoppable.discard(process)
            await end(process, grace=0)
        if answer is None:
            raise LaunchError(f"looking at the weights ended with status {process.returncode}: {last_line(log)}")
        if "error" in answer:
            raise LaunchError(str(answer["error"]))
        return answer

    async def rank(self, weights: str, preset: str, overrides: Mapping[str, Any]) -> int:
        return await asyncio.to_thread(adapter_rank, weights, preset, overrides)

    async def layers(
        self,
        weights: str,
        server_format: ServerFormat,
        preset: str,
        overrides: Mapping[str, Any],
        parent: Path | None = None,
    ) -> LayerPlan | None:
        return await asyncio.to_thread(adapter_layers, weights, server_format, preset, overrides, parent)

    async def languages(self, texts: Sequence[str]) -> LanguageChoice:
        output, problem = await run_to_end("trainer.languages", request=json.dumps(list(texts)).encode())
        if problem is not None:
            raise LaunchError(f"the languages of the prompts cannot be told: {problem}")
        content = json.loads(output)
        return LanguageChoice(tuple(content["codes"]), content["reason"])

    async def gguf(self, adapter: Path, weights: str | None, out: Path) -> None:
        weights_option = ["--weights", weights] if weights else []
        await _convert(
            f"The adapter {adapter} was not converted to GGUF",
            "trainer.formats.gguf", str(adapter), str(out), *weights_option,
        )  # fmt: skip

    async def fuse(self, adapter: Path, base: Path, out: Path) -> None:
        module = f"trainer.formats.merge_{'weights' if await asyncio.to_thread(base.is_dir) else 'gguf'}"
        await _convert(f"The adapter {adapter} was not fused with its model", module, str(adapter), str(base), str(out))

    async def mlx(self, adapter: Path, out: Path) -> None:
        await _convert(
            f"The adapter {adapter} was not converted for mlx-lm", "trainer.formats.mlx_layout", str(adapter), str(out)
        )

    def stand_still(self, paused: bool) -> None:
        self._stoppable -= {process for process in self._stoppable if process.returncode is not None}
        for process in self._stoppable:
            low_priority.stand_still(process.pid, paused=paused)

    async def start_server(
        self,
        weights: str | None,
        name: str | None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        threads: int = 0,
        key: str,
        trust_remote_code: bool = False,
        images: Images | None = None,
        log: Path,
        tell: Callable[[str], None] = lambda line: None,
    ) -> LocalServer:
        command = ["-m", "trainer.serve", "--host", host, "--port", str(port), "--threads", str(threads)]
        command += ["--weights", weights] if weights else []
        command += ["--name", name] if name else []
        command += ["--trust-remote-code"] if trust_remote_code else []
        command += ["--images", images.model_dump_json()] if images else []
        first = threads or default_threads()[0]
        process = await spawn([*command, "--watch-stdin"], threads=first, log=log, environment={KEY_VARIABLE: key})
        try:
            async with asyncio.timeout(READY_S) as limit:
                async for event in lines(process):
                    if event.get("event") == "ready":
                        return LocalServer(process, event)
                    if event.get("event") == "progress":
                        tell(event["line"])
                        limit.reschedule(asyncio.get_running_loop().time() + READY_S)
        except TimeoutError:
            await end(process, grace=0)
            raise LaunchError(f"the built-in backend did not answer within {READY_S:.0f} s (see {log}).") from None
        except asyncio.CancelledError:
            await end(process, grace=0)
            raise
        except KeyError as error:
            await end(process, grace=0)
            raise LaunchError(f"the built-in backend's ready line lacks {error}.") from None
        status = await process.wait()
        if (message := last_line(log)).startswith(OWN_WORDS):
            raise LaunchError(message.removeprefix(OWN_WORDS))
        raise LaunchError(f"the built-in backend ended with status {status} before it answered: {message}")


async def _convert(failure: str, module: str, *arguments: str) -> None:
    """Run a converter. Raises LaunchError: the failure, and the converter's own reason."""
    _, problem = await run_to_end(module, *arguments)
    if problem is not None:
        raise LaunchError(f"{failure}: {problem}")


def picture_refusal(weights: str | None) -> str | None:
    """Why no answer about a picture can train on these weights, as a clause; None where it can. Blocking."""
    folder = None if weights is None else local(weights)
    return WEIGHTS_NOT_HERE if folder is None else sight.refusal(folder)


class LocalServer:
    def __init__(self, process: asyncio.subprocess.Process, ready: dict[str, Any]) -> None:
        self._process = process
        self.url: str = ready["url"]
        self.model: str = ready["model"]
        self.weights: str = ready["weights"]
        self.reason: str = ready.get("why", "")
        self.pid = process.pid
        self._reader = asyncio.create_task(self._drain(), name=f"backend-{process.pid}")

    async def wait(self) -> int:
        status = await self._process.wait()
        await self._reader
        close_stdin(self._process)
        return status

    async def stop(self) -> None:
        await end(self._process, grace=GRACE_S)
        await self._reader

    async def _drain(self) -> None:
        async for _ in lines(self._process):
            pass
