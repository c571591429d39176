"""Objects in a local folder and in S3, and what errors of S3 mean in words."""

import hashlib
import sys

import pytest

from tests.harness import s3_server
from tests.harness.s3_server import BUCKET, SECRET, Fault
from trainer.places.bucket import Bucket, BucketError

in_s3 = [pytest.mark.scale, pytest.mark.skipif(s3_server.lacks() is not None, reason=str(s3_server.lacks()))]


def needs_s3(test):
    for mark in in_s3:
        test = mark(test)
    return test


@pytest.fixture(params=["file", pytest.param("s3", marks=in_s3)])
def bucket(request, tmp_path):
    if request.param == "file":
        return Bucket(f"file://{tmp_path / 'objects'}")
    request.getfixturevalue("s3")
    return Bucket(f"s3://{BUCKET}/home")


def test_objects_are_read_as_they_were_written(bucket, tmp_path):
    bucket.write("a/one", b"0123456789")
    assert bucket.read("a/one") == b"0123456789" and bucket.read("a/one", 4) == b"456789"
    assert bucket.read("a/one", 4, 2) == b"45" and bucket.read("a/one", 10) == bucket.read("a/one", 11) == b""
    assert bucket.read("a/two") is None and not bucket.has("a/two") and bucket.has("a/one")
    big = tmp_path / "big"
    big.write_bytes(hashlib.shake_256(b"seed").digest(9 * 2**20))
    bucket.upload("a/big", big)
    assert bucket.download("a/big", tmp_path / "back") and not bucket.download("a/none", tmp_path / "none")
    assert (tmp_path / "back").read_bytes() == big.read_bytes() and not (tmp_path / "none").exists()
    assert (tmp_path / "back").stat().st_mode & 0o777 == 0o600
    bucket.check()


def test_what_is_removed_is_gone_and_its_neighbour_is_not(bucket):
    for name in ("jobs/r1/one", "jobs/r1/deep/two", "jobs/r10/one"):
        bucket.write(name, b"1")
    bucket.remove("jobs/r1/one")
    bucket.remove("jobs/r1")
    bucket.remove("jobs/r1")
    assert not bucket.has("jobs/r1/one") and not bucket.has("jobs/r1/deep/two") and bucket.has("jobs/r10/one")


def test_json_that_is_cut_is_an_error_and_none_is_none(bucket):
    bucket.write("a.json", b'{"a": 1')
    with pytest.raises(BucketError, match=r"a\.json is cut or changed"):
        bucket.read_json("a.json")
    assert bucket.read_json("b.json") is None


@needs_s3
@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (403, "RequestTimeTooSkewed", "the clock of this machine differs too much"),
        (403, "AccessDenied", "the credentials need s3:ListBucket, GetObject, PutObject and DeleteObject"),
        (403, "InvalidAccessKeyId", "see AWS_ACCESS_KEY_ID or AWS_PROFILE"),
        (403, "SignatureDoesNotMatch", "see AWS_SECRET_ACCESS_KEY or AWS_PROFILE"),
        (503, "SlowDown", "it answered SlowDown"),
        (404, "NoSuchBucket", "there is no such bucket"),
    ],
)
def test_refusals_are_told_in_one_sentence_without_the_secret(s3, status, code, words):
    s3.faults.append(Fault("*", "", status, code))
    with pytest.raises(BucketError) as error:
        Bucket(f"s3://{BUCKET}/home").check()
    assert words in str(error.value) and SECRET not in str(error.value) and "\n" not in str(error.value)
    assert error.value.__cause__ is None


@needs_s3
def test_a_bucket_that_is_not_there_is_not_an_empty_one(s3):
    missing = Bucket("s3://nobodys-bucket/home")
    for call in (lambda: missing.read("a"), lambda: missing.has("a"), lambda: missing.write("a", b"")):
        with pytest.raises(BucketError, match="there is no such bucket"):
            call()


@needs_s3
def test_a_server_that_is_away_is_told(s3, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(BucketError, match="it cannot be reached: see AWS_ENDPOINT_URL"):
        Bucket(f"s3://{BUCKET}").write("away", b"1")


@needs_s3
@pytest.mark.parametrize(
    "fault",
    [
        Fault("PUT", "/one", lost=True),
        Fault("GET", "/one", change=lambda body: body[:-7]),
        Fault("GET", "/one", change=lambda body: b"x" + body[1:]),
        Fault("GET", "/one", cut=True),
    ],
    ids=["lost", "shorter", "changed", "cut"],
)
def test_an_upload_that_is_not_kept_is_an_error(s3, tmp_path, fault):
    (tmp_path / "one").write_bytes(b"1" * 100_000)
    s3.faults.append(fault)
    with pytest.raises(BucketError):
        Bucket(f"s3://{BUCKET}").upload("one", tmp_path / "one")


@needs_s3
def test_a_moment_of_503_is_waited_for(s3):
    s3.faults.append(Fault("PUT", "/one", 503, "SlowDown", times=2))
    bucket = Bucket(f"s3://{BUCKET}")
    bucket.write("one", b"1")
    assert bucket.read("one") == b"1"


def test_without_its_package_one_sentence_says_which(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(BucketError, match=r"pip install 'rlproxy\[s3\]'"):
        Bucket("s3://runs").check()
