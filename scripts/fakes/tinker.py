"""A Tinker server with a real model: the HTTP that the `tinker` package 0.38 speaks, and the arithmetic behind it.

Owns models, gradients, optimisers and saved states, computed by torch and PEFT in float32. Its cross_entropy is
Σ −weight · log-prob over all data of a step, as Tinker has it. It is a fake: one process, no accounts, no sampling, and
nothing is kept after it ends. Requests of 0.18 come as JSON, those of 0.38 as protobuf; both are answered.

    python -m scripts.fakes.tinker WEIGHTS FOLDER [--port N]
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import importlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import numpy as np
import torch
from aiohttp import web
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from scripts.fakes.listening import Listening

ALPHA: Final = 32  # Tinker's own, whatever the rank
URLS: Final = "external_weights_urls"
PROTOBUF: Final = "application/x-protobuf"
CONFIG: Final = {"parallel_fwdbwd_chunks": False, "use_pyqwest_transport": False}


class FakeTinker(Listening):
    def __init__(self, weights: Path, folder: Path, *, key: str = "", tells_norm: bool = True) -> None:
        """`folder` gets what clients download. `key`: the one that they must show."""
        torch.manual_seed(0)
        self.weights, self._folder, self._key, self._tells_norm = weights, folder, key, tells_norm
        self.models: dict[str, TrainedModel] = {}
        self.states: dict[str, tuple[Any, Any]] = {}
        self.results: dict[str, Any] = {}
        self.calls: list[tuple[str, Any]] = []
        self.refuses: set[str] = set()  # calls that fail

    async def start(self, port: int = 0) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        app = web.Application(client_max_size=2**30)
        base = "/api/v1"
        app.add_routes([
            web.get(f"{base}/healthz", self._say({"status": "ok"})),
            web.get(f"{base}/get_server_capabilities", self._capabilities),
            web.post(f"{base}/client/config", self._say(CONFIG)),
            web.post(f"{base}/client/dynamic_config", self._say({})),
            web.post(f"{base}/create_session", self._say({"session_id": "session", "type": "create_session"})),
            web.post(f"{base}/session_heartbeat", self._say({"type": "session_heartbeat"})),
            web.post(f"{base}/telemetry", self._say({"status": "accepted"})),
            web.post(f"{base}/get_info", self._info),
            web.post(f"{base}/retrieve_future", self._retrieve),
            web.post(f"{base}/forward_backward", self._forward_backward),
            *(
                web.post(f"{base}/{name}", self._promising(name, work))
                for name, work in {
                    "create_model": self._create,
                    "optim_step": self._step,
                    "save_weights": self._save,
                    "save_weights_external": self._export,
                    "load_weights": self._load,
                }.items()
            ),
            web.get(f"{base}/training_runs/{{model}}/checkpoints/external_weights/{{name}}/{URLS}", self._urls),
            web.static("/files", self._folder),
        ])  # fmt: skip
        await self.listen(app, port)

    # --- answers ---

    def _say(self, answer: Any) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.Response:
            return self._refused(request) or web.json_response(answer)

        return handle

    def _refused(self, request: web.Request) -> web.Response | None:
        if self._key and request.headers.get("x-api-key") != self._key:
            return web.json_response({"detail": "unauthorised"}, status=401)
        return None

    async def _capabilities(self, request: web.Request) -> web.Response:
        models = [{"model_name": str(self.weights)}]
        return self._refused(request) or web.json_response({"supported_models": models})

    async def _info(self, request: web.Request) -> web.Response:
        body = await request.json()
        model = self.models[body["model_id"]]
        data = {"arch": "llama", "model_name": str(self.weights), "tokenizer_id": str(self.weights)}
        info = {"type": "get_info", "model_data": data, "model_id": body["model_id"], "is_lora": True}
        return web.json_response({**info, "lora_rank": model.rank, "model_name": str(self.weights)})

    def _promising(self, name: str, work: Callable[[dict[str, Any]], Any]) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.Response:
            if (refused := self._refused(request)) is not None:
                return refused
            return self._promise(name, work, await request.json())

        return handle

    def _promise(self, name: str, work: Callable[[dict[str, Any]], Any], body: dict[str, Any]) -> web.Response:
        """In the order in which they come; what comes of it is fetched by its id."""
        self.calls.append((name, body))
        id = uuid4().hex
        try:
            if name in self.refuses:
                raise ValueError(f"{name} is out of order")
            self.results[id] = work(body)
        except (KeyError, ValueError, RuntimeError) as error:
            self.results[id] = {"error": f"{type(error).__name__}: {error}", "category": "user"}
        return web.json_response({"request_id": id, "model_id": body.get("model_id")})

    async def _retrieve(self, request: web.Request) -> web.Response:
        result = self.results[(await request.json())["request_id"]]
        if isinstance(result, Output) and PROTOBUF in request.headers.get("accept", ""):
            return web.Response(body=result.protobuf(), content_type=PROTOBUF)
        return web.json_response(result.json() if isinstance(result, Output) else result)

    async def _forward_backward(self, request: web.Request) -> web.Response:
        if (refused := self._refused(request)) is not None:
            return refused
        is_protobuf = PROTOBUF in request.headers.get("content-type", "")
        body = _read_protobuf(await request.read()) if is_protobuf else _read_json(await request.json())
        return self._promise("forward_backward", self._compute, body)

    # --- work ---

    def _create(self, body: dict[str, Any]) -> dict[str, Any]:
        if body["base_model"] != str(self.weights):
            raise ValueError(f"the model {body['base_model']} is unknown")
        id = f"run-{len(self.models)}"
        self.models[id] = TrainedModel(self.weights, body["lora_config"])
        return {"model_id": id, "type": "create_model"}

    def _compute(self, body: dict[str, Any]) -> Output:
        if body["loss_fn"] != "cross_entropy":
            raise ValueError(f"the loss {body['loss_fn']} is unknown")
        return self.models[body["model_id"]].forward_backward(body["data"], backward=not body["forward_only"])

    def _step(self, body: dict[str, Any]) -> dict[str, Any]:
        norm = self.models[body["model_id"]].step(body["adam_params"])
        return {"metrics": {"grad_norm:mean": norm} if self._tells_norm and math.isfinite(norm) else {}}

    def _save(self, body: dict[str, Any]) -> dict[str, Any]:
        path = f"tinker://{body['model_id']}/weights/{body['path']}"
        self.states[path] = self.models[body["model_id"]].state()
        return {"path": path, "type": "save_weights"}

    def _load(self, body: dict[str, Any]) -> dict[str, Any]:
        self.models[body["model_id"]].load(*self.states[body["path"]], optimiser=body["optimizer"])
        return {"path": body["path"], "type": "load_weights"}

    def _export(self, body: dict[str, Any]) -> dict[str, Any]:
        folder = self._folder / body["model_id"] / body["path"]
        self.models[body["model_id"]].export(folder)
        return {"path": f"tinker://{body['model_id']}/external_weights/{body['path']}", "type": "save_weights_external"}

    async def _urls(self, request: web.Request) -> web.Response:
        folder = self._folder / request.match_info["model"] / request.match_info["name"]
        urls = {path.name: f"{self.url}/files/{path.relative_to(self._folder)}" for path in folder.iterdir()}
        return web.json_response({"urls": urls, "expires": "2100-01-01T00:00:00Z"})


class TrainedModel:
    """A LoRA on the base, and its optimiser."""

    def __init__(self, weights: Path, lora: dict[str, Any]) -> None:
        self.rank = int(lora["rank"])
        base = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)
        torch.manual_seed(int(lora.get("seed") or 0))
        config = LoraConfig(
            r=self.rank,
            lora_alpha=ALPHA,
            target_modules="all-linear",
            lora_dropout=0.0,
            bias="none",
            task_type="CAUSAL_LM",
        )
        self.model: PeftModel = get_peft_model(base, config)
        self.model.eval()
        self.trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self._optimiser: torch.optim.AdamW | None = None

    def forward_backward(self, data: list[dict[str, Any]], *, backward: bool = True) -> Output:
        rows, total = [], 0.0
        for datum in data:
            logits = self.model(input_ids=torch.tensor([datum["tokens"]])).logits[0].float()
            target = torch.tensor(datum["target_tokens"])
            log_probs = logits.log_softmax(-1).gather(-1, target[:, None]).squeeze(-1)
            loss = -(log_probs * torch.tensor(datum["weights"], dtype=torch.float32)).sum()
            if backward:
                loss.backward()
            rows.append(log_probs.detach().numpy().astype(np.float32))
            total += float(loss.detach())
        return Output(rows, total)

    def step(self, adam: dict[str, Any]) -> float:
        self._optimiser = self._optimiser or torch.optim.AdamW(self.trained.values(), weight_decay=0.0)
        for group in self._optimiser.param_groups:
            group |= {"lr": adam["learning_rate"], "betas": (adam["beta1"], adam["beta2"]), "eps": adam["eps"]}
        most = adam.get("grad_clip_norm") or math.inf
        norm = float(torch.nn.utils.clip_grad_norm_(list(self.trained.values()), most))
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        return norm

    def state(self) -> tuple[Any, Any]:
        tensors = {name: p.detach().clone() for name, p in self.trained.items()}
        return tensors, copy.deepcopy(self._optimiser.state_dict()) if self._optimiser else None

    def load(self, tensors: Any, optimiser_state: Any, *, optimiser: bool) -> None:
        with torch.no_grad():
            for name, p in self.trained.items():
                p.copy_(tensors[name])
                p.grad = None
        self._optimiser = None
        if optimiser and optimiser_state is not None:
            self._optimiser = torch.optim.AdamW(self.trained.values(), weight_decay=0.0)
            self._optimiser.load_state_dict(copy.deepcopy(optimiser_state))

    def export(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {key: value.contiguous().clone() for key, value in get_peft_model_state_dict(self.model).items()}
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        self.model.peft_config["default"].save_pretrained(str(folder))


class Output:
    """Log-probs of each datum's targets, and the loss, of a forward pass."""

    def __init__(self, rows: list[Any], loss: float) -> None:
        self.rows, self.loss = rows, loss

    def json(self) -> dict[str, Any]:
        outputs = [{"logprobs": {"data": row.tolist(), "dtype": "float32", "shape": [len(row)]}} for row in self.rows]
        metrics = {"loss:sum": self.loss}
        return {"loss_fn_output_type": "ArrayRecord", "loss_fn_outputs": outputs, "metrics": metrics}

    def protobuf(self) -> bytes:
        wire: Any = importlib.import_module("tinker.proto.tinker_public_pb2")
        message = wire.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
        message.metrics["loss:sum"] = self.loss
        record = message.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(self.rows))
        offsets = np.cumsum([0, *(4 * len(row) for row in self.rows)], dtype=np.int64)
        record.fields["logprobs"].CopyFrom(
            wire.BatchedTensor(
                data=b"".join(row.tobytes() for row in self.rows), offsets=offsets.tobytes(), dtype=wire.DTYPE_FLOAT32
            )
        )
        return bytes(message.SerializeToString())


def _read_protobuf(content: bytes) -> dict[str, Any]:
    wire: Any = importlib.import_module("tinker.proto.tinker_public_pb2")
    message = wire.ForwardBackwardRequest()
    message.ParseFromString(content)
    kinds = {wire.DTYPE_FLOAT32: np.float32, wire.DTYPE_INT64: np.int64, wire.DTYPE_INT32: np.int32}
    data = []
    for datum in message.data:
        tokens = np.concatenate([np.frombuffer(chunk.encoded_text.tokens, np.int32) for chunk in datum.model_input])
        inputs = {name: np.frombuffer(t.dense, kinds[t.dtype]).tolist() for name, t in datum.loss_fn_inputs.items()}
        data.append({"tokens": tokens.tolist(), **inputs})
    return {
        "model_id": message.model_id,
        "loss_fn": message.loss_fn,
        "forward_only": message.forward_only,
        "data": data,
    }


def _read_json(body: dict[str, Any]) -> dict[str, Any]:
    request = body["forward_backward_input"]
    data = [
        {
            "tokens": [token for chunk in datum["model_input"]["chunks"] for token in chunk["tokens"]],
            **{name: tensor["data"] for name, tensor in datum["loss_fn_inputs"].items()},
        }
        for datum in request["data"]
    ]
    return {"model_id": body["model_id"], "loss_fn": request["loss_fn"], "forward_only": False, "data": data}


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.fakes.tinker", description="A Tinker server of one model.")
    parser.add_argument("weights", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--key", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    server = FakeTinker(options.weights, options.folder, key=options.key)
    await server.start(options.port)
    print(json.dumps({"url": server.url}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
