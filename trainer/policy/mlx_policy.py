"""mlx-lm behind the Policy protocol: what torch_policy does for transformers, on a Mac's own arrays.

Owns mlx's log-probs, gradient and optimiser. The same numbers as torch_policy's within rounding (tests compare them),
the same loss (mis_po), and the same names of tensors. So a checkpoint or an adapter of one framework goes on in the
other. Not here: loading and the layers (mlx_model), what is trained on (loop).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import psutil
from mlx.optimizers import AdamW, clip_grad_norm
from mlx.utils import tree_flatten
from mlx_lm.generate import BatchGenerator
from numpy.typing import NDArray
from safetensors.numpy import save_file
from transformers import AutoTokenizer

from config.presets import Preset
from trainer.formats import model_code, model_info, peft_folder, server_layers
from trainer.formats.manifest import AdapterError
from trainer.formats.peft_folder import PREFIX, LoraPair
from trainer.io.run_folder import ServerFormat
from trainer.mis_po import Terms
from trainer.pictures.album import Album
from trainer.policy import autoscale, eos
from trainer.policy.footprint import UNRELATED
from trainer.policy.mlx_model import Array, MlxModel
from trainer.policy.packing import Budget, Packed, States, pad
from trainer.policy.policy import LogProbs, Loss, State, Surprise, TokenDistribution

HEAD_ROWS = 1024  # rows of (N, V) logits at a time without gradient
BLOCK = 256  # terms of a sum over the vocabulary that are added one after the other
SHARE_OF_FREE_MEMORY = 0.6  # what training may plan with; the server beside it grows too
SIDES = {"lora_a": "lora_A", "lora_b": "lora_B"}  # ours -> PEFT's
MOMENTS = {"m": "exp_avg", "v": "exp_avg_sq"}  # mlx's -> torch's


class MlxPolicy:
    interpolates = True

    def __init__(
        self, weights: Path, preset: Preset, *, parent: Path | None, seed: int, server_format: ServerFormat = "peft"
    ) -> None:
        self._server_format = server_format
        self.choices: list[tuple[str, Any, str]] = []
        self.device, self.reason = find_device()
        self.tokenizer = AutoTokenizer.from_pretrained(weights, **model_code.options(weights))
        self._model = MlxModel(weights)
        # mlx-lm has generation_config.json's there, where there is one.
        self._ends = eos.of_replies(self._model.config.get("eos_token_id"), self.tokenizer)
        self._weights_name = weights.name
        self.words = len(self.tokenizer)
        self._profile = model_info.read(weights)
        self._config = self._start(preset, parent, seed)
        self.leans = True
        self._reply_rows: NDArray[np.int64] = np.empty(0, np.int64)  # (N,) of the pass that is under way
        self._gradient: dict[str, Array] = {}
        self._optimiser = _adamw(preset.learning_rate)
        self.budget = Budget(tokens=max(UNRELATED, preset.max_seq_len), trees=False)
        self.choices.append(("shared_prefixes", False, "rows padded to one length: on MLX nothing is shared yet"))
        self._batches = self._can_batch()
        if self._plan_memory(preset):
            self._model.recompute_layers()
        self._model.whole.eval()
        mx.eval(self._model.whole.parameters())

    def see(self, album: Album) -> str | None:
        return "runs on MLX train on text alone"

    def picture_features(self, names: Sequence[str]) -> NDArray[np.float64]:
        raise AssertionError("a sample has a picture, and runs on MLX train on text alone")

    # --- which adapter the model wears ---

    def _start(self, preset: Preset, parent: Path | None, seed: int) -> dict[str, Any]:
        """Put on the adapter that is trained; its adapter_config.json."""
        if parent is not None:
            lora = self._read(parent)
            if self._profile.mixture and (path := next(filter(model_info.picks_or_is_expert, lora.pairs), None)):
                raise AdapterError(
                    f"{parent} has a LoRA on {path}, which never trains here: go on with torch, or anew."
                )
            server_layers.require_loadable(parent, [*lora.pairs], dict(self._model.config), self._server_format)
            self._wear(lora.pairs)
            rank, alpha = lora.config["r"], float(lora.config["lora_alpha"])
            if (rank, alpha) != (preset.rank, preset.alpha):
                reason = f"the parent adapter's; the preset's {preset.rank} would need a new adapter"
                self.choices.append(("rank", rank, reason))
            self.choices.append(("layers", autoscale.last_names(lora.pairs), "the parent adapter's"))
            self.choices.append(("start", parent.name, "warm start: its weights go on training"))
            return lora.config | {"lora_dropout": 0.0}
        self.choices.append(("start", "base", "no parent: a new adapter that changes nothing yet"))
        key = mx.random.key(seed)
        layers, reason = autoscale.trained_layers([*self._model.linears], preset.layers, self._profile)
        layers, left_out = autoscale.worn_layers(layers, dict(self._model.config), self._server_format)
        self.choices.append(("layers", autoscale.last_names(layers), reason))
        if left_out:
            self.choices.append(("layers left out", autoscale.last_names(left_out), autoscale.NOT_WORN))
        for path in layers:
            linear = self._model.linears[path]
            out, width = linear.shape
            key, layer_key = mx.random.split(key)
            bound = 1 / math.sqrt(width)  # PEFT's kaiming_uniform with a = √5
            a = mx.random.uniform(-bound, bound, (preset.rank, width), key=layer_key)
            linear.wear(LoraPair(a, mx.zeros((out, preset.rank)), preset.alpha / preset.rank))
        return peft_folder.new_config(layers, rank=preset.rank, alpha=preset.alpha)

    def round_products(self) -> str | None:
        return None

    @contextlib.contextmanager
    def wearing(self, adapter: Path | None) -> Iterator[None]:
        trained = {path: pair for path, linear in self._model.linears.items() if (pair := linear.worn)}
        self._wear({} if adapter is None else self._read(adapter).pairs)
        try:
            yield
        finally:
            self._wear(trained)

    def _read(self, folder: Path) -> peft_folder.Lora:
        shapes = {path: linear.shape for path, linear in self._model.linears.items()}
        lora = peft_folder.read(folder, shapes, mx.load, lambda array: bool(mx.isfinite(array).all().item()))
        pairs = {
            path: LoraPair(pair.a.astype(mx.float32), pair.b.astype(mx.float32), pair.scale)
            for path, pair in lora.pairs.items()
        }
        return peft_folder.Lora(lora.config, pairs)

    def _wear(self, pairs: Mapping[str, LoraPair]) -> None:
        for path, linear in self._model.linears.items():
            linear.wear(pairs.get(path))

    # --- log-probs ---

    def log_probs(self, packed: Packed, states: States | None = None) -> LogProbs:
        hidden = self._hidden(packed) if states is None else self._from_known_states(states)  # (N, H)
        plain, sampled, entropy = [], [], []
        for first in range(0, hidden.shape[0], HEAD_ROWS):
            part = slice(first, first + HEAD_ROWS)
            logits = self._logits(hidden[part], packed, part)  # (n, V)
            target = mx.array(packed.target[part])
            target_log_probs = _gather(logits, target)  # (n,)
            plain.append(_numpy(target_log_probs))
            log_probs = _log_softmax(logits)
            entropy.append(-_numpy(_sum(mx.exp(log_probs) * log_probs)))
            if packed.truncated:
                support = _support(logits, target, mx.array(packed.top_p[part]), mx.array(packed.top_k[part]))
                sampled.append(_numpy(target_log_probs - support))
        return LogProbs(*(np.concatenate(part) for part in (plain, sampled or plain, entropy)))

    def states(self, packed: Packed) -> States:
        return np.array(self._hidden(packed).astype(mx.float32))

    def middle(self, packed: Packed) -> States:
        ids, positions = pad(packed.sequences)
        outputs: list[Array] = []

        def look(states: Array) -> Array:
            outputs.append(states)
            return states

        with self._model.halfway(look):
            self._model.hidden(mx.array(ids))
        return np.array(outputs[0].reshape(-1, outputs[0].shape[-1])[mx.array(positions)].astype(mx.float32))

    @contextlib.contextmanager
    def leaning(self, direction: NDArray[np.float32]) -> Iterator[None]:
        shift = mx.array(direction)

        def lean(states: Array) -> Array:
            mask = np.zeros(states.shape[0] * states.shape[1], np.float32)
            mask[self._reply_rows] = 1.0
            return states + mx.array(mask.reshape(*states.shape[:2], 1)) * shift

        with self._model.halfway(lean):
            yield

    def surprise(self, packed: Packed) -> Surprise:
        worn = self._hidden(packed)  # (N, H)
        with self.wearing(None):
            bare = self._hidden(packed)
        parts = []
        for first in range(0, worn.shape[0], HEAD_ROWS):
            part = slice(first, first + HEAD_ROWS)
            base = _log_softmax(self._model.head(bare[part]))  # (n, V)
            theta = _log_softmax(self._model.head(worn[part]))
            base_entropy = -_numpy(_sum(mx.exp(base) * base))
            cross = -_numpy(_sum(mx.exp(theta) * base))
            parts.append(np.stack([cross - base_entropy, -_numpy(_sum(mx.exp(theta) * theta)), base_entropy]))
        return Surprise(*np.concatenate(parts, 1))

    def backward(self, packed: Packed, terms: Terms, loss: Loss) -> dict[str, float]:
        constants = Terms(**{f: _constant(getattr(terms, f)) for f in Terms.__slots__})
        target = mx.array(packed.target)
        teacher_ids = None if terms.teacher_ids is None else mx.array(terms.teacher_ids)

        def objective() -> tuple[Array, dict[str, Array]]:
            logits = self._logits(self._hidden(packed), packed, slice(None))  # (N, V)
            theta = _gather(logits, target)  # (N,)
            if teacher_ids is None:
                return loss(mx, theta, constants)
            at_teachers = mx.take_along_axis(_log_softmax(logits), teacher_ids, axis=-1)  # (N, K)
            return loss(mx, theta, constants, at_teachers)

        whole = self._model.whole
        parameters = whole.trainable_parameters()
        whole.train()  # recomputed layers look at it; there is no dropout
        (_, sums), gradient = nn.value_and_grad(whole, objective)()
        whole.eval()
        whole.update(parameters)  # what is in the model now belongs to the trace
        for path, part in tree_flatten(gradient):
            name = _peft_name(path)
            self._gradient[name] = self._gradient[name] + part if name in self._gradient else part
        mx.eval(sums, self._gradient)
        return {name: float(total.item()) for name, total in sums.items()}

    def teach(
        self, packed: Packed, k: int, required_ids: Sequence[int] = (), states: States | None = None
    ) -> TokenDistribution:
        hidden = self._hidden(packed) if states is None else self._from_known_states(states)  # (N, H)
        ids, values = [], []
        for first in range(0, hidden.shape[0], HEAD_ROWS):
            part = slice(first, first + HEAD_ROWS)
            log_probs = np.array(_log_softmax(self._logits(hidden[part], packed, part)))  # (n, V)
            k = min(k, log_probs.shape[-1])
            ranked = log_probs.copy()
            ranked[:, list(required_ids)] = np.inf
            top = np.argpartition(-ranked, k - 1, axis=-1)[:, :k]
            order = np.argsort(-np.take_along_axis(ranked, top, -1), axis=-1, kind="stable")
            ids.append(np.take_along_axis(top, order, -1))
            values.append(np.take_along_axis(log_probs, ids[-1], -1))
        return TokenDistribution(np.concatenate(ids).astype(np.int32), np.concatenate(values).astype(np.float32))

    def _hidden(self, packed: Packed) -> Array:
        ids, self._reply_rows = pad(packed.sequences)
        states = self._model.hidden(mx.array(ids))  # (B, S, H)
        return states.reshape(-1, states.shape[-1])[mx.array(self._reply_rows)]  # (N, H)

    def _from_known_states(self, states: States) -> Array:
        """(N, H) as `_hidden` gave them."""
        return mx.array(states)

    def _logits(self, hidden: Array, packed: Packed, part: slice) -> Array:
        """(n, H) -> (n, V) in fp32 at the serving temperature."""
        return self._model.head(hidden) / mx.array(packed.temperature[part])[:, None]

    # --- training ---

    def step(self, learning_rate: float, max_grad_norm: float) -> float:
        gradient, total = clip_grad_norm(self._gradient, max_grad_norm)
        norm = float(total.item())
        if math.isfinite(norm):
            self._optimiser.learning_rate = learning_rate
            self._set_trained(self._optimiser.apply_gradients(gradient, self._trained()))
            mx.eval(self._trained(), self._optimiser.state)
        self._gradient = {}
        mx.clear_cache()  # buffers of past shapes: the server beside a Mac's trainer has the same memory
        return norm

    def _trained(self) -> dict[str, Array]:
        return {_peft_name(path): array for path, array in tree_flatten(self._model.whole.trainable_parameters())}

    def _set_trained(self, arrays: Mapping[str, Array]) -> None:
        for path, linear in self._model.linears.items():
            if worn := linear.worn:
                a, b = (arrays[f"{PREFIX}{path}.{side}.default.weight"] for side in SIDES.values())
                linear.wear(LoraPair(a, b, worn.scale))

    def adapter(self) -> State:
        return {name: np.array(array) for name, array in self._trained().items()}

    def wear(self, adapter: Mapping[str, NDArray[Any]]) -> None:
        assert adapter.keys() == self._trained().keys(), "these are another adapter's tensors"
        self._set_trained({name: mx.array(np.asarray(array, np.float32)) for name, array in adapter.items()})

    def optimiser(self) -> State:
        """Write the state as torch has it, a step count for each tensor."""
        state_by_name = self._optimiser.state
        state: State = {}
        for name in self._trained():
            if name in state_by_name:
                state[f"step/{name}"] = np.array(state_by_name["step"].item(), np.float32)
                moments = state_by_name[name]
                state |= {f"{theirs}/{name}": np.array(moments[mine]) for mine, theirs in MOMENTS.items()}
        return state

    def restore(self, optimiser: Mapping[str, NDArray[Any]]) -> None:
        self._gradient = {}  # of a step that was not taken
        self._optimiser = _adamw(float(self._optimiser.learning_rate))
        state_by_name: dict[str, Any] = {"learning_rate": self._optimiser.learning_rate}
        moments = {torch_moment: moment for moment, torch_moment in MOMENTS.items()}
        for key, value in optimiser.items():
            field, name = key.split("/", 1)
            if field == "step":
                state_by_name["step"] = mx.array(int(value), mx.uint64)
            else:
                state_by_name.setdefault(name, {})[moments[field]] = mx.array(np.asarray(value, np.float32))
        if "step" in state_by_name:
            self._optimiser.state = state_by_name

    def _plan_memory(self, preset: Preset) -> bool:
        """Tell whether activations must be recomputed instead of kept."""
        config = self._model.config
        width = 14 * config["hidden_size"] + 6 * (config.get("intermediate_size") or 4 * config["hidden_size"])
        tokens = self.budget.tokens
        # Per token and layer: the inputs of every linear and of its LoRA, norms, attention; then logits twice over.
        need = 4 * tokens * (len(self._model.whole.layers) * width + 3 * config["vocab_size"])
        free = psutil.virtual_memory().available  # a Mac's GPU has the same memory
        reason = f"{tokens} tokens a micro-batch need about {need / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"
        recomputes = bool(need > SHARE_OF_FREE_MEMORY * free)
        self.choices.append(("gradient_checkpointing", recomputes, reason))
        return recomputes

    # --- replies and files ---

    def generate(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int, temperature: float, seed: int | Sequence[int]
    ) -> list[list[int]]:
        if not isinstance(seed, int):  # one after the other: mlx-lm draws a whole batch from one stream
            parts = [list(part) for _, part in groupby(zip(seed, prompts, strict=True), key=itemgetter(0))]
            return [
                reply
                for part in parts
                for reply in self.generate(
                    [prompt for _, prompt in part], max_tokens=max_tokens, temperature=temperature, seed=part[0][0]
                )
            ]
        key = mx.random.key(seed)

        def sample(logprobs: Array) -> Array:
            nonlocal key
            if temperature == 0:
                return mx.argmax(logprobs, axis=-1)
            key, draw_key = mx.random.split(key)
            return mx.random.categorical(logprobs / temperature, key=draw_key)

        generator = BatchGenerator(
            self._model.whole,
            stop_tokens=[[end] for end in self._ends],
            sampler=sample,
            completion_batch_size=len(prompts) if self._batches else 1,
            prefill_batch_size=len(prompts) if self._batches else 1,
        )
        try:
            numbers = generator.insert([list(prompt) for prompt in prompts], [max_tokens] * len(prompts))
            replies: dict[int, list[int]] = {number: [] for number in numbers}
            while responses := generator.next_generated():
                for response in responses:
                    replies[response.uid].append(int(response.token))
        finally:
            generator.close()
        return [replies[number] for number in numbers]

    def _can_batch(self) -> bool:
        if self._model.config.get("attn_logit_softcapping") is None:
            return True
        reason = "mlx-lm's mask for several rows does not fit a model that caps its attention"
        self.choices.append(("replies_at_a_time", 1, reason))
        return False

    def save(self, folder: Path) -> None:
        tensors = {name.replace(".default.", "."): array for name, array in self.adapter().items()}
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        peft_folder.write_config(folder, self._config, base_name=self._weights_name)


def find_device() -> tuple[str, str]:
    if mx.default_device().type == mx.DeviceType.gpu:
        return "gpu", f"{mx.device_info()['device_name']} found"
    return "cpu", "mlx finds no GPU"


def _peft_name(path: str) -> str:
    """model.layers.0.self_attn.q_proj.lora_a -> the name that torch's policy has for it."""
    module, side = path.rsplit(".", 1)
    return f"{PREFIX}{module}.{SIDES[side]}.default.weight"


def _constant(values: Any) -> Array | None:
    return None if values is None else mx.array(np.asarray(values, np.float32))


def _adamw(learning_rate: float) -> AdamW:
    return AdamW(learning_rate, weight_decay=0.0, bias_correction=True)  # as torch's; mlx's default is off


def _numpy(array: Array) -> NDArray[np.float64]:
    return np.array(array).astype(np.float64)


def _gather(logits: Array, target: Array) -> Array:
    """log-softmax (n, V) at the targets (n,), without writing the whole of it down."""
    return mx.take_along_axis(logits, target[:, None], axis=-1).squeeze(-1) - _logsumexp(logits)


def _log_softmax(logits: Array) -> Array:
    return logits - _logsumexp(logits)[:, None]


def _logsumexp(logits: Array) -> Array:
    """(n, V) -> (n,), in blocks: a CPU's mlx adds one term after the other, and is wrong by 2e-4 at V = 150,000."""
    return mx.logsumexp(mx.logsumexp(_blocks(logits, -mx.inf), axis=-1), axis=-1)


def _sum(values: Array) -> Array:
    return _blocks(values, 0.0).sum(-1).sum(-1)


def _blocks(values: Array, filler: float) -> Array:
    """(n, V) -> (n, V / BLOCK, BLOCK)"""
    padded = mx.pad(values, [(0, 0), (0, -values.shape[-1] % BLOCK)], constant_values=filler)
    return padded.reshape(len(values), -1, BLOCK)


def _support(logits: Array, target: Array, top_p: Array, top_k: Array) -> Array:
    """log of the mass that top-k, then top-p keep (n,); +inf where the target is not kept."""
    order = mx.argsort(-logits, axis=-1)  # (n, V)
    ordered = mx.take_along_axis(logits, order, axis=-1)
    rank = mx.arange(ordered.shape[-1])
    outside = (rank >= top_k[:, None]) & (top_k > 0)[:, None]
    shares = mx.exp(_log_softmax(mx.where(outside, -mx.inf, ordered)))
    mass_above = mx.cumsum(shares, axis=-1) - shares  # mass of the likelier tokens
    mask = (mass_above < top_p[:, None]) & ~outside  # the first always
    place = mx.argmax(order == target[:, None], axis=-1)
    mass = _logsumexp(mx.where(mask, ordered, -mx.inf)) - _logsumexp(logits)
    return mx.where(mx.take_along_axis(mask, place[:, None], axis=-1).squeeze(-1), mass, mx.inf)
