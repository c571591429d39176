"""The table of docs/reference/models.md: which kind of model learns on which server.

Owns its marks: what was run (scripts.models), else what was read (trainer.formats). Not here: putting it into the page
(tables).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from trainer.formats.manifest import AdapterError
from trainer.formats.server_layers import wearable_layers
from trainer.io.run_folder import ServerFormat

EXACT: Final = 2e-3  # nats
SERVED: Final[Mapping[str, tuple[str, ServerFormat]]] = {  # column, and what that server loads
    "llamacpp": ("llama.cpp, Ollama before 0.34.1", "gguf"),
    "merged": ("Ollama from 0.34.1, LM Studio", "merged"),
    "builtin": ("built-in", "peft"),
    "vllm": ("vLLM", "vllm"),
    "sglang": ("SGLang", "sglang"),
    "mlx": ("MLX", "mlx"),
}
BLOCKS: Final = ("self_attn", "mlp", "linear_attn", "conv", "feed_forward", "mamba", "attention", "temporal_block")


def matrix(reports: Sequence[Mapping[str, Any]]) -> str:
    """`reports`: benchmarks/model_servers.json and benchmarks/models.json."""
    servers, llamacpp = reports
    titles = [title for title, _ in SERVED.values()]
    lines = [f"| kind | trains | {' | '.join(titles)} |", "|---" * (len(titles) + 2) + "|"]
    for kind, row in sorted(llamacpp["kinds"].items()):
        rows = {"llamacpp": row, **{name: servers.get(name, {}).get(kind) for name in ("builtin", "vllm", "mlx")}}
        names = list(dict.fromkeys([*row.get("layers", ()), *row.get("left_out", ())]))
        cells = [_cell(kind, names, server_format, rows.get(server)) for server, (_, server_format) in SERVED.items()]
        lines.append(f"| {kind} | {_trains(servers.get('trainer', {}).get(kind))} | {' | '.join(cells)} |")
    dates = sorted({result["date"][:10] for result in llamacpp["kinds"].values()})
    return "\n".join([*lines, "", f"{' and '.join(dates)}, on {servers['machine']}."])


def _trains(row: Mapping[str, Any] | None) -> str:
    if row is None or "status" not in row:
        return "○"
    return "✓" if row["status"] == "passed" else str(row["status"])


def _cell(kind: str, names: Sequence[str], server_format: ServerFormat, row: Mapping[str, Any] | None) -> str:
    """Mark of what was run, else of what was read; with a minus where a run leaves layers out."""
    try:
        left_out = [name for name in names if not _has_place(kind, name, server_format)]
    except AdapterError:
        return "✗"
    if row is not None and server_format == "gguf":
        left_out = list(row.get("left_out", left_out))  # one name may be of two blocks
    minus = "−" if left_out else ""
    if row is not None and row.get("error", "").startswith("EngineError"):
        return "✗"
    if row is None or "error" in row or "refusal" in row:
        return f"○{minus}"
    difference = max(row["base"], row["adapter"])
    return f"✓{minus}" if difference <= EXACT else f"≈{difference:.1g}{minus}"


def _has_place(kind: str, name: str, server_format: ServerFormat) -> bool:
    """Tell whether a layer of this last name has one, whichever block it is in."""
    has_place = wearable_layers({"model_type": kind, "num_hidden_layers": 1}, server_format)
    return any(has_place(f"model.layers.0.{block}.{name}") for block in BLOCKS)
