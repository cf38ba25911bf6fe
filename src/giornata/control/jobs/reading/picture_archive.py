"""Send several pictures as one ZIP file, without holding them in memory."""

import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence

from giornata.control.access.permissions import require_any
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.reading.gallery import keys_of
from giornata.control.jobs.reading.order_pictures import order_in_short, picture_reply, storage_key
from giornata.domain.errors import NotFound
from giornata.protocol.node.pictures import PictureId
from giornata.protocol.project.admin import Scope

NO_DATE = (1980, 1, 1, 0, 0, 0)
"""The date of every file in an archive, so that equal pictures make equal archives."""


def archive_pictures(ctx: Context, caller: Caller, chosen: Sequence[PictureId]) -> Iterator[bytes]:
    """Return the parts of a ZIP file with these pictures, uncompressed: pictures are compressed already.

    Raises Forbidden, and NotFound with all pictures that have no file, before the first part. Storage is read while
    the parts are taken, and raises what it raises then.
    """
    require_any(caller, Scope.JOBS_READ, Scope.GENERATE)
    keys = keys_of(chosen)
    with ctx.store.read() as tx:
        orders = {each: order_in_short(tx, caller, each) for each in sorted({key.order_id for key in keys})}
        numbers = [(key.order_id, key.number, key.number) for key in keys]
        rows = {row.key: row for row in tx.picture_gallery.pictures(numbers, project_id=caller.project_id)}
    files: dict[str, str] = {}
    missing = []
    for key in keys:
        place = storage_key(rows[key]) if key in rows else None
        if place is None:
            missing.append(f"{key.order_id} {key.number}")
            continue
        name = picture_reply(ctx, orders[key.order_id], rows[key]).filename
        files[f"{key.order_id}-{name}" if name in files else name] = place
    if missing:
        raise NotFound(f"there are no pictures with files: {', '.join(missing[:10])}")
    return _zipped(ctx, files)


def _zipped(ctx: Context, files: Mapping[str, str]) -> Iterator[bytes]:
    sink = _PartSink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
        for name, key in files.items():
            with archive.open(zipfile.ZipInfo(name, NO_DATE), "w") as entry:
                for part in ctx.blobs.read(key):
                    entry.write(part)
                    yield sink.taken()
            yield sink.taken()
    yield sink.taken()


class _PartSink(io.RawIOBase):
    """A file that cannot be read or moved in: what was written is taken away part by part."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, part: object) -> int:
        self._parts.append(bytes(part))  # type: ignore[call-overload]
        return len(self._parts[-1])

    def taken(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)
