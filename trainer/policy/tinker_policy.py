"""A policy whose steps a Tinker server takes, and which is judged here.

Owns what goes there and comes back. Tokens and weights of the loss go; log-probs and the adapter come. The model on
this machine wears the adapter of each step, so filter, drift and gate are those of any run. A loss C has the gradient
of Σ −w · ℓ_θ with the constants w = −∂C/∂ℓ_θ. One pass at weights of 0 tells ℓ_θ. Autograd on those numbers makes w,
and a second pass adds the gradient.

A server computes at temperature 1. So here θ, its start and the reference are its own log-probs at that temperature,
from the same pass of clients that never step. Not here: the calls (tinker_client), what trains (loop).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from peft import set_peft_model_state_dict
from safetensors.torch import load_file

from config.presets import Preset
from trainer.io.run_folder import Compute, RunError, ServerFormat, write_atomic
from trainer.mis_po import Terms
from trainer.policy.packing import Packed, Tokens
from trainer.policy.policy import Loss, State
from trainer.policy.tinker_client import ADAPTER, Floats, TinkerClient, TinkerServer
from trainer.policy.torch_policy import TRAINED, TorchPolicy

FOLDER: Final = "tinker"  # of a run: adapters as they came back, and LEDGER
LEDGER: Final = "states.json"  # by the hash of an adapter's tensors, what the server loads it by
ORIGIN: Final = "tinker.json"  # in an adapter's folder: where the next run goes on from it


class TinkerPolicy(TorchPolicy):
    interpolates = False  # a server takes no adapter from outside

    def __init__(
        self,
        weights: Path,
        preset: Preset,
        *,
        server: TinkerServer,
        run_folder: Path,
        parent: Path | None,
        threads: int,
        seed: int,
        compute: Compute = "auto",
        in_4bit: bool = False,
        offload: bool = False,
        server_format: ServerFormat = "peft",
    ) -> None:
        """Raises RunError."""
        self._server = server
        self._folder = run_folder / FOLDER
        self._folder.mkdir(exist_ok=True)
        self._begins_at = None if parent is None else _origin(parent, server)
        self._states = _read_ledger(self._folder / LEDGER)
        self._remote = TinkerClient(server, preset, seed)
        self._remote.begin(self._begins_at)
        name, start = f"{run_folder.name}-start", self._folder / "start"
        self._start_state = self._remote.save(name)
        self._remote.fetch(name, self._start_state, start)
        super().__init__(
            weights,
            preset,
            parent=start,
            threads=threads,
            seed=seed,
            compute=compute,
            in_4bit=in_4bit,
            offload=offload,
            server_format=server_format,
        )
        if self._is_part:
            raise RunError(
                "a model that also sees or hears is not trained at a Tinker server: set train.where to local."
            )
        self.choices.append(("tinker", server.url, f"it takes the steps of {server.model}; the gate is here"))
        self._steps = 0
        self._preset, self._seed = preset, seed
        self._current = _digest(self.adapter())  # the adapter that the server has
        self._states[self._current] = self._start_state
        self._worn_digest: str | None = None  # the one that is worn here, where it may be another
        self._has_gradient = False
        self._frozen: dict[str, TinkerClient] = {}  # of the start and of the base, which never step
        self._old: dict[Tokens, Floats] = {}
        self._ref: dict[Tokens, Floats] = {}

    # --- the gradient ---

    def backward(self, packed: Packed, terms: Terms, loss: Loss) -> dict[str, float]:
        if terms.teacher_ids is not None:
            raise RunError(
                "a Tinker server tells log-probs of tokens and no distribution: set train.overrides.w_distill to 0."
            )
        if max(max(s.prompt + s.reply) for s in packed.sequences) >= self._vocabulary:
            raise RunError("prompts with pictures do not train at a Tinker server: set train.where to local.")
        self._catch_up()
        sequences = [replace(s, temperature=1.0, top_p=1.0, top_k=0) for s in packed.sequences]
        start = self._frozen_log_probs(self._begins_at, self._old, sequences)
        terms = replace(terms, old=start, ref=self._frozen_log_probs(None, self._ref, sequences))
        nothing = [np.zeros(len(s.reply)) for s in sequences]
        theta = torch.tensor(np.concatenate(self._remote.backward(sequences, nothing)), requires_grad=True)
        constants = Terms(**{name: _constant(getattr(terms, name)) for name in Terms.__slots__})
        value, sums = loss(torch, theta, constants)
        value.backward()
        assert theta.grad is not None
        weights = np.split(-theta.grad.numpy(), np.cumsum(packed.lengths)[:-1])
        self._remote.backward(sequences, weights)
        self._has_gradient = True
        return {name: float(total.detach()) for name, total in sums.items()}

    def step(self, learning_rate: float, max_grad_norm: float) -> float:
        norm = self._remote.step(learning_rate, max_grad_norm)
        self._steps += 1
        self._has_gradient = False
        name = f"{self._folder.parent.name}-{self._steps}-{self._current[:8]}"
        state = self._remote.save(name)
        self._remote.fetch(name, state, self._folder / "now")
        previous = self.adapter()
        result = set_peft_model_state_dict(self.model, load_file(self._folder / "now" / ADAPTER), adapter_name=TRAINED)
        if result.unexpected_keys:
            raise RunError(
                f"{self._server.url} returned another adapter than it began with: {result.unexpected_keys[0]}."
            )
        adapter = self.adapter()
        self._current = _digest(adapter)
        self._states[self._current] = state
        write_atomic(self._folder / LEDGER, json.dumps(self._states).encode())
        if norm is None:  # how far the step moved stands for it: that is not finite where the gradient was not
            squares = [np.square(adapter[key] - previous[key], dtype=np.float64).sum() for key in adapter]
            norm = float(np.sqrt(sum(squares))) / learning_rate
        return norm

    def wear(self, adapter: Mapping[str, NDArray[Any]]) -> None:
        super().wear(adapter)
        self._worn_digest = _digest(adapter)

    def optimiser(self) -> State:
        return {}  # the server's, with its states

    def restore(self, optimiser: Mapping[str, NDArray[Any]]) -> None:
        """It goes with the state that is worn."""

    def save(self, folder: Path) -> None:
        super().save(folder)
        self._catch_up()
        state = self._remote.save(f"{self._folder.parent.name}-end-{self._current[:8]}", lasts=True)
        (folder / ORIGIN).write_text(json.dumps({"url": self._server.url, "model": self._server.model, "state": state}))

    def _catch_up(self) -> None:
        """The server is to have what is worn here, and no gradient left behind. Raises RunError where it never had
        it."""
        digest, self._worn_digest = self._worn_digest, None
        if digest is None or (digest == self._current and not self._has_gradient):
            return
        if (state := self._states.get(digest)) is None:
            raise RunError(f"{self._server.url} does not have the adapter that is worn here; nothing was kept.")
        self._remote.begin(state, warm=state != self._start_state)
        self._current, self._has_gradient = digest, False

    def _frozen_log_probs(self, state: str | None, scored: dict[Tokens, Floats], sequences: Sequence[Tokens]) -> Floats:
        """(N,) at this state, or of the base, by a client that never steps; each sequence once, into `scored`."""
        missing = [s for s in dict.fromkeys(sequences) if s not in scored]
        if missing:
            name = state or "base"
            if name not in self._frozen:
                self._frozen[name] = TinkerClient(self._server, self._preset, self._seed)
                self._frozen[name].begin(state)
            rows = self._frozen[name].backward(missing, [np.zeros(len(s.reply)) for s in missing])
            scored.update(zip(missing, rows, strict=True))
        return np.concatenate([scored[s] for s in sequences])


def _constant(values: Any) -> torch.Tensor | None:
    return None if values is None else torch.as_tensor(np.asarray(values, np.float64))


def _digest(adapter: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(adapter):
        digest.update(name.encode() + np.ascontiguousarray(adapter[name], np.float32).tobytes())
    return digest.hexdigest()


def _read_ledger(path: Path) -> dict[str, str]:
    return dict(json.loads(path.read_bytes())) if path.is_file() else {}


def _origin(parent: Path, server: TinkerServer) -> str:
    """By what the server loads this version. Raises RunError where it does not have it."""
    try:
        origin = json.loads((parent / ORIGIN).read_bytes())
        if (origin["url"], origin["model"]) == (server.url, server.model):
            return str(origin["state"])
        reason = f"it was trained at {origin['url']} on {origin['model']}"
    except (OSError, ValueError, KeyError, TypeError):
        reason = "it was trained elsewhere"
    raise RunError(
        f"{server.url} cannot go on from {parent.name}: {reason}, and a Tinker server takes no adapter from outside. "
        '`rlproxy reset` begins there from the base; train.where = "local" goes on here.'
    )
