"""`rlproxy model export`: a version as an adapter, as whole weights, or as a GGUF file, with a card.

Owns the options, which files are written, and that a folder is written whole or not at all. Not here: the card (card),
the sums and conversions (the trainer, through trainer.launch).
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from proxy.cli.common import AsJson, Home, OfLine, secret_of, settings_of, show
from proxy.cli.failing import fail
from proxy.core.version_names import label
from store.line_records import COMMON

if TYPE_CHECKING:
    from config.settings import Settings
    from trainer.launch import Launcher

model_app = typer.Typer(help="Versions as files for other programs.", no_args_is_help=True, rich_markup_mode=None)

ADAPTER_FILES: Final = ("adapter_config.json", "adapter_model.safetensors")


class ExportRequest(NamedTuple):
    """`line`: the version and its ancestors, newest first. `weights`: the base's folder, if it is on this machine."""

    kind: str
    line: Sequence[Mapping[str, Any]]
    weights: Path | None
    base: Path | None
    folder: Path


class NotExported(Exception):
    """One sentence; nothing was written."""


@model_app.command()
def export(
    to: Annotated[Path, typer.Option("--to", help="The folder to write; it must not exist.")],
    version: Annotated[str | None, typer.Argument(help="v3 or 3.", show_default="the live one")] = None,
    line: OfLine = None,
    adapter: Annotated[bool, typer.Option("--adapter", help="The LoRA alone, as PEFT and vLLM load it.")] = False,
    merged: Annotated[
        bool, typer.Option("--merged", help="Whole weights, as transformers and vLLM load them.")
    ] = False,
    gguf: Annotated[bool, typer.Option("--gguf", help="For llama.cpp: the LoRA, or with --base the model.")] = False,
    base: Annotated[
        Path | None, typer.Option("--base", help="With --gguf: the model's own GGUF file, to be merged with.")
    ] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Write a version as files for other programs, with a card: base, lineage, ratings, gate, licence."""
    from trainer.launch import LocalLauncher

    kinds = [name for name, is_wanted in (("adapter", adapter), ("merged", merged), ("gguf", gguf)) if is_wanted]
    if len(kinds) != 1 or (base is not None and not gguf):
        fail("choose one of --adapter, --merged, --gguf; --base goes with --gguf. Nothing was written.", 2)
    settings = settings_of({"home": home})
    try:
        request = _request(kinds[0], _chosen_version(settings, version, line), settings, to, base)
        write(request, LocalLauncher())
    except NotExported as error:
        fail(str(error))
    names = sorted(path.name for path in to.iterdir())
    show({"folder": str(to), "files": names}, as_json, f"{to} has {', '.join(names)}")


def _chosen_version(settings: Settings, version: str | None, line: str | None) -> str:
    """The version that is named, or the live one of a line. Raises NotExported."""
    versions = _versions(settings, line)
    if version is None:
        return label(versions["live"])
    if line is not None and version.removeprefix("v") not in {str(row["version"]) for row in versions["data"]}:
        raise NotExported(
            f"the line {line} has not made {version}; `rlproxy adapters --line {line}` lists its versions."
        )
    return version


def _request(kind: str, version: str, settings: Settings, folder: Path, base: Path | None) -> ExportRequest:
    from proxy.cli.model_export.card import lineage
    from trainer.launch import local

    number = version.removeprefix("v")
    if number in ("base", "0"):
        raise NotExported("the base is your own model, unchanged: there is nothing to export.")
    adapters = _versions(settings)["data"]
    line = lineage(int(number), adapters) if number.isdecimal() and len(number) < 10 else []
    if not line:
        raise NotExported(f"there is no version {version}; `rlproxy adapters` lists them.")
    if not line[0]["path"]:
        raise NotExported(f"v{number} learned from what was forgotten, and is gone for good.")
    weights = _manifest(Path(line[0]["path"])).get("weights") or settings.train.weights
    return ExportRequest(kind, line, local(str(weights)) if weights else None, base, folder)


def _versions(settings: Settings, line: str | None = None) -> dict[str, Any]:
    """Read GET /rl/adapters from the running proxy, or the same from the home. Raises NotExported."""
    from urllib.parse import quote

    from proxy.cli.http import HomeClient
    from proxy.client import Refused, Unreachable
    from proxy.web.control import adapter_json
    from store.copies.read_only import look
    from store.errors import StoreError

    async def read() -> dict[str, Any]:
        async with look(settings.home, secret_of(settings)) as store:
            pointer, adapters = await store.versions.pointer(line or COMMON), await store.versions.all()
            data = [adapter_json(adapter, pointer) for adapter in adapters if line in (None, adapter.line)]
            return {"data": data, "live": pointer.live}

    try:
        query = "" if line is None else f"?line={quote(line, safe='')}"
        return dict(HomeClient(settings).ask("GET", f"/rl/adapters{query}"))
    except Refused as refused:
        raise NotExported(str(refused)) from None
    except Unreachable:
        pass
    try:
        return asyncio.run(read())
    except StoreError as error:
        raise NotExported(str(error)) from None


def _manifest(folder: Path) -> dict[str, Any]:
    """The checked manifest. Raises NotExported."""
    from trainer.launch import AdapterError, verify_adapter

    try:
        return verify_adapter(folder)
    except AdapterError as error:
        raise NotExported(f"{error} Nothing was written.") from None


def write(request: ExportRequest, launcher: Launcher) -> None:
    """Write the folder: all of it, or nothing. Raises NotExported."""
    from proxy.cli.model_export.card import card, licence_of
    from trainer.launch import LaunchError

    folder = request.folder
    if folder.exists():
        raise NotExported(f"{folder} is there already; choose another folder. Nothing was written.")
    temporary = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    manifests = {each["version"]: _manifest(Path(each["path"])) for each in request.line if _is_here(each)}
    try:
        temporary.parent.mkdir(parents=True, exist_ok=True)
        contents = _write_files(request, temporary, launcher)
        text = card(request.line, manifests, licence_of(request.weights), contents)
        (temporary / "README.md").write_text(text, encoding="utf-8")
        temporary.rename(folder)
    except LaunchError as error:
        raise NotExported(f"{error} Nothing was written.") from None
    except OSError as error:
        reason = error.strerror or error
        raise NotExported(f"{folder} could not be written ({reason}); free some space or choose another.") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _is_here(adapter: Mapping[str, Any]) -> bool:
    return bool(adapter["path"]) and Path(adapter["path"]).is_dir()


def _write_files(request: ExportRequest, folder: Path, launcher: Launcher) -> str:
    """Fill the folder; returns a sentence on what is in it. Raises LaunchError, NotExported, OSError."""
    adapter = Path(request.line[0]["path"])
    name = f"{Path(str(request.line[0]['model'])).name}-v{request.line[0]['version']}.gguf".replace(":", "-")
    if request.kind == "adapter":
        folder.mkdir()
        for file in ADAPTER_FILES:
            shutil.copyfile(adapter / file, folder / file)
        return "A LoRA adapter in PEFT's format; load it on its base."
    if request.kind == "gguf" and request.base is not None:
        if not request.base.is_file():
            raise NotExported(f"{request.base} is not a file. Nothing was written.")
        folder.mkdir()
        asyncio.run(launcher.fuse(adapter, request.base, folder / name))
        return f"The whole model in {name}: its own GGUF file with the adapter in it."
    if request.weights is None:
        raise NotExported(
            "the weights that this version was trained on are not on this machine; set train.weights to their folder. "
            "Nothing was written."
        )
    if request.kind == "gguf":
        folder.mkdir()
        asyncio.run(launcher.gguf(adapter, str(request.weights), folder / name))
        return f"The LoRA in {name}: `llama-server -m BASE.gguf --lora {name}`."
    asyncio.run(launcher.fuse(adapter, request.weights, folder))
    return "Whole weights: the base's with the adapter in them, each in the base's type."
