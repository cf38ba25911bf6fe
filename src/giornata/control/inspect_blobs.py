"""Looks at the pictures of a dataset, each once in its life."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from giornata.control.context import Context
from giornata.control.ports.pictures import Inspection
from giornata.control.ports.records import BlobRecord
from giornata.domain.errors import Fault
from giornata.protocol.datasets import DatasetItem

BATCH = 16  # pictures that lie on the server's disk at one time


def inspect_blobs(
    ctx: Context, project_id: str, items: Sequence[DatasetItem], blobs: Mapping[str, BlobRecord]
) -> tuple[list[Fault], list[str]]:
    """Faults and notes of every item whose bytes are there and no larger than a picture may be, by the item's name.

    A picture that was found good is not looked at again. One with faults is: its inspector may have been unlucky.
    """
    limit = ctx.policy.max_picture_bytes
    there = {sha256: blob for sha256, blob in blobs.items() if blob.size_bytes <= limit}
    names = {item.sha256: item.name for item in reversed(items)}
    new = [blob for blob in there.values() if blob.inspection is None]
    faults: dict[str, tuple[Fault, ...]] = {}
    notes = {blob.sha256: list(blob.inspection["notes"]) for blob in there.values() if blob.inspection is not None}
    for blob, inspection in _look(ctx, new, names):
        faults[blob.sha256] = tuple(inspection.faults)
        notes[blob.sha256] = list(inspection.notes)
        if not inspection.faults:
            with ctx.store.begin() as tx:
                tx.uploads.note_inspection(project_id, blob.sha256, _remembered(inspection))
    return (
        [replace(fault, where=item.name) for item in items for fault in faults.get(item.sha256, ())],
        [f"{item.name}: {note}" for item in items for note in notes.get(item.sha256, ())],
    )


def _look(
    ctx: Context, blobs: Sequence[BlobRecord], names: Mapping[str, str]
) -> Iterator[tuple[BlobRecord, Inspection]]:
    for start in range(0, len(blobs), BATCH):
        batch = blobs[start : start + BATCH]
        with tempfile.TemporaryDirectory(prefix="giornata-pictures-") as directory:
            files = [(names[blob.sha256], _fetch(ctx, blob, Path(directory))) for blob in batch]
            yield from zip(batch, ctx.pictures.inspect(files), strict=True)


def _fetch(ctx: Context, blob: BlobRecord, directory: Path) -> Path:
    path = directory / blob.sha256
    with path.open("wb") as file:
        for chunk in ctx.blobs.read(blob.key):
            file.write(chunk)
    return path


def _remembered(inspection: Inspection) -> dict[str, Any]:
    return {
        "format": inspection.format,
        "width": inspection.width,
        "height": inspection.height,
        "notes": list(inspection.notes),
    }
