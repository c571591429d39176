"""transformers + peft behind the Policy protocol: one model load a run, one LoRA in training, any other to wear.

Owns torch. Log-probs are computed one way for ℓ_old, ℓ_ref and training. A micro-batch goes through as its prefix tree,
where the model's attention allows that. Then come hidden states of reply tokens only, the head, and a log-softmax in
fp32 at the serving temperature. Dropout is off throughout: a person's few ratings are not what it was made for, and
ℓ_old must be what the first step sees. (Where `round_products` was called between, 0.02 nats a token are rounded.)
Not here: what is trained on (loop).
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import AutoTokenizer, GenerationConfig, LogitsProcessorList
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging as transformers_logging

from config.presets import Preset
from trainer.formats import model_code, model_info, server_layers
from trainer.formats.lora_files import LOADING, load_tensors, save_adapter
from trainer.formats.model_shape import mlp_width
from trainer.idle_cores import use_idle_cores
from trainer.io.run_folder import Compute, ServerFormat
from trainer.mis_po import Terms
from trainer.out_of_memory import OutOfMemory
from trainer.pictures.album import Album
from trainer.policy import autoscale, eos, senses, torch_load, torch_midway, torch_offload, tree, tree_attention
from trainer.policy.autoscale import ALL_LINEAR
from trainer.policy.footprint import MemoryPlan, token_bytes
from trainer.policy.packing import Budget, Packed, States, Tokens, pack, pad
from trainer.policy.policy import LogProbs, Loss, State, Surprise, TokenDistribution
from trainer.policy.torch_draws import SeededDraws
from trainer.policy.torch_head import (
    by_rows,
    chunks,
    log_probs_of,
    logit_scaling,
    many_log_probs,
    recomputed_by_rows,
    support_mass,
    with_entropies,
)
from trainer.policy.torch_memory import FreedMemory, free_bytes, give_back_at_once, unless_full
from trainer.policy.torch_pictures import PictureRows
from trainer.policy.torch_shards import least, load_lazily, no_gradient, processes, share
from trainer.policy.torch_speed import choose_library

TRAINED = "default"  # PEFT's name for the adapter in training


class TorchPolicy:
    interpolates = True

    def __init__(
        self,
        weights: Path,
        preset: Preset,
        *,
        parent: Path | None,
        threads: int,
        seed: int,
        compute: Compute = "auto",
        in_4bit: bool = False,
        offload: bool = False,
        server_format: ServerFormat = "peft",
    ) -> None:
        self._server_format = server_format
        self._config = json.loads((weights / "config.json").read_bytes())
        self.choices: list[tuple[str, Any, str]] = []
        self.device, self.reason = torch_load.find_device()
        if self.device == "cpu" and threads:
            torch.set_num_threads(threads)
        if self.device == "cpu" and (reason := choose_library()):
            self.choices.append(("library", "oneDNN", reason))
        torch.manual_seed(seed)
        transformers_logging.disable_progress_bar()
        self.tokenizer = AutoTokenizer.from_pretrained(weights, **model_code.options(weights))
        self._compute = compute
        dtype, reason = torch_load.choose_compute(compute, self.device)
        self.choices.append(("compute", str(dtype).removeprefix("torch."), reason))
        if in_4bit:
            self.choices.append(("load_in_4bit", True, "set (train.load_in_4bit)"))
        self._is_shared = processes() > 1
        self._offloads = False
        if offload:
            self._offloads, reason = torch_offload.applies(self.device, in_4bit=in_4bit)
            self.choices.append(("offload", self._offloads, reason))
        if self._is_shared:
            causal, waiting = load_lazily(weights, dtype)
        else:
            begins_on = "cpu" if self._offloads else self.device
            causal, waiting = torch_load.load(weights, begins_on, dtype, in_4bit=in_4bit), {}
        # Of what the model's makers recommend only the end: a repetition penalty would hide from the gate what loops.
        self._ends = eos.of_replies(causal.generation_config.eos_token_id, self.tokenizer)
        causal.generation_config = GenerationConfig(eos_token_id=self._ends)
        self._weights_name = weights.name
        self._profile = model_info.read(weights)
        self._is_part = model_info.part_that_writes(weights, [name for name, _ in causal.named_modules()])
        self.model = self._with_adapter(causal, preset, parent)
        self.model.eval()
        if self._offloads:
            torch_offload.stay(self.model, self.device)
        self.choices += share(self.model, causal, waiting, self.device)
        self._senses = senses.FrozenSenses(self.model)
        if len(self._senses):
            reason = "what reads pictures or sound; compared before and after"
            self.choices.append(("frozen", len(self._senses), reason))
        self.trained = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        assert self.trained, "no parameter is trainable"
        self._causal: Any = self.model.get_base_model()
        if self.device == "cpu" and not threads:
            use_idle_cores(torch_load.body(self._causal))
        self._scale_logits = logit_scaling(self._causal.config)
        self._vocabulary = int(self._causal.config.get_text_config().vocab_size)
        self.words = max(self._vocabulary, int(self._causal.get_input_embeddings().num_embeddings))
        make = torch_offload.OptimiserOnCpu if self._offloads else torch.optim.AdamW
        self._optimiser = make(self.trained.values(), lr=preset.learning_rate, weight_decay=0.0)
        # What its state is of: the parameters, or copies of them.
        self._stepped = dict(zip(self.trained, self._optimiser.param_groups[0]["params"], strict=True))
        self._check_head()
        self._kernel, reason = tree_attention.prepare(self._causal, self.device, max_seq_len=preset.max_seq_len)
        layout = reason if self._kernel else f"{reason}: rows of like length, padded to the longest"
        self.choices.append(("shared_prefixes", self._kernel or False, layout))
        self._halfway = torch_midway.layer(self._causal)
        self.leans = self._halfway is not None
        self._reply_rows: NDArray[np.int64] = np.empty(0, np.int64)  # (N,) of the pass that is under way
        self._pictures: PictureRows | None = None
        self._bare_states: tuple[tuple[Tokens, ...], Tensor] | None = None
        self._freed_memory = FreedMemory()
        self._plan = self._plan_memory(preset)
        self.budget = Budget(self._plan.largest, self._plan.unrelated, trees=self._kernel is not None)

    def see(self, album: Album) -> str | None:
        self._pictures = PictureRows(self._causal, album, self.device)
        with torch.inference_mode():
            return self._pictures.refusal(lambda sequence: self._hidden(pack([sequence])))

    def picture_features(self, names: Sequence[str]) -> NDArray[np.float64]:
        assert self._pictures is not None, "a sample has a picture, and none were read"
        return self._pictures.means(names)

    # --- which adapter the model wears ---

    def _with_adapter(self, causal: Any, preset: Preset, parent: Path | None) -> Any:
        if parent is not None:
            layers = server_layers.lora_layers(parent)
            server_layers.require_loadable(parent, layers, self._config, self._server_format)
            with _peft():
                model = PeftModel.from_pretrained(
                    causal, parent, adapter_name=TRAINED, is_trainable=True, **self._key_mapping
                )
            config = model.peft_config[TRAINED]
            if (config.r, float(config.lora_alpha)) != (preset.rank, preset.alpha):
                reason = f"the parent adapter's; the preset's {preset.rank} would need a new adapter"
                self.choices.append(("rank", config.r, reason))
            config.lora_dropout = 0.0
            torch_load.drop_nothing(model)  # peft has built the layers with the config's dropout by now
            self._freeze_others(model)
            names = [n.partition(".lora_")[0] for n, p in model.named_parameters() if p.requires_grad]
            reason = "the parent adapter's" + (", without routers and experts" if self._profile.mixture else "")
            self.choices.append(("layers", autoscale.last_names(names), reason))
            self.choices.append(("start", parent.name, "warm start: its weights go on training"))
            return model
        self.choices.append(("start", "base", "no parent: a new adapter that changes nothing yet"))
        config = LoraConfig(
            r=preset.rank,
            lora_alpha=preset.alpha,
            target_modules=self._layers(causal, preset.layers),
            lora_dropout=0.0,
            bias="none",
            task_type="CAUSAL_LM",
        )
        with _peft():
            model = get_peft_model(causal, config, adapter_name=TRAINED)
        trained = [n for n, p in model.named_parameters() if p.requires_grad]
        if self._profile.mixture and (wrong := next(filter(model_info.picks_or_is_expert, trained), None)):
            raise RuntimeError(f"peft put a LoRA on {wrong}, which was not asked for: nothing was trained.")
        return model

    def _layers(self, causal: Any, setting: str) -> str | list[str]:
        head = causal.get_output_embeddings()
        linears = [n for n, m in causal.named_modules() if isinstance(m, torch.nn.Linear | Conv1D) and m is not head]
        targets, choices = autoscale.targets(linears, setting, self._profile, self._config, self._server_format)
        self.choices += choices
        # From the layers on: then the same names are found in the part and in the whole model.
        return [t.removeprefix("model.") for t in targets] if self._is_part and targets != ALL_LINEAR else targets

    @property
    def _key_mapping(self) -> dict[str, Any]:
        return {"key_mapping": LOADING} if self._is_part else {}

    def _freeze_others(self, model: Any) -> None:
        """An adapter from elsewhere may be on experts too: it is worn whole, but only its other layers train."""
        senses.freeze(model)
        for name, parameter in model.named_parameters():
            if self._profile.mixture and model_info.picks_or_is_expert(name):
                parameter.requires_grad = False

    @contextlib.contextmanager
    def wearing(self, adapter: Path | None) -> Iterator[None]:
        if adapter is None:
            with self.model.disable_adapter():
                yield
            return
        name = f"worn-{adapter.name.replace('.', '-')}"
        with _peft():
            self.model.load_adapter(str(adapter), adapter_name=name, **self._key_mapping)
        if self._offloads:
            torch_offload.to_device(self.model, self.device)
        try:
            self.model.set_adapter(name)
            yield
        finally:
            self.model.set_adapter(TRAINED)
            self._freeze_others(self.model)
            self.model.delete_adapter(name)

    def round_products(self) -> str | None:
        reason = None if self._is_shared else torch_load.products_in_bf16(self._compute, self.device)
        head = self._causal.get_output_embeddings()
        self._bare_states = None
        is_rounded = reason is not None and torch_load.round_products(self.model, head) > 0
        self._freed_memory.give_back(most=0)  # of the scoring before, and of what was rounded
        return reason if is_rounded else None

    # --- log-probs ---

    def log_probs(self, packed: Packed, states: States | None = None) -> LogProbs:
        with no_gradient():
            hidden = self._hidden(packed) if states is None else self._from_known_states(states)  # (N, H)
            plain, sampled, entropy = [], [], []
            for part in chunks(len(hidden), self._vocabulary):
                logits = self._logits(hidden[part], packed, part)  # (n, V)
                target = self._tensor(packed.target)[part]
                target_log_probs, part_entropy = with_entropies(logits, target)  # (n,)
                plain.append(target_log_probs)
                entropy.append(part_entropy)
                if packed.truncated:
                    top_p, top_k = self._tensor(packed.top_p)[part], self._tensor(packed.top_k)[part]
                    sampled.append(target_log_probs - support_mass(logits, target, top_p, top_k))
        parts = (plain, sampled or plain, entropy)
        return LogProbs(*(torch.cat(part).double().cpu().numpy() for part in parts))

    def states(self, packed: Packed) -> States:
        with no_gradient():
            states: States = self._hidden(packed).float().cpu().numpy()
        return states

    def middle(self, packed: Packed) -> States:
        outputs: list[Tensor] = []
        with no_gradient(), torch_midway.watch_output(self._halfway, outputs.append):
            self._hidden(packed)
            states: States = outputs[0][self._tensor(self._reply_rows)].float().cpu().numpy()
        return states

    @contextlib.contextmanager
    def leaning(self, direction: NDArray[np.float32]) -> Iterator[None]:
        shift = self._tensor(direction)

        def lean(states: Tensor) -> None:
            states[self._tensor(np.unique(self._reply_rows))] += shift.to(states.dtype)

        with torch_midway.watch_output(self._halfway, lean):
            yield

    def surprise(self, packed: Packed) -> Surprise:
        with no_gradient():
            worn, bare = self._hidden(packed), self._bare(packed)  # (N, H)
            parts = []
            for part in chunks(len(worn), self._vocabulary):
                base, now = self._head(bare[part]).log_softmax(-1), self._head(worn[part]).log_softmax(-1)  # (n, V)
                base_entropy, chances = -(base.exp() * base).sum(-1), now.exp()
                cross = -(chances * base).sum(-1)
                parts.append(torch.stack([cross - base_entropy, -(chances * now).sum(-1), base_entropy]))
        return Surprise(*torch.cat(parts, 1).double().cpu().numpy())

    def _bare(self, packed: Packed) -> Tensor:
        """(N, H) as the bare base has it, kept for the next look at the same replies."""
        if self._bare_states is None or self._bare_states[0] != packed.sequences:
            with self.model.disable_adapter():
                self._bare_states = packed.sequences, self._hidden(packed)
        return self._bare_states[1]

    def backward(self, packed: Packed, terms: Terms, loss: Loss) -> dict[str, float]:
        try:
            return unless_full(self.device, lambda: self._backward(packed, terms, loss))
        except OutOfMemory:
            self._optimiser.zero_grad(set_to_none=True)
            raise
        finally:
            self.model.eval()

    def _backward(self, packed: Packed, terms: Terms, loss: Loss) -> dict[str, float]:
        hidden = self._hidden(packed, training=True)  # (N, H)
        target = self._tensor(packed.target)
        constants = Terms(**{f: self._constant(getattr(terms, f)) for f in Terms.__slots__})
        if terms.teacher_ids is None:
            theta = by_rows(
                hidden,
                lambda rows, part: log_probs_of(self._logits(rows, packed, part), target[part]),
                self._vocabulary,
            )  # (N,)
            value, sums = loss(torch, theta, constants)
        else:
            ids = torch.cat([target[:, None], self._tensor(terms.teacher_ids)], 1)
            each = recomputed_by_rows(
                hidden,
                lambda rows, part: many_log_probs(self._logits(rows, packed, part), ids[part]),
                self._vocabulary,
            )  # (N, 1 + K)
            value, sums = loss(torch, each[:, 0], constants, each[:, 1:])
        value.backward()
        return {name: float(total.detach()) for name, total in sums.items()}

    def teach(
        self, packed: Packed, k: int, required_ids: Sequence[int] = (), states: States | None = None
    ) -> TokenDistribution:
        with no_gradient():
            hidden = self._hidden(packed) if states is None else self._from_known_states(states)  # (N, H)
            ids, values = [], []
            for part in chunks(len(hidden), self._vocabulary):
                logits = self._logits(hidden[part], packed, part)  # (n, V)
                log_probs = logits.log_softmax(-1)
                top = log_probs.index_fill(-1, self._tensor(np.asarray(required_ids, np.int64)), torch.inf)
                ids.append(top.topk(min(k, logits.shape[-1])).indices)
                values.append(log_probs.gather(-1, ids[-1]))
        top_ids, top_values = torch.cat(ids).to(torch.int32), torch.cat(values).to(torch.float32)
        return TokenDistribution(top_ids.cpu().numpy(), top_values.cpu().numpy())

    def _hidden(self, packed: Packed, *, training: bool = False) -> Tensor:
        """(N, H) what predicts each reply token."""
        forward: Any = torch_load.body(self._causal)
        pictures = self._pictures if self._pictures and self._pictures.are_in(packed.sequences) else None
        if self._kernel is not None and not (pictures and pictures.looks_ahead):
            forest = tree.grow(packed.sequences)
            self._prepare_layers(len(forest.ids), training=training)
            layout = tree_attention.Layout(forest, self.device, flex=self._kernel == "flex")
            self._reply_rows = tree.reply_columns(forest, packed.sequences)
            inputs = layout.inputs()
        else:
            # No attention mask: padding is on the right, and a causal or sliding mask never looks there.
            ids, self._reply_rows = pad(packed.sequences)
            self._prepare_layers(ids.size, training=training)
            inputs = {"input_ids": self._tensor(ids), "use_cache": False}
        if pictures is not None:
            inputs |= pictures.companions(inputs["input_ids"])
        states = forward(**inputs).last_hidden_state.flatten(0, 1)  # (S, H) or (B·S, H)
        gathered: Tensor = states[self._tensor(self._reply_rows)]
        return gathered

    def _prepare_layers(self, tokens: int, *, training: bool) -> None:
        recompute = training and self._plan.recomputes(tokens)
        if recompute and self.device == "cpu" and self._plan.is_tight(tokens):
            give_back_at_once()
        self.model.train(recompute)  # transformers checkpoints only then; every dropout is 0

    def _logits(self, hidden: Tensor, packed: Packed, part: Any) -> Tensor:
        """(n, H) -> (n, V) in fp32 at the serving temperature."""
        return self._head(hidden) / self._tensor(packed.temperature)[part, None]

    def _head(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._scale_logits(self._causal.get_output_embeddings()(hidden).float())
        return logits

    def _from_known_states(self, states: States) -> Tensor:
        """(N, H) as `_hidden` gave them."""
        return self._tensor(states).to(self._causal.get_input_embeddings().weight.dtype)

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def _constant(self, values: Any) -> Tensor | None:
        return None if values is None else self._tensor(np.asarray(values, np.float32))

    def _check_head(self) -> None:
        """The short way through the head must give the model's own logits; a model with another head is refused."""
        ids = torch.arange(2, 10, device=self.device)[None] % self._causal.config.get_text_config().vocab_size
        with no_gradient():
            logits = self._causal(input_ids=ids, use_cache=False).logits.float()  # (1, 8, V)
            states = torch_load.body(self._causal)(input_ids=ids, use_cache=False).last_hidden_state
            short_logits = self._head(states)
        gap = float((logits - short_logits).abs().max())
        if not gap <= 1e-3 * max(1.0, float(logits.abs().max())):
            raise ValueError(
                f"{type(self._causal).__name__} computes its logits in a way that this trainer does not "
                f"know (they differ by {gap:.3g}): log-probs would be wrong."
            )

    # --- training ---

    def step(self, learning_rate: float, max_grad_norm: float) -> float:
        for group in self._optimiser.param_groups:
            group["lr"] = learning_rate
        norm = float(torch.nn.utils.clip_grad_norm_(list(self.trained.values()), max_grad_norm))
        if np.isfinite(norm):
            self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        self._freed_memory.give_back(most=0)
        return norm

    def adapter(self) -> State:
        return {name: p.detach().cpu().numpy().copy() for name, p in self.trained.items()}

    def wear(self, adapter: Mapping[str, NDArray[Any]]) -> None:
        load_tensors(self.trained, adapter)

    def optimiser(self) -> State:
        state: State = {}
        for name, p in self._stepped.items():
            for key, value in self._optimiser.state.get(p, {}).items():
                state[f"{key}/{name}"] = value.detach().cpu().numpy().copy()
        return state

    def restore(self, optimiser: Mapping[str, NDArray[Any]]) -> None:
        self._optimiser.state.clear()
        self._optimiser.zero_grad(set_to_none=True)  # of a step that was not taken
        for key, value in optimiser.items():
            field, name = key.split("/", 1)
            tensor = torch.from_numpy(np.array(value))
            p = self._stepped[name]
            # AdamW keeps its step count on the CPU.
            self._optimiser.state[p][field] = tensor if field == "step" else tensor.to(p.device)

    def _plan_memory(self, preset: Preset) -> MemoryPlan:
        """How large a micro-batch may be, and from where on activations are recomputed instead of kept."""
        config = self._causal.config.get_text_config()
        width = mlp_width({**config.to_dict(), "hidden_size": config.hidden_size})
        each = token_bytes(config.num_hidden_layers, config.hidden_size, width)
        plan = MemoryPlan.of(each, self.device, least(free_bytes(self.device)), max_seq_len=preset.max_seq_len)
        if self._offloads:  # what is kept for the way back would keep the copies of weights, too
            plan = replace(plan, largest_kept=0, kept_reason="layers are on the CPU, so none are kept")
        self.choices.append(("micro_batch", plan.largest, plan.reason))
        recomputes = plan.recomputes(plan.largest)
        reason = f"above {plan.largest_kept} tokens a micro-batch: {plan.kept_reason}"
        self.choices.append(("gradient_checkpointing", recomputes, reason))
        if recomputes:
            self._causal.activation_checkpointing_enable({"use_reentrant": False})
            self._causal.enable_input_require_grads()  # else no gradient enters the first recomputed layer
            if self.device == "cpu":
                self._freed_memory.watch(self._causal)
        return plan

    # --- replies and files ---

    def generate(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int, temperature: float, seed: int | Sequence[int]
    ) -> list[list[int]]:
        width = max(map(len, prompts))
        ids = torch.full((len(prompts), width), self._ends[0], device=self.device)  # (B, P), padded on the left
        mask = torch.zeros_like(ids)
        for i, prompt in enumerate(prompts):
            ids[i, width - len(prompt) :] = torch.tensor(prompt)
            mask[i, width - len(prompt) :] = 1
        seeds = [seed] * len(prompts) if isinstance(seed, int) else list(seed)
        options = {
            **(self._pictures.companions(ids) if self._pictures else {}),
            "max_new_tokens": max_tokens,
            "pad_token_id": self._ends[0],
            "do_sample": False,  # the next token is drawn before
            "synced_gpus": self._is_shared,  # the others go on until the longest reply has ended
            "logits_processor": LogitsProcessorList(
                [SeededDraws(seeds, temperature, self.device)] if temperature > 0 else []
            ),
        }
        with no_gradient():
            out: Tensor = unless_full(
                self.device, lambda: self.model.generate(input_ids=ids, attention_mask=mask, **options)
            )[:, width:]  # (B, ≤ max_tokens)
        return [eos.until_end(row, self._ends) for row in out.tolist()]

    def save(self, folder: Path) -> None:
        """Raises ChangedSenses where a frozen part was changed."""
        self._senses.check(self.model)
        save_adapter(self.model, TRAINED, folder, base_name=self._weights_name, is_part=self._is_part)


@contextlib.contextmanager
def _peft() -> Iterator[None]:
    """peft 0.21 asks transformers 5.23 for a property under its old name, and that warns."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)
        yield
