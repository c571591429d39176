"""The pictures of a run's samples: pictures out of their messages, each once for the run folder.

Owns what stands in a message in a picture's place, and which pictures a run does without. Those that a process with
bounds has decoded go in; the trainer decodes no other. Not here: the file in the run folder (training.run_folder).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from proxy.images.examiner import ImageExaminer
from proxy.images.parts import IMAGE_PARTS, inline_bytes, url_of
from store.image_records import ImageInfo
from store.store import Store

PART: Final = "image"  # the type of the part in a picture's place, as trainer/CONTRACT.md has it
MOST_BYTES: Final = 256 * 2**20  # of one run: the trainer reads all at once
PATIENCE_S: Final = 60.0
WAITING: Final = "it has not been decoded yet"


@dataclass
class RunPicture:
    """A picture, and the completions whose prompts have it."""

    data: bytes
    completions: list[str] = field(default_factory=list)


RunPictures = dict[bytes, RunPicture]  # by sha256


async def take_out(lines: Sequence[dict[str, Any]], store: Store, examiner: ImageExaminer) -> RunPictures:
    """Replace pictures in the messages of these lines of samples.jsonl by their hashes; the pictures. One that was
    captured just now is waited for."""
    pictures: RunPictures = {}
    parts: list[tuple[dict[str, Any], bytes | None, str]] = []
    for line in lines:
        line["messages"] = [_with_parts(message, line["completion"], pictures, parts) for message in line["messages"]]
    states = await store.images.by_sha256([*pictures])
    if waiting := [sha256 for sha256, image in states.items() if image.state == "waiting"]:
        await asyncio.gather(*(examiner.thumbnail(sha256, PATIENCE_S) for sha256 in waiting))
        states = await store.images.by_sha256([*pictures])
    room = MOST_BYTES
    run_pictures: RunPictures = {}
    for part, sha256, completion in parts:
        reason = "it is not base64" if sha256 is None else _refusal(states.get(sha256))
        if reason is None and sha256 is not None and sha256 not in run_pictures:
            room -= len(pictures[sha256].data)
            if room < 0:
                reason = f"the run's pictures have more than {MOST_BYTES // 2**20} MB"
            else:
                run_pictures[sha256] = pictures[sha256]
        if reason is not None:
            part["refused"] = reason
        elif sha256 is not None and completion not in run_pictures[sha256].completions:
            run_pictures[sha256].completions.append(completion)
    return run_pictures


def _with_parts(
    message: Mapping[str, Any],
    completion: str,
    pictures: RunPictures,
    parts: list[tuple[dict[str, Any], bytes | None, str]],
) -> dict[str, Any]:
    """The message with new parts in the places of its pictures, which are noted in `pictures` and `parts`."""
    content = message.get("content")
    if not isinstance(content, list):
        return dict(message)
    new_content = []
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") not in IMAGE_PARTS:
            new_content.append(part)
            continue
        data = inline_bytes(url_of(part))
        sha256 = None if data is None else hashlib.sha256(data).digest()
        if data is not None and sha256 is not None:
            pictures.setdefault(sha256, RunPicture(data))
        new_part = {"type": PART, "sha256": sha256.hex() if sha256 else ""}
        parts.append((new_part, sha256, completion))
        new_content.append(new_part)
    return {**message, "content": new_content}


def _refusal(image: ImageInfo | None) -> str | None:
    """Why this picture does not train; None where it does."""
    if image is None or image.state == "waiting":
        return WAITING
    return image.reason if image.state == "refused" else None
