"""A wheel from the source distribution works far from the checkout: command, page, presets, client, man page."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tarfile
import time
import urllib.request
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that the source distribution builds, as an index would serve both."""
    work = tmp_path_factory.mktemp("packaging")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(work)]
    subprocess.run([*build, "-t", "sdist"], cwd=ROOT, check=True, capture_output=True)
    (source,) = work.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(work, filter="data")
    subprocess.run(
        [*build, "-t", "wheel"], cwd=work / source.name.removesuffix(".tar.gz"), check=True, capture_output=True
    )
    (found,) = work.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def away(installed: Path, tmp_path: Path) -> dict[str, str]:
    """An environment in which only the installed copy is found."""
    return {**os.environ, "PYTHONPATH": str(installed), "HOME": str(tmp_path), "PYTHONSAFEPATH": "1"}


def test_what_lies_at_the_top_of_site_packages(wheel: Path) -> None:
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.startswith("rlproxy-")} == {
        "config",
        "proxy",
        "rlproxy",
        "store",
        "trainer",
    }


def test_every_file_that_is_not_code_is_there(wheel: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "config", "proxy", "store", "trainer"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    inside = set(zipfile.ZipFile(wheel).namelist())
    missing = {name for name in listed if name not in inside}
    assert {name for name in missing if not name.startswith("proxy/public/")} == set()  # that one is called rlproxy
    assert any(name.endswith("share/man/man1/rlproxy.1") for name in inside)


def test_the_client_under_the_products_name(installed: Path, tmp_path: Path) -> None:
    code = "import rlproxy, proxy.client; assert rlproxy.Client is proxy.client.Client; print(rlproxy.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=away(installed, tmp_path),
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith(str(installed))


def test_it_serves_its_page_and_its_presets(installed: Path, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "proxy.cli", "serve", "--home", str(tmp_path / "home"), "--port", str(port)]
    command += ["--backend", "openai", "--backend-url", "http://127.0.0.1:9", "--model", "m"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env=away(installed, tmp_path), stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(300):
            try:
                status = json.load(urllib.request.urlopen(f"{url}/rl/status"))
                break
            except OSError:
                assert process.poll() is None, (tmp_path / "log").read_text()
                time.sleep(0.1)
        page = urllib.request.urlopen(url).read().decode()
        style = page.partition('href="/static/')[2].partition('"')[0]
        assert status["model"] == "m" and style
        assert urllib.request.urlopen(f"{url}/static/{style}").status == 200
    finally:
        process.terminate()
        process.wait(20)
