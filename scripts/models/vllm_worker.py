"""Tiny models in vLLM, one after the other in this process: run by its own environment's Python (scripts.models.vllm).

`python vllm_worker.py FOLDER KIND …` prints one line a kind: log-probs of the next token after each prompt, without the
adapter and with it, or why there are none.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1", "VLLM_MLA_DISABLE": "1", "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}  # fmt: skip
LIKELIEST = 20


def try_model(folder: Path, prompts: list[list[int]]) -> dict[str, Any]:
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.triton_utils import tl

    # A stand-in where there is no triton. Kernels for experts name its types as they are imported; none is called here.
    type(tl).__getattr__ = lambda self, name: None

    llm = LLM(
        str(folder / "base"),
        lora_target_modules=_attention_alone(folder),
        dtype="float32",
        enforce_eager=True,
        max_model_len=128,
        max_num_seqs=4,
        enable_lora=True,
        max_lora_rank=8,
        max_loras=1,
        max_cpu_loras=1,
        max_logprobs=LIKELIEST,
        enable_prefix_caching=False,
    )
    options = SamplingParams(max_tokens=1, temperature=0, logprobs=LIKELIEST)
    answers = {"class": _class_name(llm)}
    answers["plain"] = [_next_token(llm, ids, options, None) for ids in prompts]
    adapter = LoRARequest("a", 1, str(folder / "adapter"))
    try:
        answers["adapted"] = [_next_token(llm, ids, options, adapter) for ids in prompts]
    except Exception as error:
        answers["refusal"] = f"{type(error).__name__}: {error}"[:600]
    return answers


def _attention_alone(folder: Path) -> list[str] | None:
    """`--lora-target-modules` of a mixture: without it vLLM wraps the experts in kernels that a CPU does not have."""
    if "expert" not in (folder / "base" / "config.json").read_text():
        return None
    names = json.loads((folder / "adapter" / "adapter_config.json").read_bytes())["target_modules"]
    return sorted({name.rpartition(".")[2] for name in names})


def _class_name(llm: Any) -> Any:
    try:
        return llm.apply_model(lambda model: type(model).__name__)[0]
    except Exception:
        return None


def _next_token(llm: Any, ids: list[int], options: Any, adapter: Any) -> dict[int, float]:
    (output,) = llm.generate([{"prompt_token_ids": ids}], options, lora_request=adapter, use_tqdm=False)
    return {token: entry.logprob for token, entry in output.outputs[0].logprobs[0].items()}


def main() -> None:
    os.environ.update(ENVIRONMENT)
    root, kinds = Path(sys.argv[1]), sys.argv[2:]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever vLLM prints is not an answer
    prompts = json.loads((root / "prompts.json").read_bytes())
    for kind in kinds:
        try:
            answer = try_model(root / kind, prompts)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[-600:]}
        print(json.dumps({"kind": kind, **answer}), file=out, flush=True)
        gc.collect()
        try:
            from vllm.distributed import cleanup_dist_env_and_memory

            cleanup_dist_env_and_memory()
        except Exception as error:
            print(f"not cleaned up: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
