"""The locks have what pyproject.toml asks for, down to the last dependency, each file of it by its hash."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
DEVELOPERS = (
    "train",
    "client",
    "count",
    "tensorboard",
    "discord",
    "encrypt",
    "images",
    "otel",
    "postgres",
)  # the extras in scripts/lock
NOT_LOCKED = {"torch"}  # each build of it has hashes of its own; scripts/setup installs it first
CORE, DEV = "scripts/locked-core.txt", "scripts/locked-dev.txt"


def locked(path: str) -> dict[str, tuple[Requirement, list[str]]]:
    """Name → what is locked, and the hashes of its files. Of several, for other Pythons, the one for this."""
    found = {}
    for block in re.split(r"\n(?=\S)", (ROOT / path).read_text().replace("\\\n", "")):
        if block.startswith("#") or not block.strip():
            continue
        what, *hashes = re.split(r"\s+--hash=", " ".join(block.split()))
        wanted = Requirement(what)
        if wanted.marker is None or wanted.marker.evaluate():
            found[canonicalize_name(wanted.name)] = (wanted, hashes)
    return found


def asked(extra: str = "") -> Iterator[Requirement]:
    """What the core asks for, or an extra with all that it takes in, or the group `dev` with the developers' extras."""
    groups = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"], **PYPROJECT["dependency-groups"]}
    if extra == "dev":
        for inner in DEVELOPERS:
            yield from asked(inner)
    for line in groups[extra]:
        wanted = Requirement(line)
        if wanted.name == PROJECT["name"]:
            for inner in wanted.extras:
                yield from asked(inner)
        else:
            yield wanted


def whole(wanted: Requirement, seen: set[tuple[str, str]]) -> Iterator[Requirement]:
    """What this needs on this machine, itself first, as what is installed says."""
    yield wanted
    for extra in ("", *sorted(wanted.extras)):
        if (wanted.name, extra) in seen:
            continue
        seen.add((wanted.name, extra))
        for line in metadata.requires(wanted.name) or ():
            inner = Requirement(line)
            if inner.marker is None or inner.marker.evaluate({"extra": extra}):
                yield from whole(inner, seen)


def test_the_lock_is_made_with_the_developers_extras() -> None:
    script = (ROOT / "scripts/lock").read_text()
    assert tuple(re.findall(r"--extra (\w+)", script)) == DEVELOPERS and "--group dev" in script


def test_the_core_stands_on_about_a_dozen() -> None:
    names = [wanted.name for wanted in asked()]
    assert 10 <= len(names) == len(set(names)) <= 17, names


@pytest.mark.parametrize(("path", "extra"), [(CORE, ""), (DEV, ""), (DEV, "dev")])
def test_all_that_is_needed_is_locked_with_its_hashes(path: str, extra: str) -> None:
    lock, seen = locked(path), {(name, "") for name in NOT_LOCKED}
    for first in asked(extra):
        for wanted in whole(first, seen):
            name = canonicalize_name(wanted.name)
            if name in NOT_LOCKED:
                continue
            assert name in lock, f"{name} is not in {path}: run scripts/lock"
            pinned, hashes = lock[name]
            (version,) = (part.version for part in pinned.specifier)
            assert wanted.specifier.contains(version, prereleases=True), f"{path} has {pinned}: run scripts/lock"
            assert hashes and all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes), name


@pytest.mark.parametrize("path", [CORE, DEV])
def test_they_are_the_versions_that_the_tests_ran_with_and_name_no_host(path: str) -> None:
    text = (ROOT / path).read_text()
    assert "://" not in text and "index-url" not in text and "find-links" not in text
    lines = (ROOT / "scripts/constraints.txt").read_text().splitlines()
    tried = {canonicalize_name(line.split("==")[0]): line for line in lines if "==" in line}
    for name, (pinned, _) in locked(path).items():
        if name in tried:
            assert pinned.specifier == Requirement(tried[name]).specifier, name
    assert not NOT_LOCKED & locked(path).keys()


def test_the_environment_with_mlx_has_its_extras_and_the_developers_group() -> None:
    environ = {**os.environ, "PYTHON": sys.executable}
    ran = subprocess.run([ROOT / "scripts/setup_mlx", "--requirements"], env=environ, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    extras, groups = PROJECT["optional-dependencies"], PYPROJECT["dependency-groups"]
    wanted = [*PROJECT["dependencies"], *extras["train"], *extras["client"], *extras["mlx"], *groups["dev"]]
    assert ran.stdout.splitlines() == wanted
