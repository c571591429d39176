"""Reading a run folder's pictures, and what is not what its hash says."""

import base64
import hashlib
import json

import pytest

from trainer.io.encrypted_files import IN_THE_CLEAR, Seal
from trainer.io.run_folder import RunError
from trainer.pictures.files import read


def written(folder, *rows):
    (folder / "pictures.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def row(data):
    name = hashlib.sha256(data).hexdigest()
    return {"sha256": name, "completions": ["rl-1"], "data": base64.b64encode(data).decode()}


def test_read_by_hash(tmp_path):
    assert read(tmp_path, IN_THE_CLEAR) == {}
    written(tmp_path, row(b"one"), row(b"two"))
    assert set(read(tmp_path, IN_THE_CLEAR).values()) == {b"one", b"two"}
    Seal(bytes(32)).write(tmp_path / "pictures.jsonl", (tmp_path / "pictures.jsonl").read_bytes())
    assert len(read(tmp_path, Seal(bytes(32)))) == 2


@pytest.mark.parametrize("change", [{"data": "dHdv"}, {"data": "?"}, {"data": None}, {"sha256": None}])
def test_one_that_is_not_what_it_says_ends_the_run(tmp_path, change):
    written(tmp_path, row(b"one") | change)
    with pytest.raises(RunError, match="line 1 of"):
        read(tmp_path, IN_THE_CLEAR)
