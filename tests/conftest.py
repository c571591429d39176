"""What all rooms' tests share: the small real model, found once, and no test that fails for a busy machine."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import hypothesis
import pytest
import structlog

from scripts.harness.tiny_model import make_tiny_model

HERE = Path(__file__).resolve().parent

hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")

# Folders of tests lie in memory where there is room: waiting for a disk's fsync was half of the time of most of them.
MEMORY = Path("/dev/shm")
if (
    MEMORY.is_dir()
    and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    and shutil.disk_usage(MEMORY).free > 4 * 2**30
    and os.access(MEMORY, os.W_OK)
):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# Errors are logged as `rlproxy serve` logs them: rich's tracebacks take a third of a second each.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)

# A shell that puts a job into the background has it ignore Ctrl-C, and so would every process that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def weights() -> Path:
    """The folder of the small real model; `scripts/test` has fetched it before."""
    from trainer.formats.weights import resolve

    return resolve().path


@pytest.fixture(scope="session", autouse=True)
def models_of_servers(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Model servers of tests keep their files among the tests' own: rlproxy opens what they name nowhere else."""
    os.environ["OLLAMA_MODELS"] = str(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def tiny_weights(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(weights, tmp_path_factory.mktemp("tiny"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole systems first: these files take longest, and nobody should wait for the last of them alone."""
    items.sort(
        key=lambda item: 0 if item.path.is_relative_to(HERE / "scripts") else len(item.path.relative_to(HERE).parts)
    )
