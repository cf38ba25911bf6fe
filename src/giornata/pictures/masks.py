"""Mask files beside pictures, OneTrainer's way: `NAME-masklabel.png` marks the part of `NAME.jpg` to be learned.

The platform knows one kind of mask, a picture's alpha channel. So a mask is laid into a copy of its picture before
anything is sent, in a process apart, which alone loads what reads pictures.
"""

import hashlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from giornata.domain.errors import Fault, Unavailable
from giornata.pictures.folder import PictureFile

FOLDER = "giornata.pictures.inspector.fold_mask"
TIMEOUT_S_EACH = 20.0
SAVE_ANEW = "save the mask as a PNG in levels of gray, white where the picture is to be learned"


def fold_masks(
    items: Sequence[PictureFile], masks: Mapping[str, Path], *, into: Path, python: str, max_file_bytes: int
) -> tuple[list[PictureFile], list[Fault]]:
    """Return the pictures, those that have a mask as copies in the folder `into`; and every fault of a mask.

    `masks` are by the pictures' names. Raises Unavailable when the process does not start or gives up.
    """
    wanted = [(number, item) for number, item in enumerate(items) if item.name in masks]
    if not wanted:
        return list(items), []
    outs = {number: into / f"{number:06d}.png" for number, _ in wanted}
    lines = [
        {"picture": str(item.path), "mask": str(masks[item.name]), "out": str(outs[number])}
        for number, item in wanted
    ]
    said = _ask(python, [json.dumps(line) for line in lines])
    folded, faults = list(items), []
    for (number, item), message in zip(wanted, said, strict=True):
        where = masks[item.name].name
        if message is not None:
            faults.append(Fault(where=where, message=message, hint=SAVE_ANEW))
            continue
        folded[number] = _renewed(item, outs[number])
        if folded[number].size_bytes > max_file_bytes:
            too_large = f"makes a picture of {folded[number].size_bytes / 2**20:.1f} MiB with {item.name}"
            faults.append(Fault(where=where, message=too_large, hint="scale both down; 2048 pixels are plenty"))
    return folded, faults


def _ask(python: str, requests: Sequence[str]) -> list[str | None]:
    try:
        done = subprocess.run(
            [python, "-P", "-m", FOLDER],
            input="\n".join(requests) + "\n",
            capture_output=True,
            encoding="utf-8",
            timeout=TIMEOUT_S_EACH * (1 + len(requests)),
            check=False,
        )
        replies = [json.loads(line)["fault"] for line in done.stdout.splitlines()]
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
        raise Unavailable(f"masks cannot be laid into their pictures: {error}") from error
    if done.returncode != 0 or len(replies) != len(requests):
        raise Unavailable(f"masks cannot be laid into their pictures: {done.stderr[-500:].strip()}")
    return replies


def _renewed(item: PictureFile, path: Path) -> PictureFile:
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return replace(item, path=path, sha256=sha256, size_bytes=path.stat().st_size)
