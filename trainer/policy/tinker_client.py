"""A training client of a Tinker server, by the `tinker` package: what the policy over there is asked to do.

Owns the calls and what comes of them. A server computes log-probs at temperature 1, adds up the gradient of
Σ −weight · log-prob, and takes the optimiser's steps; it never tells a gradient. Not here: which weights
(tinker_policy), whether a server may be asked (places.tinker_service).

The package is imported where it is used: only runs at such a server need it.
"""

from __future__ import annotations

import contextlib
import importlib
import shutil
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from config.presets import Preset
from trainer.io.run_folder import RunError
from trainer.policy.packing import Tokens

Floats = NDArray[np.float64]

ADAPTER: Final = "adapter_model.safetensors"
FILES: Final = (ADAPTER, "adapter_config.json")
BRIEFLY_S: Final = 86_400  # how long a server keeps what only the run under way may go back to
WAIT_S: Final = 15.0  # between two signs of life while a server works
DOWNLOAD_S: Final = 60.0
BETAS: Final = (0.9, 0.999)  # as torch's AdamW has them, which trains on this machine
EPS: Final = 1e-8


@dataclass(frozen=True)
class TinkerServer:
    """Where a run's steps are taken."""

    url: str
    model: str  # as the server names the base
    alive: Callable[[], None] = lambda: None  # called now and then while it works


class TinkerClient:
    def __init__(self, server: TinkerServer, preset: Preset, seed: int) -> None:
        """Raises RunError where the package is missing."""
        try:
            tinker: Any = importlib.import_module("tinker")
        except ImportError:
            raise RunError("training at a Tinker server needs its client: pip install 'rlproxy[tinker]'.") from None
        self._tinker = tinker
        self._server, self._rank, self._seed = server, preset.rank, seed
        self._service = tinker.ServiceClient(base_url=server.url, user_metadata={"program": "rlproxy"})
        self._client: Any = None
        self._thread = ThreadPoolExecutor(1, "tinker")

    def begin(self, state: str | None, *, warm: bool = False) -> None:
        """Begin anew, with no gradient: at this state, and with its optimiser where `warm`. None is a new adapter,
        which changes nothing yet. Raises RunError."""
        with _in_words(self._server), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            client = self._service.create_lora_training_client(
                base_model=self._server.model, rank=self._rank, seed=self._seed, train_unembed=False
            )
            self._client = client.result() if hasattr(client, "result") else client
            if state is not None:
                load = self._client.load_state_with_optimizer if warm else self._client.load_state
                self._wait(load(state))

    def backward(self, sequences: Sequence[Tokens], weights: Sequence[Floats]) -> list[Floats]:
        """Add the gradient of Σ −weight · ℓ_θ to the step's, weights (T,) a reply token each; weights of 0 add nothing.
        Returns ℓ_θ (T,) of each reply, before the step. Raises RunError."""
        types = self._tinker.types
        data = []
        for tokens, weight in zip(sequences, weights, strict=True):
            ids = [*tokens.prompt, *tokens.reply]
            whole = np.zeros(len(ids) - 1, np.float32)
            whole[len(tokens.prompt) - 1 :] = weight
            inputs = {"target_tokens": np.asarray(ids[1:], np.int64), "weights": whole}
            data.append(types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=inputs))
        with _in_words(self._server):
            output = self._wait(self._client.forward_backward(data, "cross_entropy"))
            rows = [np.asarray(row["logprobs"].data, np.float64) for row in output.loss_fn_outputs]
        if len(rows) != len(data) or any(len(row) != len(s) - 1 for row, s in zip(rows, sequences, strict=True)):
            raise RunError(f"{self._server.url} returned log-probs of other tokens than it was sent; nothing was kept.")
        return [row[len(s.prompt) - 1 :] for row, s in zip(rows, sequences, strict=True)]

    def step(self, learning_rate: float, max_grad_norm: float) -> float | None:
        """One step of AdamW. Returns the gradient's norm before it was clipped, where the server tells it. Raises
        RunError."""
        parameters = self._tinker.types.AdamParams(
            learning_rate=learning_rate, beta1=BETAS[0], beta2=BETAS[1], eps=EPS, grad_clip_norm=max_grad_norm
        )
        with _in_words(self._server):
            metrics = self._wait(self._client.optim_step(parameters)).metrics or {}
        norms = [value for name, value in metrics.items() if "grad_norm" in name or "grad_l2" in name]
        return float(norms[0]) if norms else None

    def save(self, name: str, *, lasts: bool = False) -> str:
        """Save weights and optimiser at the server; returns by what they are loaded again. `lasts`: until somebody
        deletes them. Raises RunError."""
        with _in_words(self._server):
            return str(self._wait(self._client.save_state(name, ttl_seconds=None if lasts else BRIEFLY_S)).path)

    def fetch(self, name: str, state: str, folder: Path) -> None:
        """Put the adapter of this client as a PEFT folder. Where `state` is a folder on a disk that both see, it is
        read there; else the server exports it and signs addresses. Raises RunError."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        source = Path(state)
        with _in_words(self._server):
            if source.is_absolute() and source.is_dir():
                adapter = next((path.parent for path in sorted(source.rglob(ADAPTER))), source)
                for file in FILES:
                    shutil.copyfile(adapter / file, folder / file)
                return
            exported = self._wait(self._client.save_weights_external(name, ttl_seconds=BRIEFLY_S))
            addresses = self._wait(self._service.create_rest_client().get_external_weights_urls(exported.path)).urls
            opener = urllib.request.build_opener(_NoRedirect)
            for file in FILES:
                with opener.open(addresses[file], timeout=DOWNLOAD_S) as response:
                    (folder / file).write_bytes(response.read())

    def _wait(self, future: Any) -> Any:
        """In a thread: some of the package's futures are given up by whoever waits with a limit."""
        waiting = self._thread.submit(future.result)
        while not waiting.done():
            self._server.alive()
            wait_for([waiting], timeout=WAIT_S)
        return waiting.result()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An adapter does not come from another host than was named."""

    def redirect_request(self, *_: Any) -> None:
        return None


@contextlib.contextmanager
def _in_words(server: TinkerServer) -> Iterator[None]:
    """Raise RunError, in one sentence, for whatever the package raises."""
    try:
        yield
    except RunError:
        raise
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise RunError(
            f"{server.url} did not do what it was asked for ({text}). Nothing was kept; the ratings are fresh again."
        ) from error
