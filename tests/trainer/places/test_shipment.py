"""Archives: whole, or refused."""

import io
import tarfile

import pytest

from trainer.places import shipment
from trainer.places.shipment import ShipmentError


def archive_of(tmp_path, **texts):
    files = {}
    for name, text in texts.items():
        files[name] = tmp_path / name
        files[name].write_text(text)
    sink = io.BytesIO()
    shipment.pack(sink, files)
    return sink.getvalue()


def test_what_was_packed_arrives_and_is_its_owners_only(tmp_path):
    data = archive_of(tmp_path, one="1" * 100_000, two="")
    hashes = shipment.unpack(io.BytesIO(data), tmp_path / "there")
    assert (tmp_path / "there" / "one").read_text() == "1" * 100_000 and set(hashes) == {"one", "two"}
    assert (tmp_path / "there" / "one").stat().st_mode & 0o777 == 0o600
    assert shipment.is_whole(tmp_path / "there")


def test_a_cut_archive_is_never_whole_wherever_it_is_cut(tmp_path):
    data = archive_of(tmp_path, one="1" * 3000, two="2" * 3000)
    manifest_end = data.rindex(b"}") + 1  # what follows is padding
    for n, length in enumerate(range(0, manifest_end, 512)):
        with pytest.raises(ShipmentError):
            shipment.unpack(io.BytesIO(data[:length]), tmp_path / f"there-{n}")
        assert not shipment.is_whole(tmp_path / f"there-{n}")


def test_a_changed_file_is_named(tmp_path):
    data = archive_of(tmp_path, one="aaaa", two="bbbb").replace(b"bbbb", b"bbbc")
    with pytest.raises(ShipmentError, match="two did not arrive as it was sent"):
        shipment.unpack(io.BytesIO(data), tmp_path / "there")


@pytest.mark.parametrize("name", ["../out", "/etc/out", "a/../../out", ".hidden", "a\nb", "a/b/c/d/e"])
def test_nothing_gets_out_of_its_folder(tmp_path, name):
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w|") as archive:
        member = tarfile.TarInfo(name)
        member.size = 1
        archive.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(ShipmentError, match="does not belong there"):
        shipment.unpack(io.BytesIO(sink.getvalue()), tmp_path / "deep" / "there")
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(tmp_path, kind):
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w|") as archive:
        member = tarfile.TarInfo("one")
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(ShipmentError, match="does not belong there"):
        shipment.unpack(io.BytesIO(sink.getvalue()), tmp_path / "there")
