"""`rlproxy model export`: whole folders that other programs load, or nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest

from proxy.cli.model_export.command import ExportRequest, NotExported, write
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from scripts.harness.lora import random_adapter
from tests.harness import tiny
from tests.harness.lines import create
from tests.harness.runs import until
from trainer.formats import adapter
from trainer.launch import LocalLauncher


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_model(tmp_path_factory.mktemp("model") / "base")


@pytest.fixture(scope="module")
def version(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a version, with its manifest."""
    folder = tmp_path_factory.mktemp("adapters")
    made = random_adapter(model, folder / "made", seed=1)

    def save(out: Path) -> None:
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            (out / name).write_bytes((made / name).read_bytes())

    adapter.write(folder / "v0001", save, {"run": 1, "samples": ["rt-1", "rt-2"], "weights": str(model)})
    return folder / "v0001"


def request(kind: str, version: Path, folder: Path, **members: Any) -> ExportRequest:
    line = [{"version": 1, "parent": 0, "model": "small", "path": str(version), "withdrawn": None, "gate": {}}]
    return ExportRequest(**{"kind": kind, "line": line, "weights": None, "base": None, "folder": folder} | members)


def test_the_adapter_alone_with_its_card_and_without_ids_of_ratings(version: Path, tmp_path: Path) -> None:
    write(request("adapter", version, tmp_path / "out"), LocalLauncher())
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "README.md", "adapter_config.json", "adapter_model.safetensors",
    }  # fmt: skip
    text = (tmp_path / "out" / "README.md").read_text()
    assert "| v1 | base | 2 |" in text and "rt-1" not in text


def test_merged_weights_are_loaded_by_transformers(version: Path, model: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    write(request("merged", version, tmp_path / "out", weights=model), LocalLauncher())
    AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (tmp_path / "out" / "README.md").is_file()


def test_a_lora_as_a_gguf_file(version: Path, model: Path, tmp_path: Path) -> None:
    write(request("gguf", version, tmp_path / "out", weights=model), LocalLauncher())
    reader = gguf.GGUFReader(tmp_path / "out" / "small-v1.gguf")
    assert reader.get_field("adapter.type").contents() == "lora" and len(reader.tensors) == 28


@pytest.mark.parametrize(
    ("kind", "reason"), [("merged", "set train.weights"), ("gguf", "set train.weights"), ("base", "is not a file")]
)
def test_what_is_lacking_is_named_and_nothing_is_left(version: Path, tmp_path: Path, kind: str, reason: str) -> None:
    members = {"kind": "gguf", "base": tmp_path / "none.gguf"} if kind == "base" else {}
    with pytest.raises(NotExported, match=reason):
        write(request(**{"kind": kind} | members, version=version, folder=tmp_path / "out"), LocalLauncher())
    assert list(tmp_path.iterdir()) == []


def test_a_version_whose_files_were_changed_is_not_exported(version: Path, tmp_path: Path) -> None:
    copy = tmp_path / "v0001"
    copy.mkdir()
    for path in version.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / "adapter_config.json").write_text("{}")
    with pytest.raises(NotExported, match="is corrupt"):
        write(request("adapter", copy, tmp_path / "out"), LocalLauncher())
    (tmp_path / "there").mkdir()
    with pytest.raises(NotExported, match="is there already"):
        write(request("adapter", version, tmp_path / "there"), LocalLauncher())


async def test_the_command(cli: Proxy, tmp_path: Path) -> None:
    for _ in range(4):
        await cli.chat("a")
        await cli.rate(completion_id="last", rating="good")
    await until(cli, live=1)
    export = ("model", "export")
    code, out, _ = await rlproxy(cli.home, *export, "v1", "--adapter", "--to", str(tmp_path / "v1"), "--json")
    assert code == 0 and json.loads(out)["folder"] == str(tmp_path / "v1")
    code, out, err = await rlproxy(cli.home, *export, "v7", "--adapter", "--to", str(tmp_path / "v7"))
    assert code == 1 and "there is no version v7" in err
    code, out, err = await rlproxy(cli.home, *export, "base", "--adapter", "--to", str(tmp_path / "v7"))
    assert code == 1 and "nothing to export" in err
    for options in ((), ("--adapter", "--merged"), ("--adapter", "--base", "x.gguf")):
        code, _, err = await rlproxy(cli.home, *export, "v1", *options, "--to", str(tmp_path / "v7"))
        assert code == 2 and "choose one of" in err
    await create(cli, "ann")  # begins with v1, and has made no version
    for name, *options in (("live",), ("ann", "--line", "ann")):
        code, _, err = await rlproxy(cli.home, *export, *options, "--adapter", "--to", str(tmp_path / name))
        assert code == 0 and ", v1\n" in (tmp_path / name / "README.md").read_text(), err
    code, _, err = await rlproxy(cli.home, *export, "v1", "--line", "ann", "--adapter", "--to", str(tmp_path / "no"))
    assert code == 1 and "the line ann has not made v1" in err
    await cli.stop()
    code, _, err = await rlproxy(cli.home, *export, "1", "--adapter", "--to", str(tmp_path / "again"))
    assert code == 0 and (tmp_path / "again" / "README.md").is_file(), err
    offline = ("--adapter", "--to", str(tmp_path / "offline"))
    code, _, err = await rlproxy(cli.home, *export, "--line", "bob", *offline)
    assert code == 1 and "line bob does not exist" in err
    code, _, err = await rlproxy(cli.home, *export, "--line", "ann", *offline)
    await cli.start()
    assert code == 0 and (tmp_path / "offline" / "README.md").is_file(), err
