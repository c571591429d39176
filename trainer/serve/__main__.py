"""`python -m trainer.serve`: the built-in backend as a process.

Owns its arguments, its share of the processor, the ready line and its end. SIGTERM lets running replies finish for a
while; a closed stdin (with --watch-stdin) ends it at once. Not here: routes (http_api), generation (engine).
"""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from trainer.formats import model_code
from trainer.formats.weights import Weights, WeightsError, resolve
from trainer.idle_cores import openmp_environment, use_idle_cores
from trainer.limits import default_threads

GRACE_SECONDS = 10.0  # for running replies, after SIGTERM
KEY_VARIABLE = "RLPROXY_SERVE_KEY"


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="trainer.serve", description="The built-in backend of rlproxy.")
    parser.add_argument("--weights", help="a local folder or hub id (default: the small model of trainer.weights)")
    parser.add_argument("--name", help="the model's name in requests (default: the weights folder's name)")
    parser.add_argument("--host", default="127.0.0.1", help=f"off loopback only with a key in {KEY_VARIABLE}")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one, named in the ready line")
    parser.add_argument("--threads", type=int, default=0, help="0: as many as there are idle cores")
    parser.add_argument("--trust-remote-code", action="store_true", help="run Python code in the weights' folder")
    parser.add_argument("--images", default="{}", help="the bounds of pictures, as JSON (settings: images)")
    parser.add_argument("--watch-stdin", action="store_true", help="end when stdin closes")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    key = os.environ.pop(KEY_VARIABLE, "") or None  # no library needs it
    if key is None and not _is_loopback(options.host):
        print(f"error: {options.host} is not loopback: set a key in {KEY_VARIABLE}.", file=sys.stderr)
        return 2
    closed = threading.Event()
    on_close: list[Callable[[], object]] = []
    if options.watch_stdin:  # from here on: the parent may end while the model loads
        threading.Thread(target=_watch_stdin, args=(closed, on_close), name="stdin", daemon=True).start()
    try:
        weights = resolve(options.weights, tell=_tell)
    except WeightsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    try:
        return asyncio.run(_serve(options, weights, key, closed, on_close))
    except OSError as error:
        print(f"error: cannot listen on {options.host}:{options.port}: {error.strerror}.", file=sys.stderr)
        return 1


def _tell(line: str) -> None:
    """How far the start is, for whoever waits for the ready line."""
    print(json.dumps({"event": "progress", "line": line}), flush=True)


async def _serve(
    options: argparse.Namespace,
    weights: Weights,
    key: str | None,
    closed: threading.Event,
    on_close: list[Callable[[], object]],
) -> int:
    from aiohttp import web

    from config.sections import Images
    from trainer.pictures.pixels import BadPicture
    from trainer.serve.engine import Engine, EngineError
    from trainer.serve.http_api import make_app
    from trainer.serve.sight import Sight

    if options.trust_remote_code:
        model_code.trust(weights.path)
    _tell("loading the model into memory")
    try:
        model, tokenizer = load_model(weights, options.threads)
        sight, blind = None, ""
        try:
            sight = Sight(model, weights.path, Images.model_validate_json(options.images))
        except BadPicture as error:
            blind = str(error)
        engine = Engine(model, tokenizer, sight=sight)
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except Exception as error:  # a model's code may raise anything
        logging.getLogger(__name__).exception("loading failed")
        reason = " ".join(str(error).split())[:500]
        failure = f"{weights.path} was not loaded ({type(error).__name__}: {reason})."
        print(f"error: {model_code.refusal(weights.path, error) or failure}", file=sys.stderr)
        return 1
    name = options.name or weights.path.name
    app = make_app(engine, name=name, weights=weights.path, key=key, blind=blind)
    # handler_cancellation: a client that hangs up must free its rows even while nothing is written to it.
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=GRACE_SECONDS)
    await runner.setup()
    try:
        await web.TCPSite(runner, options.host, options.port).start()
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        on_close.append(lambda: loop.call_soon_threadsafe(stop.set))
        if closed.is_set():  # before anybody could be told
            return 0
        host, port = runner.addresses[0][:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        ready = {"event": "ready", "url": url, "model": name, "weights": str(weights.path), "why": weights.reason}
        print(json.dumps(ready), flush=True)
        await stop.wait()
        if closed.is_set():
            engine.close()  # ends running replies: nobody is left to read them
    finally:
        await runner.cleanup()
        engine.close()
    return 0


def load_model(weights: Weights, threads: int) -> tuple[Any, Any]:
    """Model and tokenizer in fp32, as the trainer has them on a CPU. Where it computes in bf16 (a GPU), what that
    rounds is noise between the two, by which the band is widened (acceptance)."""
    import torch
    from transformers import AutoTokenizer
    from transformers.utils import logging as transformers_logging

    from trainer.formats import model_class
    from trainer.policy.torch_load import body

    torch.set_num_threads(threads or default_threads()[0])
    transformers_logging.disable_progress_bar()
    options = model_code.options(weights.path)
    model = model_class.of(weights.path).from_pretrained(weights.path, dtype=torch.float32, **options)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    if not threads and not torch.cuda.is_available():
        use_idle_cores(body(model))
    return model, AutoTokenizer.from_pretrained(weights.path, **options)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _watch_stdin(closed: threading.Event, on_close: list[Callable[[], object]]) -> None:
    # The descriptor itself: a thread inside sys.stdin.read() keeps the interpreter from ending.
    while os.read(0, 4096):
        pass
    closed.set()
    for call in on_close:
        call()


if __name__ == "__main__":
    environment = openmp_environment(arguments().threads or default_threads()[0])
    if any(os.environ.get(name) != value for name, value in environment.items()):
        # Same process, same stdin; only now can these be set, before anything has loaded OpenMP.
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **environment})  # noqa: S606
    raise SystemExit(main())
