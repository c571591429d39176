"""Places where runs train, as a person writes them: "local", "ssh://me@host:2222/folder", "slurm", "ray://head",
"tinker://host". Also the bucket that stands for a shared disk.

Owns what such a text means. Not here: what a place does (trainer.places).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

HOW: Final = (
    'write "local", "ssh://[user@]host[:port][/folder]", "slurm[:///folder]", "ray://host[:port][/folder]" or '
    '"tinker://host[:port][/path]"'
)
TINKER: Final = {"tinker": "https", "tinker+http": "http"}  # by the scheme of its address
RAY_PORT: Final = 8265  # of the dashboard, where jobs are submitted

# Of train.where_options, by what Ray's jobs call them.
RAY_RESOURCES: Final = {
    "--num-cpus": "entrypoint_num_cpus", "--num-gpus": "entrypoint_num_gpus", "--memory": "entrypoint_memory",
    "--resource": "entrypoint_resources",
}  # fmt: skip

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")  # no option of ssh, nothing for a shell
_HOST: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*|[0-9a-f:]+(%[A-Za-z0-9]+)?")


class PlaceAddress(NamedTuple):
    """`folder` is empty where the place's own default counts."""

    kind: Literal["local", "ssh", "slurm", "ray", "tinker"]
    host: str = ""
    user: str = ""
    port: int = 0  # 0: as ssh's own configuration says
    folder: str = ""
    url: str = ""  # of a Tinker server


def parse(text: str) -> PlaceAddress:
    """Raises ValueError with one sentence on what is wrong and how to write it."""
    if text == "local":
        return PlaceAddress("local")
    if text == "slurm":
        return PlaceAddress("slurm")
    parts = urlsplit(text)
    if parts.scheme not in ("ssh", "slurm", "ray", *TINKER) or parts.query or parts.fragment or parts.password:
        raise ValueError(f"{text!r} is not a place: {HOW}")
    folder = unquote(parts.path).rstrip("/")
    if any(not character.isprintable() for character in folder):
        raise ValueError(f"the folder of {text!r} has characters that no folder should have")
    if parts.scheme == "slurm":
        if parts.netloc:
            raise ValueError(f"{text!r} names a host, but rlproxy has to run where `sbatch` is: {HOW}")
        return PlaceAddress("slurm", folder=folder)
    host, user = parts.hostname or "", parts.username or ""
    if not _HOST.fullmatch(host) or (user and not _NAME.fullmatch(user)):
        raise ValueError(f"{text!r} does not name a host: {HOW}")
    try:
        port = parts.port or 0
    except ValueError:
        raise ValueError(f"the port of {text!r} is not a number from 1 to 65535") from None
    if parts.scheme in TINKER:
        if user:
            raise ValueError(f"{text!r} names a user, and a Tinker server has keys: {HOW}")
        return PlaceAddress(
            "tinker", host, port=port, url=f"{TINKER[parts.scheme]}://{parts.netloc}{parts.path.rstrip('/')}"
        )
    if parts.scheme == "ray":
        if user:
            raise ValueError(f"{text!r} names a user, and Ray has none: {HOW}")
        return PlaceAddress("ray", host, port=port or RAY_PORT, folder=folder)
    return PlaceAddress("ssh", host, user, port, folder)


def check_bucket(text: str) -> str:
    """The address of a bucket, without a slash at its end; empty is none. Raises ValueError."""
    parts = urlsplit(text)
    is_s3 = parts.scheme == "s3" and _BUCKET.fullmatch(parts.netloc) is not None
    is_folder = parts.scheme == "file" and not parts.netloc and parts.path.strip("/") != ""
    if text and (not (is_s3 or is_folder) or parts.query or parts.fragment or not text.isprintable()):
        raise ValueError(
            f"{parts.scheme}://… is not a bucket: write s3://BUCKET/PREFIX or file:///FOLDER; credentials and the "
            "endpoint are read from AWS_ACCESS_KEY_ID, AWS_PROFILE and AWS_ENDPOINT_URL"
        )
    return text.rstrip("/")


def ray_resources(options: Sequence[str]) -> dict[str, Any]:
    """Members of a job out of train.where_options: `--num-gpus=1`, `--num-cpus=4`, `--memory=BYTES`,
    `--resource=NAME:AMOUNT`. Raises ValueError."""
    members: dict[str, Any] = {}
    for option in options:
        name, _, text = option.partition("=")
        member = RAY_RESOURCES.get(name)
        resource, _, text = text.rpartition(":") if name == "--resource" else ("", "", text)
        try:
            amount = float(text)
        except ValueError:
            amount = -1.0
        if member is None or not 0 <= amount < float("inf") or (name == "--resource" and not resource):
            raise ValueError(
                f"train.where_options has {option!r}; Ray takes --num-cpus=N, --num-gpus=N, --memory=BYTES and "
                "--resource=NAME:AMOUNT"
            )
        if name == "--resource":
            members.setdefault(member, {})[resource] = amount
        else:
            members[member] = int(amount) if name == "--memory" else amount
    return members
