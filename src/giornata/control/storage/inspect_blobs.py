"""Inspect the pictures of a dataset, and masks with their pictures, each once in its life."""

import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from giornata.control.context import Context
from giornata.control.ports.pictures import Inspection
from giornata.control.ports.user_queries.records import BlobRecord
from giornata.domain.errors import BlobMissing, Fault
from giornata.domain.files.datasets import picture_notes
from giornata.protocol.uploads import DatasetItem

BATCH = 16  # pictures that lie on the server's disk at one time
UPLOAD_AGAIN = "upload it again, and complete the upload"

TURNED = "turned as its EXIF orientation says"
"""The inspector's note on a picture whose pixels lie otherwise than a viewer shows them."""


@dataclass(frozen=True, slots=True)
class SeenPicture:
    """Width and height of a picture as a viewer shows it, in pixels, and whether its orientation turns it."""

    width: int
    height: int
    is_turned: bool


def inspect_blobs(
    ctx: Context, project_id: str, items: Sequence[DatasetItem], blobs: Mapping[str, BlobRecord]
) -> tuple[list[Fault], list[str]]:
    """Return faults and notes of every item whose bytes are there and no larger than a picture may be, by the item's
    name.

    A picture that was found good is not looked at again. One with faults is: its inspector may have been unlucky.
    One whose bytes storage has no more, or others in their place, is at fault too, and may be uploaded again.
    """
    limit = ctx.policy.max_picture_bytes
    there = {sha256: blob for sha256, blob in blobs.items() if blob.size_bytes <= limit}
    names = {item.sha256: item.name for item in reversed(items)}
    new = [blob for blob in there.values() if blob.inspection is None]
    faults: dict[str, tuple[Fault, ...]] = {}
    notes = {blob.sha256: list(blob.inspection["notes"]) for blob in there.values() if blob.inspection is not None}
    for blob, inspection in _look(ctx, project_id, new, names):
        if inspection is None:
            faults[blob.sha256] = (_lost(blob),)
            continue
        faults[blob.sha256] = tuple(inspection.faults)
        notes[blob.sha256] = list(inspection.notes)
    return (
        [replace(fault, where=item.name) for item in items for fault in faults.get(item.sha256, ())],
        picture_notes((item.name, notes.get(item.sha256, ())) for item in items),
    )


def see_pictures(ctx: Context, project_id: str, blobs: Mapping[str, BlobRecord]) -> Mapping[str, SeenPicture | Fault]:
    """Return how each picture is seen by its sha256, or the fault that keeps it from being shown.

    A picture that no dataset would take may well be shown. One that is larger than a picture may be is left out.
    """
    there = [blob for blob in blobs.values() if blob.size_bytes <= ctx.policy.max_picture_bytes]
    new = [blob for blob in there if blob.inspection is None]
    found: dict[str, SeenPicture | Fault] = {
        blob.sha256: SeenPicture(
            blob.inspection["width"], blob.inspection["height"], TURNED in blob.inspection["notes"]
        )
        for blob in there
        if blob.inspection is not None
    }
    for blob, inspection in _look(ctx, project_id, new, {blob.sha256: blob.sha256 for blob in new}):
        if inspection is None:
            found[blob.sha256] = _lost(blob)
        elif inspection.width is not None and inspection.height is not None:
            found[blob.sha256] = SeenPicture(inspection.width, inspection.height, TURNED in inspection.notes)
        elif inspection.faults:
            found[blob.sha256] = inspection.faults[0]
    return found


def preview_of(ctx: Context, blob: BlobRecord) -> bytes | None:
    """Return a small JPEG of a picture that browsers do not show; None where it cannot be made."""
    with tempfile.TemporaryDirectory(prefix="giornata-preview-") as directory:
        path = _fetch(ctx, blob, Path(directory))
        return None if path is None else ctx.pictures.preview(path)


def _lost(blob: BlobRecord) -> Fault:
    return Fault(where=blob.sha256, message="storage has lost its bytes", hint=UPLOAD_AGAIN)


def _look(
    ctx: Context, project_id: str, blobs: Sequence[BlobRecord], names: Mapping[str, str]
) -> Iterator[tuple[BlobRecord, Inspection | None]]:
    """Inspect the pictures, and remember those without faults; None stands for bytes that are lost."""
    for start in range(0, len(blobs), BATCH):
        with tempfile.TemporaryDirectory(prefix="giornata-pictures-") as directory:
            fetched = [(blob, _fetch(ctx, blob, Path(directory))) for blob in blobs[start : start + BATCH]]
            whole = [(blob, path) for blob, path in fetched if path is not None]
            inspections = ctx.pictures.inspect([(names[blob.sha256], path) for blob, path in whole])
            for (blob, _), inspection in zip(whole, inspections, strict=True):
                if not inspection.faults:
                    with ctx.store.begin() as tx:
                        tx.uploads.note_inspection(project_id, blob.sha256, _remembered(inspection))
                yield blob, inspection
        for blob in (blob for blob, path in fetched if path is None):
            _note_lost(ctx, project_id, blob)
            yield blob, None


def _fetch(ctx: Context, blob: BlobRecord, directory: Path) -> Path | None:
    """Fetch the bytes as a file; None when they are not what they should be."""
    path, hasher = directory / blob.sha256, hashlib.sha256()
    try:
        with path.open("wb") as file:
            for chunk in ctx.blobs.read(blob.key):
                hasher.update(chunk)
                file.write(chunk)
    except BlobMissing:
        return None
    return path if hasher.hexdigest() == blob.sha256 else None


def _note_lost(ctx: Context, project_id: str, blob: BlobRecord) -> None:
    with ctx.store.begin() as tx:
        tx.uploads.note_look(project_id, blob.sha256, key=blob.key, at_ms=ctx.clock.now_ms(), lost=True)


def _remembered(inspection: Inspection) -> dict[str, Any]:
    return {
        "format": inspection.format,
        "width": inspection.width,
        "height": inspection.height,
        "notes": list(inspection.notes),
    }
