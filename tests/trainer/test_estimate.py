"""Published models on cards of 16, 24 and 80 GB: which way to train is advised, and that each fits where it is said to.

No card was there. What is held here is that the advice follows from the formulas, which other tests hold against real
models and files.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.models import published
from scripts.models import tiny as kinds
from tests.harness import tiny
from trainer import estimate
from trainer.estimate import EstimateRequest, Hardware
from trainer.policy import footprint, torch_speed
from trainer.policy.footprint import GB, Workload

RAM = 64 * GB
TYPICAL = Workload(32, 300)
# By model, server, and GB of the card: the way that is advised, and whether the server can stay loaded beside it.
ADVISED = {
    ("4B", "vllm", 16): ("bfloat16", "resting"),
    ("4B", "vllm", 24): ("bfloat16", "beside"),
    ("4B", "vllm", 80): ("bfloat16", "beside"),
    ("4B", "ollama", 16): ("bfloat16", "beside"),
    ("4B", "ollama", 24): ("bfloat16", "beside"),
    ("8B", "vllm", 16): ("4 bits", "alone"),  # 16 bits of 8 B do not fit at all
    ("8B", "vllm", 24): ("bfloat16", "resting"),
    ("8B", "vllm", 80): ("bfloat16", "beside"),
    ("8B", "ollama", 16): ("4 bits", "beside"),
    ("8B", "ollama", 24): ("bfloat16", "resting"),
    ("30B-A3B", "vllm", 80): ("bfloat16", "resting"),
    ("30B-A3B", "ollama", 24): ("frozen layers on the CPU", "resting"),  # 4 bits do not reach the experts
    ("30B-A3B", "ollama", 16): ("frozen layers on the CPU", "alone"),
    ("31B", "ollama", 16): ("frozen layers on the CPU", "alone"),
    ("31B", "ollama", 80): ("bfloat16", "resting"),
    ("31B", "vllm", 80): ("bfloat16", "resting"),
    ("31B", "llamacpp", 80): ("bfloat16", "resting"),
}


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("configs")
    return {name: published.write(name, folder) for name in published.CONFIGS}


def on_card(path: Path, server: str, gb: int, workload: Workload = TYPICAL, ram: int = RAM) -> estimate.Estimate:
    return estimate.of(path, EstimateRequest(server, Hardware(gb * GB, ram), workload))


@pytest.mark.parametrize(("name", "server", "gb"), ADVISED)
def test_the_way_that_is_advised(name: str, server: str, gb: int, configs: dict[str, Path]) -> None:
    plan = on_card(configs[name], server, gb)
    assert plan.advised is not None
    state = "alone" if not plan.serves else "beside" if plan.advised.fits_beside else "resting"
    assert (plan.advised.name, state) == ADVISED[name, server, gb]


@pytest.mark.parametrize("server", ["vllm", "ollama", "llamacpp", "mlx"])
@pytest.mark.parametrize("name", published.CONFIGS)
def test_what_fits_is_within_the_card(name: str, server: str, configs: dict[str, Path]) -> None:
    previous: set[str] = set()
    for gb in (16, 24, 80):
        plan = on_card(configs[name], server, gb)
        for way in plan.ways:
            assert all(part >= 0 for part in way.memory)
            if way.fits_beside:
                assert way.memory.total + plan.serving.total <= gb * GB
            if way.fits_resting:
                assert way.memory.total <= gb * GB and plan.server.rests
        names = {way.name for way in plan.ways if way.fits_beside or way.fits_resting}
        assert previous <= names, "what fits a small card fits a large one"
        previous = names


def test_frozen_layers_go_to_the_cpu_only_where_it_has_room(configs: dict[str, Path]) -> None:
    assert on_card(configs["31B"], "ollama", 24, ram=64 * GB).advised is not None
    small = on_card(configs["31B"], "ollama", 24, ram=32 * GB)
    assert small.advised is None and small.ways[-1].ram > 56 * GB


def test_longer_ratings_take_more(configs: dict[str, Path]) -> None:
    totals = [
        on_card(configs["8B"], "vllm", 24, Workload(32, tokens)).ways[0].memory.total for tokens in (300, 2000, 4000)
    ]
    assert totals == sorted(totals) and totals[0] < totals[2]


def test_a_mac_has_one_memory_and_no_server_that_rests(configs: dict[str, Path]) -> None:
    def plan(ram: int) -> estimate.Estimate:
        return estimate.of(configs["4B"], EstimateRequest("mlx", Hardware(None, ram * GB, is_shared=True), TYPICAL))

    assert [way.name for way in plan(64).ways] == ["float32, with MLX"]
    assert (advised := plan(64).advised) is not None and advised.fits_beside
    assert plan(24).advised is None


def test_a_model_that_its_server_cannot_take_is_named(tmp_path: Path) -> None:
    """A kind that has no names in GGUF: sizes are told all the same."""
    folder = kinds.make("llama", tmp_path / "model")
    config = (folder / "config.json").read_text().replace('"llama"', '"gpt_neox_japanese"')
    (folder / "config.json").write_text(config)
    request = EstimateRequest("ollama", Hardware(None, RAM), TYPICAL)
    assert "cannot write a whole GGUF model for that kind" in estimate.of(folder, request).obstacle
    assert estimate.of(folder, request._replace(server="vllm")).obstacle == ""


def test_versions_by_server(configs: dict[str, Path]) -> None:
    """The figures of docs/lab/sizes.md."""
    plan = on_card(configs["8B"], "ollama", 24)
    sizes = {version.form: version.served for version in plan.versions}
    assert sizes["a PEFT adapter"] == sizes["a GGUF adapter"] == sizes["an MLX adapter"]
    assert 150e6 < sizes["a PEFT adapter"] < 200e6 and 4.5e9 < sizes["a whole GGUF model"] < 5.5e9
    assert plan.version is not None and plan.version.form == "a whole GGUF model"
    assert 7e9 < plan.version.most < 9e9  # once it has learned much
    # Only attention trains in a mixture, so little of the file can grow.
    mixture = on_card(configs["30B-A3B"], "ollama", 80)
    assert mixture.version is not None and mixture.version.most < 1.05 * mixture.version.served


def test_time_grows_with_ratings_tokens_and_parameters(configs: dict[str, Path], tmp_path: Path) -> None:
    def seconds(path: Path, workload: Workload) -> float:
        duration = estimate.duration(on_card(path, "vllm", 80, workload), 1)
        assert duration is not None and not duration.is_measured
        return duration.seconds

    base = seconds(configs["4B"], TYPICAL)
    assert base < seconds(configs["4B"], Workload(64, 300)) and base < seconds(configs["4B"], Workload(32, 900))
    assert base < seconds(configs["8B"], TYPICAL)
    on_cpu = estimate.of(tiny.make_model(tmp_path), EstimateRequest("builtin", Hardware(None, RAM), TYPICAL))
    duration = estimate.duration(on_cpu, 1)
    assert duration is not None and duration.is_measured and duration.seconds >= estimate.START_S


def test_time_beside_what_runs_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight programs and the run's own thread share two cores: 4.5 times as long."""
    plan = estimate.of(tiny.make_model(tmp_path), EstimateRequest("builtin", Hardware(None, RAM), TYPICAL))
    monkeypatch.setattr(torch_speed, "measure", lambda: torch_speed.Speed(1e9, 1e9, 1e9))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("os.getloadavg", lambda: (8.0, 1.0, 1.0))
    busy = estimate.duration(plan, 1)
    monkeypatch.setattr("os.getloadavg", lambda: (0.5, 1.0, 1.0))
    quiet = estimate.duration(plan, 1)
    assert busy is not None and quiet is not None
    assert busy.seconds == quiet.seconds == quiet.seconds_now and busy.seconds_now == pytest.approx(4.5 * busy.seconds)
    monkeypatch.delattr("os.getloadavg")  # as on Windows
    unknown = estimate.duration(plan, 1)
    assert unknown is not None and unknown.seconds_now is None


def test_a_run_takes_longer_than_its_products(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = estimate.of(tiny.make_model(tmp_path), EstimateRequest("builtin", Hardware(None, RAM), TYPICAL))
    monkeypatch.setattr(torch_speed, "measure", lambda: torch_speed.Speed(1e9, 1e9, 1e9))
    work = footprint.run_work(plan.shape, TYPICAL, recomputes=False)
    products = (work.scoring + work.steps + work.writing) / 1e9
    duration = estimate.duration(plan, 1)
    assert duration is not None and duration.seconds == pytest.approx(estimate.START_S + products / 0.4)
