"""Answers about pictures before real servers: capture, ratings, a run, its gate, the swap, and log-probs of each side.

`python -m scripts.models.picture_servers` writes benchmarks/picture_servers.json. Tiny models with random weights, so
what is shown is the way, and nothing of how well a model learns. Each server's log-probs are compared with those of
transformers and PEFT from pixels, on the base and on the version that the run made.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

from scripts.bench.swap_setup import VLLM, running
from scripts.harness.circumstances import circumstances
from scripts.harness.in_process import Proxy, proxy_before
from scripts.harness.ollama_server import OllamaServer, binaries
from scripts.models import llamacpp, tiny_seeing
from scripts.models.picture_reference import PictureReference
from scripts.models.whole_loop import VLLM_ENVIRONMENT, VLLM_OPTIONS
from trainer.formats.weights import cache_folder

OUT: Final = Path(__file__).resolve().parents[2] / "benchmarks" / "picture_servers.json"
SERVED: Final = "seeing"
SIDES: Final = {
    "idefics3": 2 * tiny_seeing.SIDE,
    "gemma3": tiny_seeing.SIDE,
}  # pixels: no picture is resized but to tiles
RED, BLUE, GREY = (200, 0, 0), (0, 0, 200), (90, 90, 90)
TOKENS: Final = 8
SAMPLING: Final = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "max_tokens": TOKENS}
# A random model says nothing that a gate could approve of.
LOOSE: Final = {
    "gate__base_nll_rise": 100.0, "gate__text_nll_rise": 100.0, "gate__margin_slack": 100.0, "gate__topic_fall": 100.0,
    "gate__max_looping": 100, "gate__min_length_ratio": 0.0, "gate__max_length_ratio": 100.0,
    "gate__repetition_rise": 100.0, "gate__min_entropy_ratio": 0.0, "gate__more_refusals": 100,
}  # fmt: skip
# The processor's own filter, and Pillow's number of another: llama.cpp b10434 shrinks without averaging, so that of a
# picture at half its size each second pixel is left.
RESAMPLINGS: Final = {"": None, ", nearest pixels": 0}
# Their ChatML, as the tiny models have it.
OLLAMA_TEMPLATE: Final = (
    "{{- range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}<|im_start|>assistant\n"
)
RUN_S: Final = 600.0
ENDED: Final = ("done", "rejected", "failed", "empty")
LLAMA: Final = {
    "ctx-size": "2048", "parallel": "1", "threads": "1", "cache-type-k": "f32", "cache-type-v": "f32",
    "flash-attn": "off", "jinja": "true", "mmproj-offload": "false",
}  # fmt: skip


def picture(colour: tuple[int, int, int], side: int, *, striped: bool = False) -> bytes:
    """PNG of one colour. A stripe is what resizing changes."""
    from PIL import Image

    image = Image.new("RGB", (side, side), colour)
    if striped:
        image.paste((0, 255, 255), (0, 0, side // 5, side))
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def question(data: bytes, text: str) -> list[dict[str, Any]]:
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]}
    ]


def make_model(kind: str, folder: Path, *, wide: bool = False) -> Path:
    """With SmolLM2's tokenizer, which each server knows. `wide`: as vLLM needs it."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(cache_folder() / "models" / "SmolLM2-135M-Instruct")
    return tiny_seeing.make(kind, folder, tokenizer, splits=kind == "idefics3", wide=wide)


def write_ggufs(model: Path, folder: Path) -> tuple[Path, Path]:
    """The text part and the part that sees, as llama.cpp's own converter writes them."""
    converters = llamacpp.upstream(folder / "converters")
    files = folder / "base.gguf", folder / "mmproj.gguf"
    for file, options in zip(files, ([], ["--mmproj"]), strict=True):
        command = [sys.executable, "-c", llamacpp.CONVERT, str(converters), str(model), str(file), *options]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(f"llama.cpp's converter: {result.stderr[-300:]}")
    return files


def write_presets(model: Path, folder: Path, name: str) -> Path:
    """A router's presets with this model and its mmproj. Raises RuntimeError where llama.cpp does not convert it."""
    base, mmproj = write_ggufs(model, folder)
    presets = folder / "presets.ini"
    common = "\n".join(f"{option} = {value}" for option, value in LLAMA.items())
    presets.write_text(f"[*]\n{common}\n\n[{name}]\nmodel = {base}\nmmproj = {mmproj}\n")
    return presets


@contextlib.asynccontextmanager
async def llama_proxy(folder: Path, model: Path, **settings: Any) -> AsyncIterator[Proxy]:
    """rlproxy with these settings before a router with a model and its mmproj; each version is a section beside it."""
    presets, port = await asyncio.to_thread(write_presets, model, folder, SERVED), llamacpp.free_port()
    options = ["--models-preset", str(presets), "--models-max", "3", "--offline"]
    with llamacpp.started([*options, "--host", "127.0.0.1", "--port", str(port)], folder / "server.log", port) as url:
        async with started(
            folder, backend__kind="llamacpp", backend__url=url, backend__presets=str(presets), backend__model=SERVED,
            train__weights=str(model), **settings,
        ) as proxy:  # fmt: skip
            yield proxy


@contextlib.asynccontextmanager
async def vllm_proxy(folder: Path, model: Path, **settings: Any) -> AsyncIterator[Proxy]:
    """The same before a vLLM on the CPU."""
    command = [str(VLLM), "serve", str(model), "--served-model-name", SERVED, *VLLM_OPTIONS.split()]
    async with (
        running(command, folder / "server.log", VLLM_ENVIRONMENT) as url,
        started(folder, backend__kind="vllm", backend__url=url, train__weights=str(model), **settings) as proxy,
    ):
        yield proxy


@contextlib.asynccontextmanager
async def started(folder: Path, **settings: Any) -> AsyncIterator[Proxy]:
    proxy = proxy_before(folder / "home", **settings)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()


@contextlib.asynccontextmanager
async def ollama_proxy(folder: Path, model: Path, **settings: Any) -> AsyncIterator[Proxy]:
    """The same before a real Ollama (OLLAMA_BIN), newer than 0.11.4: a version is a model with the same projector."""
    base, mmproj = await asyncio.to_thread(write_ggufs, model, folder)
    server = OllamaServer(binaries()[0], folder)
    await server.start()
    try:
        neutral = ("temperature 1", "top_p 1", "top_k 0", "min_p 0", "repeat_penalty 1")
        parameters = (f"PARAMETER {parameter}" for parameter in neutral)
        await server.create(SERVED, f"FROM {mmproj}", f'TEMPLATE """{OLLAMA_TEMPLATE}"""', *parameters, gguf=base)
        async with started(
            folder, backend__kind="ollama", backend__url=server.url, backend__models_dir=str(server.models),
            backend__model=SERVED, train__weights=str(model), **settings,
        ) as proxy:  # fmt: skip
            yield proxy
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def builtin_proxy(folder: Path, model: Path, **settings: Any) -> AsyncIterator[Proxy]:
    """The same with the server that rlproxy starts itself."""
    async with started(
        folder, backend__kind="builtin", backend__url="", backend__model=SERVED, train__weights=str(model), **settings
    ) as proxy:
        yield proxy


SERVERS: Final = {
    "llama-server": llama_proxy, "vLLM": vllm_proxy, "built-in": builtin_proxy, "Ollama": ollama_proxy,
}  # fmt: skip


async def ask(proxy: Proxy, data: bytes, text: str, pin: str = "", **members: Any) -> dict[str, Any]:
    """The answer's body; its id is that of the completion."""
    body = {"model": SERVED + pin, "messages": question(data, text), **SAMPLING, **members}
    async with proxy.http.post("/v1/chat/completions", json=body) as response:
        answer: dict[str, Any] = await response.json()
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {answer}")
    return answer


async def look(
    proxy: Proxy, reference: PictureReference, side: int, pin: str, *, bare: bool, joint: str = ""
) -> dict[str, Any]:
    """Nats between the server's log-probs and the reference's: the most of all tokens. By kind of picture, and by the
    filter with which the reference resizes. `joint`: what the server writes between picture and text."""
    gaps: dict[str, float] = {}
    for name, striped in (("one colour", False), ("with an edge", True)):
        for seed, colour in enumerate((RED, BLUE, GREY)):
            data, text = picture(colour, side, striped=striped), f"which {seed}?"
            answer = await ask(proxy, data, text, pin, logprobs=True, top_logprobs=1, seed=seed, return_token_ids=True)
            entries = answer["choices"][0]["logprobs"]["content"]
            ids = answer["choices"][0].get("token_ids") or [_id_of(entry, reference) for entry in entries]
            for how, resampling in RESAMPLINGS.items():
                with reference.resizing_by(resampling):
                    prompt = reference.inputs([data], joint + text, bare=bare)
                if answer["usage"]["prompt_tokens"] != len(prompt["input_ids"][0]):
                    raise RuntimeError(f"{answer['usage']} where the reference reads {len(prompt['input_ids'][0])}")
                values = reference.log_probs(prompt, ids)
                gap = max(abs(entry["logprob"] - value) for entry, value in zip(entries, values, strict=True))
                gaps[name + how] = max(gaps.get(name + how, 0.0), round(gap, 6))
    return gaps


async def whole_loop(
    kind: str, folder: Path, tell: Callable[[str], None] = lambda line: None, server: str = "llama-server"
) -> dict[str, Any]:
    """One kind before this server, from the first answer to the version."""
    side, bare = SIDES[kind], kind == "gemma3" and server in ("llama-server", "Ollama")
    joint = "\n\n" if server == "Ollama" else ""  # it makes a message of each part, and its template joins them
    model = await asyncio.to_thread(make_model, kind, folder / "model", wide=server == "vLLM")
    original = (model / "model.safetensors").read_bytes()
    async with SERVERS[server](folder, model, train__start_at=8, **LOOSE) as proxy:
        base = await look(proxy, await asyncio.to_thread(PictureReference, model), side, "", bare=bare, joint=joint)
        tell(f"{kind}: base {base}")
        for n in range(8):
            answer = await ask(proxy, picture(BLUE if n % 2 else RED, side), f"what {n}?", seed=n)
            await proxy.rate(completion_id=answer["id"], rating="bad" if n % 2 else "good")
        status = await run_ended(proxy)
        run = proxy.home / "runs" / "r00001"
        result = json.loads((run / "result.json").read_text())
        choices = {}
        for line in (run / "progress.jsonl").read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "choice":
                choices[event["name"]] = {"value": event["value"], "why": event["why"]}
        tell(f"{kind}: {result['status']}: {result['reason']}")
        report = {
            "kind": kind, "server": server, "base": base, "status": result["status"],
            "reason": result["reason"], "live": status["live"], "metrics": result["metrics"],
            "samples": {name: outcome["cause"] for name, outcome in result["samples"].items()},
            "choices": {name: choices[name] for name in ("pictures", "samples_with_pictures", "frozen")},
            "weights_changed": (model / "model.safetensors").read_bytes() != original,
        }  # fmt: skip
        if result["status"] == "passed":
            adapted = await asyncio.to_thread(PictureReference, model, Path(result["adapter"]))
            report["version"] = await look(proxy, adapted, side, "@v1", bare=bare, joint=joint)
            live = await ask(proxy, picture(RED, side), "which 0?", temperature=0)
            first = await ask(proxy, picture(RED, side), "which 0?", "@base", temperature=0)
            report["answers_differ"] = _text(live) != _text(first)
            tell(f"{kind}: version {report['version']}")
    return report


def _id_of(entry: dict[str, Any], reference: PictureReference) -> int:
    """A token's id, by its text where the server does not tell it."""
    if "id" in entry:
        return int(entry["id"])
    ids: list[int] = reference.processor.tokenizer(entry["token"], add_special_tokens=False)["input_ids"]
    if len(ids) != 1:
        raise RuntimeError(f"{entry['token']!r} is not one token")
    return ids[0]


def _text(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


async def run_ended(proxy: Proxy, number: int = 1) -> Any:
    """The status once this run has ended."""
    async with asyncio.timeout(RUN_S):
        while True:
            status = await proxy.get("/rl/status")
            last = status["last_run"]
            if last and last["id"] >= number and last["status"] in ENDED and status["training"]["run"] is None:
                return status
            await asyncio.sleep(0.3)


async def main() -> None:
    parser = argparse.ArgumentParser(description="Answers about pictures before real servers.")
    parser.add_argument("--kinds", nargs="+", default=sorted(SIDES))
    parser.add_argument("--server", default="llama-server", choices=[*SERVERS])
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    for kind in arguments.kinds:
        start = circumstances()
        with tempfile.TemporaryDirectory() as folder:
            report = await whole_loop(kind, Path(folder), print, arguments.server)
        add(arguments.out, {"circumstances": start, **report})


def add(file: Path, report: dict[str, Any]) -> None:
    """Put a report into the file, in the place of an earlier one of the same kind before the same server."""
    reports = json.loads(file.read_text())["servers"] if file.is_file() else []
    members = ("kind", "server")
    reports = [row for row in reports if any(row[member] != report[member] for member in members)]
    file.write_text(json.dumps({"servers": [*reports, report]}, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
