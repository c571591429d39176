"""vLLM: runtime LoRA routes, exact token ids and log-probs.

Needs `--enable-lora` and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True; wants `--logprobs-mode processed_logprobs`, so that
log-probs are of the sampling distribution. Every version gets a fresh name: reloading under an old one may serve
stale prefix-cache blocks, and `load_inplace` changes running streams half-way.
"""

from __future__ import annotations

from pathlib import Path

from proxy.backends.base import Capabilities
from proxy.backends.openai import OpenAICompatible
from proxy.errors import BackendBroke, Unsupported
from proxy.upstream import message_in


class VLLM(OpenAICompatible):
    kind = "vllm"
    capabilities = Capabilities(
        adapters=True,
        token_ids=True,
        logprobs=True,
        asks={
            "chat": {"logprobs": b"true", "return_token_ids": b"true"},
            "completions": {"logprobs": b"0", "return_token_ids": b"true"},
            "responses": {"include": b'["message.output_text.logprobs"]', "enable_response_messages": b"true"},
        },
        dialects=frozenset({"chat", "completions", "responses", "messages"}),
    )

    async def load(self, name: str, path: Path) -> None:
        if name in {m["id"] for m in await self.models()}:
            return
        body = {"lora_name": name, "lora_path": str(path)}
        status, answer = await self._call("POST", "/v1/load_lora_adapter", json=body)
        if status == 404 and b"Not Found" in answer:
            raise Unsupported(
                "The backend has no runtime LoRA routes; start vLLM with --enable-lora and "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True."
            )
        if status != 200:
            raise BackendBroke(f"The backend refused the adapter {name} ({status}): {message_in(answer)}")

    async def unload(self, name: str) -> None:
        status, answer = await self._call("POST", "/v1/unload_lora_adapter", json={"lora_name": name})
        if status not in (200, 400, 404):  # 400 and 404: it is not there
            raise BackendBroke(f"The backend did not unload {name} ({status}): {message_in(answer)}")
