"""The footprint of a model: bytes of its weights, of a run, of a server and of a version, and the arithmetic of a run.

Owns these formulas, each with its derivation, and the plan of micro-batches that follows from free memory. A run asks
them before it trains, `rlproxy plan` before there is a run. Pure, without torch. Numbers that were measured say so;
`scripts/models/plan_check.py` holds them against whole runs. Not here: the shapes (formats.model_shape), what is
advised (estimate), the C allocator's habits (torch_memory).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from trainer.formats.model_shape import ModelShape, Shapes

GB: Final = 2**30
Store = Literal["float32", "bfloat16", "4 bits", "rounded"]  # "rounded": large frozen layers of a CPU run (torch_load)

# --- weights ------------------------------------------------------------------------------------------------------
# A parameter has 4 bytes in float32 and 2 in bfloat16. From the head on all is float32: where the base is stored in
# less, the head has its own copy (torch_load). nf4 has 4 bits a weight, 8 bits of scale for 64 of them, and 32 bits of
# a second scale for 256 of those (QLoRA, arXiv 2305.14314, section 3).
NF4_BITS: Final = 4 + 8 / 64 + 32 / (64 * 256)
# A GGUF file in 4 bits as Ollama's library has them (Q4_K_M): some tensors in 6 bits. Of llama.cpp's own table for 8 B.
WIDE: Final = 256  # columns of a frozen layer; narrower ones are no faster in bfloat16 (torch_load)
Q8_BITS: Final = 8.5  # 32 weights of 8 bits share a scale of 16


def weights_bytes(shape: ModelShape, store: Store) -> int:
    """The base model in a run, with the head's own copy."""
    total, linear = shape.profile.total, linear_parameters(shape)
    if store == "float32":
        return 4 * total
    if store == "rounded":  # wide layers multiply in bfloat16, the rest stays as it is
        return 4 * total - 2 * linear_parameters(shape, narrowest=WIDE)
    copy = 4 * shape.head if shape.tied else 2 * shape.head  # else the head itself becomes float32
    if store == "bfloat16":
        return 2 * total + copy
    # Only layers are packed: embeddings, norms and stacked experts stay as they are (transformers' bitsandbytes).
    return round(linear * NF4_BITS / 8) + 2 * (total - linear) + copy


def linear_parameters(shape: ModelShape, narrowest: int = 0) -> int:
    """Count the weights of the layers but the head. Experts that are stacked in one tensor are not among them."""
    return sum(
        rows * width
        for name, (rows, width) in shape.linears.items()
        if min(rows, width) >= narrowest and not (shape.profile.mixture and _is_routed(name))
    )


def _is_routed(name: str) -> bool:
    return any(segment in ("experts", "switch_mlp") for segment in name.split("."))


# --- what trains --------------------------------------------------------------------------------------------------
# A LoRA on a layer of (out, in) is two matrices, (rank, in) and (out, rank). Each of its numbers trains in float32,
# with its gradient and AdamW's two moments: 4 × 4 bytes.
TRAINED_BYTES: Final = 16


def adapter_parameters(layers: Shapes, rank: int) -> int:
    return sum(rank * (rows + width) for rows, width in layers.values())


# --- activations --------------------------------------------------------------------------------------------------
# A layer keeps for the way back what its products read: two norms' inputs and outputs, q, k, v, attention's output, the
# residuals (about 14 × hidden a token), and between gate, up and down some 6 × the MLP's width. LoRA reads the same
# inputs. All in 4 bytes: the adapter's inputs are float32 also where the base is not. Counted tensor by tensor in
# tests/trainer/policy/test_footprint.py. Recomputed, each layer keeps only what enters it, and one layer all it needs,
# both ways.
HOLES: Final = 1.4  # the resident set grows by this much more than the tensors, measured (docs/lab/benchmarks.md)
SHARE_OF_FREE_MEMORY = 0.6  # what training may plan with; the server beside it grows too
COMFORTABLE = 2 << 30  # bytes of activations kept on a CPU, where other programs have the same memory
UNRELATED: Final = 640  # tokens that are put together at most, see docs/lab/training-log.md; a CPU takes SMALL
SMALL = 256  # tokens of unrelated sequences a micro-batch on a CPU: as fast as more, with two thirds of the memory
LONGEST = 4  # sequences of max_seq_len: more in one micro-batch share no more than these do already
HOARD = 512 << 20  # bytes of freed memory that the C library may keep: half of it costs time, and saves little more


class TokenBytes(NamedTuple):
    """Bytes of activations a token in a backward pass."""

    stored: float
    recomputed: float


def token_bytes(depth: int, hidden: int, width: int) -> TokenBytes:
    """`depth` layers of `hidden` states, whose MLP is `width` wide where it is widest."""
    layer = 14 * hidden + 6 * width
    return TokenBytes(HOLES * 4 * depth * layer, HOLES * 4 * (depth * hidden + 2 * layer))


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How large a micro-batch may be: an estimate of what its backward pass keeps, against the memory that is free."""

    largest: int  # tokens a micro-batch
    unrelated: int  # and of sequences that share little
    largest_kept: int  # tokens up to which activations are kept until the backward pass
    largest_hoarding: int  # tokens up to which the C library may hoard freed memory, which is faster
    reason: str
    kept_reason: str

    @classmethod
    def of(cls, each: TokenBytes, device: str, free: int, *, max_seq_len: int) -> MemoryPlan:
        """`free`: bytes that are free where it trains."""
        room = SHARE_OF_FREE_MEMORY * free
        largest = max(UNRELATED, min(int(room / each.recomputed), LONGEST * max_seq_len))
        comfortable = room if device == "cuda" else min(room, COMFORTABLE)
        reason = (
            f"{free / 2**30:.1f} GiB are free, a token needs about {each.stored / 2**20:.2f} MiB, "
            f"{each.recomputed / 2**20:.2f} MiB with its activations recomputed"
        )
        kept_reason = f"{comfortable / 2**30:.2g} GiB of activations are kept at most"
        unrelated = UNRELATED if device == "cuda" else SMALL
        largest_hoarding = int(max(0.0, room - HOARD) / each.recomputed)
        return cls(largest, unrelated, int(comfortable / each.stored), largest_hoarding, reason, kept_reason)

    def recomputes(self, tokens: int) -> bool:
        return tokens > self.largest_kept

    def is_tight(self, tokens: int) -> bool:
        return tokens > self.largest_hoarding


# --- a run --------------------------------------------------------------------------------------------------------
# In float32 a chunk of logits is CHUNK bytes (torch_head). Beside it are a softmax, its gradient, and a copy at the
# serving temperature. Hidden states before each reply token are kept for the critic, up to REMEMBERED bytes (scoring).
CHUNK: Final = 32 << 20
CHUNK_COPIES: Final = 4
LEAST_ROWS: Final = 16
REMEMBERED: Final = 256 << 20
# Python, torch, transformers and peft before a model is loaded: measured, without files that others share.
LIBRARIES: Final = 0.4 * GB
CUDA_CONTEXT: Final = 0.6 * GB  # of a process with a GPU: the driver and kernels; not measured here
GATE_REPLIES: Final = 24  # at most (run.gate), 3 to each of 8 questions; two thirds of them at once
GATE_TOKENS: Final = 100  # of one of them, with its question


class Workload(NamedTuple):
    ratings: int
    tokens: int  # of prompt and answer together, of a typical one

    @property
    def reply(self) -> int:
        """Tokens of the answer: most, as where people ask in a sentence."""
        return max(1, round(self.tokens * 0.8))


class RunMemory(NamedTuple):
    """Bytes of a run at its peak, where the model is."""

    base: int  # weights
    trained: int  # the adapter with gradients and the optimiser's state
    activations: int
    logits: int
    states: int  # hidden states and the cache of the gate's replies
    process: int

    @property
    def total(self) -> int:
        return sum(self)


def logits_bytes(vocabulary: int) -> int:
    return CHUNK_COPIES * max(CHUNK, 4 * vocabulary * LEAST_ROWS)


def micro_batch(tokens: int, plan: MemoryPlan) -> int:
    """Tokens of sequences that share little which go through the model at once: as many as fit, and always one."""
    return max(tokens, min(plan.unrelated, plan.largest) // tokens * tokens)


def training_activations(shape: ModelShape, workload: Workload, plan: MemoryPlan) -> int:
    tokens = micro_batch(workload.tokens, plan)
    each = token_bytes(shape.depth, shape.hidden, shape.width)
    return round(tokens * (each.recomputed if plan.recomputes(tokens) else each.stored))


def cache_bytes(shape: ModelShape, tokens: int, number_bytes: int = 2) -> int:
    """Keys and values of this many tokens in a server: numbers a token and layer, and no more than a layer looks
    back."""
    return number_bytes * sum(layer.numbers * min(tokens, layer.window or tokens) for layer in shape.cache)


def memory_plan(shape: ModelShape, store: Store, device: str, free: int, *, max_seq_len: int) -> MemoryPlan:
    """The run's own plan of micro-batches; `free`: bytes before its process starts."""
    process = CUDA_CONTEXT if device == "cuda" else LIBRARIES
    remaining = free - weights_bytes(shape, scored_in(store)) - process
    each = token_bytes(shape.depth, shape.hidden, shape.width)
    return MemoryPlan.of(each, device, max(0, round(remaining)), max_seq_len=max_seq_len)


def scored_in(store: Store) -> Store:
    """Replies are compared with the server's before products are rounded."""
    return "float32" if store == "rounded" else store


def run_memory(
    shape: ModelShape, trained: int, workload: Workload, store: Store, plan: MemoryPlan, device: str
) -> RunMemory:
    """Bytes of a run at its peak. `trained`: numbers of the adapter.

    There are two heights. Replies are scored with all weights as they were loaded, and without activations to keep.
    Then layers are rounded (on a CPU that gains by it), and steps keep activations.
    """
    process = round(CUDA_CONTEXT if device == "cuda" else LIBRARIES)
    remembered = min(REMEMBERED, 4 * workload.ratings * workload.reply * shape.hidden)
    gate = cache_bytes(shape, GATE_REPLIES * GATE_TOKENS, 2 if store in ("bfloat16", "4 bits") else 4)
    states, logits = max(remembered, gate), logits_bytes(shape.vocabulary)
    one_layer = token_bytes(1, shape.hidden, shape.width).stored * micro_batch(workload.tokens, plan)
    scored = weights_bytes(shape, scored_in(store))
    scoring = RunMemory(scored, 4 * trained, round(one_layer), logits, states, process)
    activations = training_activations(shape, workload, plan)
    steps = RunMemory(weights_bytes(shape, store), TRAINED_BYTES * trained, activations, logits, states, process)
    return max(scoring, steps, key=lambda memory: memory.total)


# --- a small card -------------------------------------------------------------------------------------------------
# Where frozen layers stay on the CPU, a layer's weights are on the card while it computes, and the next one's may be on
# their way (torch_offload). Its activations are always computed again. AdamW's moments, a copy of the adapter and of
# its gradient are in the machine's memory: 16 bytes a number, and 8 (number and gradient) on the card.
LAYERS_AT_ONCE: Final = 2


def layers_bytes(shape: ModelShape) -> int:
    """The frozen layers in bfloat16: all but embeddings and head."""
    return 2 * (shape.profile.total - shape.head * (1 if shape.tied else 2))


def offloaded(memory: RunMemory, shape: ModelShape, trained: int, workload: Workload) -> RunMemory:
    """The card's part of a run in bfloat16 whose frozen layers and optimiser are on the CPU."""
    layers = layers_bytes(shape)
    base = memory.base - layers + LAYERS_AT_ONCE * layers // shape.depth
    tokens = max(workload.tokens, UNRELATED // workload.tokens * workload.tokens)
    activations = round(token_bytes(shape.depth, shape.hidden, shape.width).recomputed * tokens)
    return memory._replace(base=base, trained=8 * trained, activations=activations)


def offloaded_ram(shape: ModelShape, trained: int) -> int:
    return round(layers_bytes(shape) + TRAINED_BYTES * trained + LIBRARIES)


# --- a version ----------------------------------------------------------------------------------------------------
# Adapters are written in float32, in PEFT's folder, in a GGUF file and in MLX's. Beside PEFT's, rlproxy keeps AdamW's
# two moments, with which the next run goes on. A whole GGUF model is as large as the one that it is made of. At most it
# has its changed layers in Q8_0, once it has learned much (formats.merge_gguf).


def adapter_bytes(trained: int) -> int:
    return 4 * trained


def stored_bytes(trained: int) -> int:
    """A version in rlproxy's own folder: the adapter and the optimiser's state."""
    return 3 * adapter_bytes(trained)


def file_bytes(shape: ModelShape, bits: float) -> int:
    """A model file of this many bits a weight; the embeddings are written once where the head is the same."""
    return round(shape.profile.total * bits / 8)


def most_merged_bytes(shape: ModelShape, layers: Shapes, bits: float) -> int:
    """A whole model with so much learned in its layers that they need 8 bits."""
    changed = sum(rows * width for rows, width in layers.values())
    return file_bytes(shape, bits) + round(changed * max(0.0, Q8_BITS - bits) / 8)


# --- arithmetic ---------------------------------------------------------------------------------------------------
# A product with a weight is 2 operations a token, forwards. The way back through a frozen weight is 2 more (the
# gradient of what entered it; there is none of the weight), and 2 again where the layer is computed once more. The head
# is asked for the tokens of answers alone. Attention's own products are left out: below 5 % at these lengths.


class RunWork(NamedTuple):
    """Operations of a run by what they are done in."""

    scoring: float  # in the format that replies are compared in
    steps: float  # in the format that trains
    writing: float  # the gate's replies, one token of each at a time
    passes: int  # over all weights, to write them


SCORED: Final = 3.0  # times each token is read before the steps: states, the base, what a critic and an anchor ask
STEPPED: Final = 7 / 8  # of the ratings train, the rest is for the gate
GATE_READ: Final = 3.0  # times the gate reads its replies
REPLY_TOKENS: Final = 48  # run.gate writes so many at most
PARENT_REPLIES: Final = 8


def read_passes(workload: Workload) -> int:
    """Passes over all layers that read, not write: of each micro-batch before the steps, and there and back in them."""
    batches = -(-workload.ratings * workload.tokens // max(UNRELATED, workload.tokens))
    return round(batches * (SCORED + STEPPED * 2) + GATE_READ)


def run_work(shape: ModelShape, workload: Workload, *, recomputes: bool) -> RunWork:
    embeddings = shape.head * (1 if shape.tied else 2)
    active = max(1, shape.profile.active - embeddings)
    read, replies = workload.ratings * workload.tokens, workload.ratings * workload.reply
    scoring = SCORED * (2 * active * read + 2 * shape.head * replies)
    ways = 3 if recomputes else 2
    steps = STEPPED * 2 * (ways * active * read + 2 * shape.head * replies)
    gate_tokens = GATE_REPLIES * GATE_TOKENS
    steps += GATE_READ * 2 * (active + shape.head / 2) * gate_tokens
    written = (GATE_REPLIES + PARENT_REPLIES) * REPLY_TOKENS
    prompts = GATE_REPLIES * (GATE_TOKENS - REPLY_TOKENS)
    writing = 2 * (active + shape.head) * written + 2 * active * prompts
    return RunWork(scoring, steps, writing, 2 * REPLY_TOKENS)
