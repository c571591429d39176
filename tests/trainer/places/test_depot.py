"""A depot with real keepers and real runs of a tiny model."""

import asyncio
import io
import json
import os
import signal
import threading
import time

import pytest

from tests.harness import tiny
from trainer.places import parcel
from trainer.places.depot import Depot, DepotError, weights_identity
from trainer.places.job import RunOrder
from trainer.places.shipment import ShipmentError


def arrived(depot, run, model):
    files = parcel.files_of(run)
    id = parcel.job_id(run, files)
    with parcel.pack(run, files).open("rb") as archive:
        depot.receive(id, archive, str(model))
    return id


def order(depot, id, **changes):
    return RunOrder(depot.folder(id), **({"threads": 1, "nice": 0} | changes))


def until(depot, id, done):
    for _ in range(1200):
        if done(state := depot.look(id, 0)):
            return state
        time.sleep(0.05)
    pytest.fail(f"not reached: {state}")


def keeper(depot, id):
    """The process that holds this job."""
    import psutil

    for process in psutil.process_iter(["cmdline"]):
        if str(depot.folder(id)) in (process.info["cmdline"] or ()) and "trainer.places.keeper" in process.cmdline():
            return process
    return None


def test_a_run_trains_in_a_depot_and_its_result_comes_back(tmp_path, model, lines):
    depot, run = Depot(tmp_path / "jobs"), tiny.run_folder(tmp_path / "r00001", model, lines)
    id = arrived(depot, run, model)
    assert depot.look(id, 0).state == "stands"
    assert depot.start(order(depot, id)) is True
    state = until(depot, id, lambda state: state.state == "ended")
    assert state.has_result and state.status == 0 and state.progress.endswith("\n")
    assert depot.start(order(depot, id)) is False  # it has its result
    with (run / parcel.ARCHIVE).open("wb") as sink:
        depot.send(id, sink)
    parcel.take_result(run, run / parcel.ARCHIVE)
    result = json.loads((run / "result.json").read_text())
    assert result["adapter"] == str(tmp_path / "out" / "v0001")
    assert {p.name for p in (tmp_path / "out" / "v0001").iterdir()} >= {"adapter_model.safetensors", "manifest.json"}
    assert not (run / parcel.ARCHIVE).exists() and not (run / parcel.RESULT_PART).exists()
    depot.remove(id)
    assert list(depot.root.iterdir()) == [] and depot.look(id, 0).state == "absent"


def test_two_starts_at_once_make_one_job(tmp_path, model, lines):
    depot, run = Depot(tmp_path / "jobs"), tiny.run_folder(tmp_path / "r00001", model, lines)
    id, started = arrived(depot, run, model), []
    threads = [threading.Thread(target=lambda: started.append(depot.start(order(depot, id)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(started) == [False] * 7 + [True]
    with pytest.raises(DepotError, match="still at work"):
        depot.remove(id)
    until(depot, id, lambda state: state.state == "ended")
    starts = [x for x in (depot.folder(id) / "progress.jsonl").read_text().splitlines() if '"event": "start"' in x]
    assert len(starts) == 1


def test_a_stopped_job_goes_on_from_its_checkpoint(tmp_path, model, lines):
    run = tiny.run_folder(tmp_path / "r00001", model, lines, overrides={"passes": 40, "learning_rate": 1e-6})
    depot = Depot(tmp_path / "jobs")
    id = arrived(depot, run, model)
    depot.start(order(depot, id))
    until(depot, id, lambda state: '"step"' in state.progress)
    depot.stop(id)
    state = until(depot, id, lambda state: state.is_over)
    assert (state.state, state.status, state.has_result) == ("ended", 143, False)
    assert depot.start(order(depot, id)) is True
    state = until(depot, id, lambda state: state.is_over)
    assert state.has_result
    steps = [event for event in map(json.loads, state.progress.splitlines()) if event["event"] == "step"]
    assert [event["step"] for event in steps] == list(range(1, 81))  # none twice


def test_a_keeper_that_is_killed_takes_its_trainer_along_and_the_job_goes_on(tmp_path, model, lines):
    run = tiny.run_folder(tmp_path / "r00001", model, lines, overrides={"passes": 40, "learning_rate": 1e-6})
    depot = Depot(tmp_path / "jobs")
    id = arrived(depot, run, model)
    depot.start(order(depot, id))
    until(depot, id, lambda state: '"step"' in state.progress)
    process = keeper(depot, id)
    (trainer,) = process.children()
    os.kill(process.pid, signal.SIGKILL)
    until(depot, id, lambda state: state.state == "stands")
    trainer.wait(60)
    assert depot.start(order(depot, id)) is True
    state = until(depot, id, lambda state: state.is_over)
    assert state.has_result and '"status": "passed"' in state.progress


def test_a_limit_of_memory_holds_there_too(tmp_path, model, lines):
    run = tiny.run_folder(tmp_path / "r00001", model, lines, overrides={"passes": 4000})
    depot = Depot(tmp_path / "jobs")
    id = arrived(depot, run, model)
    depot.start(order(depot, id, max_memory_gb=0.05))
    state = until(depot, id, lambda state: state.is_over)
    assert state.status == -9 and "0.05 GB are allowed" in state.exceeded and not state.has_result


def test_pictures_arrive_with_their_samples(tmp_path, model, lines):
    run = tiny.run_folder(tmp_path / "r00001", model, lines)
    (run / "pictures.jsonl").write_text('{"sha256": "00"}\n')
    depot = Depot(tmp_path / "jobs")
    id = arrived(depot, run, model)
    assert (depot.folder(id) / "pictures.jsonl").read_text() == '{"sha256": "00"}\n'


def test_the_same_job_arrives_once_and_half_of_one_never(tmp_path, model, lines):
    run = tiny.run_folder(tmp_path / "r00001", model, lines)
    depot, files = Depot(tmp_path / "jobs"), parcel.files_of(run)
    id, data = parcel.job_id(run, files), parcel.pack(run, files).read_bytes()
    with pytest.raises(ShipmentError):
        depot.receive(id, io.BytesIO(data[: len(data) // 2]), str(model))
    assert depot.look(id, 0).state == "absent"
    with pytest.raises(DepotError):
        depot.start(order(depot, id))
    depot.receive(id, io.BytesIO(data), str(model))
    (depot.folder(id) / "mark").touch()
    depot.receive(id, io.BytesIO(data), str(model))
    assert (depot.folder(id) / "mark").exists() and depot.look(id, 0).state == "stands"
    (run / "samples.jsonl").write_text("")
    assert parcel.job_id(run, parcel.files_of(run)) != id


def test_a_result_that_is_cut_or_changed_does_not_count(tmp_path, model, lines):
    depot, run = Depot(tmp_path / "jobs"), tiny.run_folder(tmp_path / "r00001", model, lines)
    id = arrived(depot, run, model)
    depot.start(order(depot, id))
    until(depot, id, lambda state: state.is_over)
    sink = io.BytesIO()
    depot.send(id, sink)
    data, archive = sink.getvalue(), run / parcel.ARCHIVE
    changed = data.replace(b'"status": "passed"', b'"status": "pissed"', 1)
    for wrong in (data[: len(data) // 2], data[:512], b"", changed):
        archive.write_bytes(wrong)
        with pytest.raises(ShipmentError):
            parcel.take_result(run, archive)
        assert not (run / "result.json").exists() and not (tmp_path / "out").exists()
    archive.write_bytes(data)
    parcel.take_result(run, archive)
    (run / "result.json").unlink()  # as if killed just before it was written
    archive.write_bytes(data)
    parcel.take_result(run, archive)
    assert json.loads((run / "result.json").read_text())["status"] == "passed"


@pytest.mark.parametrize("id", ["", "../x", "a/b", ".x", "x" * 200])
def test_an_id_is_never_a_path(tmp_path, id):
    with pytest.raises(DepotError):
        Depot(tmp_path).folder(id)


def test_other_weights_have_another_identity(tmp_path, model):
    other = tiny.make_model(tmp_path / "other", hidden_size=32)
    assert weights_identity(str(model)) == weights_identity(str(model)) != weights_identity(str(other))
    assert weights_identity(str(tmp_path / "nothing")) is None


async def test_a_key_opens_a_sealed_run_and_lies_nowhere(tmp_path, model, lines):
    from trainer.io.encrypted_files import Seal

    run, key = tiny.run_folder(tmp_path / "r00001", model, lines), b"k" * 32
    for name in ("samples.jsonl", "calibration.jsonl"):
        Seal(key).write(run / name, (run / name).read_bytes())
    depot = Depot(tmp_path / "jobs")
    id = arrived(depot, run, model)
    depot.start(order(depot, id, key=key))
    state = await asyncio.to_thread(until, depot, id, lambda state: state.is_over)
    assert state.has_result and '"status": "passed"' in state.progress
    for path in depot.folder(id).rglob("*"):
        assert not path.is_file() or key.hex().encode() not in path.read_bytes()
