"""The rows of one piece of a source, whatever its form. Broken rows are included: the examination judges them.

A piece read twice gives the same rows in the same order.
"""

import json
import struct
import tarfile
import unicodedata
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count, groupby, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from giornata.pretrain.data.sources import MDS_READ, Kind, Piece, key_of, mds_shards, suffix_of
from giornata.pretrain.data.storage import Storage
from giornata.protocol.pretraining import Ingest

ROWS_AT_ONCE = 64
_UNSEEN = {"Cc", "Cf", "Cn", "Zs", "Zl", "Zp", "Mn", "Me"}
_FILLERS = "\u115f\u1160\u2800\u3164\uffa0"  # letters and a symbol by their category, and blank
_PICTURE_MEMBERS = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif")


class SourceDamaged(Exception):
    """A file of the source cannot be read from here on. The message says why."""


Found = tuple[str, str, bytes | None, Sequence[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """A row of the source. `source` is the file, `place` the row's number or key in it, or empty."""

    source: str
    place: str
    image: bytes | None
    captions: tuple[str, ...]

    @property
    def caption(self) -> str:
        """The first caption, or an empty string."""
        return self.captions[0] if self.captions else ""


def rows_of(storage: Storage, piece: Piece, options: Ingest) -> Iterator[Raw]:
    """All rows of a piece. Raises SourceDamaged after the last row that could be read."""
    try:
        for source, place, image, values in _READERS[piece.kind](storage, piece, options):
            yield Raw(source=source, place=place, image=image, captions=captions_of(values, options))
    except (pa.ArrowException, OSError, EOFError, tarfile.TarError, zlib.error, UnicodeError) as error:
        raise SourceDamaged(" ".join(str(error).split())[:300] or type(error).__name__) from error


def captions_of(values: Sequence[object], options: Ingest) -> tuple[str, ...]:
    """The different texts of min_caption_chars among the values and lists of values, stripped: at most max_captions.

    Where all are too short, the first visible one is returned for the filter to refuse."""
    each_alone = chain.from_iterable(value if isinstance(value, list) else [value] for value in values)
    said = [text for value in each_alone if _is_visible(text := _text(value).strip())]
    long = [text for text in said if len(text) >= options.min_caption_chars]
    return tuple(dict.fromkeys(long))[: options.max_captions] or tuple(said[:1])


def _is_visible(text: str) -> bool:
    """Return True when the text has a visible character: no space, control or zero-width character, or lone mark."""
    return any(unicodedata.category(each) not in _UNSEEN and each not in _FILLERS for each in text)


def _text(value: object) -> str:
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return ""
    return value if isinstance(value, str) else ""


# ---- readers: (source, place, image, values that may be captions) of each row ----


def _parquet(storage: Storage, piece: Piece, options: Ingest) -> Iterator[Found]:
    (name,) = piece.names
    with storage.open(name) as stream:
        file = pq.ParquetFile(stream)
        wanted = _wanted(file.schema_arrow.names, options)
        groups = None if piece.row_group is None else [piece.row_group]
        batches = file.iter_batches(ROWS_AT_ONCE, row_groups=groups, columns=wanted, use_threads=False)
        yield from _of_batches(batches, name, piece.first, options)


def _arrow(storage: Storage, piece: Piece, options: Ingest) -> Iterator[Found]:
    (name,) = piece.names
    with storage.open(name) as stream, pa.ipc.open_stream(stream) as batches:
        wanted = _wanted(batches.schema.names, options)
        cut = (
            batch.select(wanted).slice(start, ROWS_AT_ONCE)
            for batch in batches
            for start in range(0, batch.num_rows, ROWS_AT_ONCE)
        )
        yield from _of_batches(cut, name, piece.first, options)


def _wanted(there: Sequence[str], options: Ingest) -> list[str]:
    if options.image_column not in there:
        raise SourceDamaged(f"has no column {options.image_column!r}")
    return [options.image_column, *(name for name in options.caption_columns if name in there)]


def _of_batches(batches: Iterator[pa.RecordBatch], name: str, first: int, options: Ingest) -> Iterator[Found]:
    places = map(str, count(first))
    for batch in batches:
        images = _values(batch.column(options.image_column))
        captions = [_values(batch.column(each)) for each in options.caption_columns if each in batch.schema.names]
        for number in range(batch.num_rows):
            yield name, next(places), _image(images(number)), [column(number) for column in captions]


def _values(column: pa.Array) -> Callable[[int], Any]:
    """Text is read as bytes, so that invalid UTF-8 damages its own row only."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = column.cast(pa.large_binary())
    elif (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_string(kind.value_type):
        column = column.cast(pa.large_list(pa.large_binary()))
    return lambda number: column[number].as_py()


def _image(value: object) -> bytes | None:
    """Bytes, or Hugging Face's struct of bytes and path."""
    inner = value.get("bytes") if isinstance(value, dict) else value
    return inner if isinstance(inner, bytes) else None


def _mds(storage: Storage, piece: Piece, options: Ingest) -> Iterator[Found]:
    """A shard has a count, the offsets of all samples, and the samples: sizes of varying columns, then columns."""
    (name,) = piece.names
    try:
        about = mds_shards(storage, name)[name]
        content = _unpacked(storage.read(name), about, name)
        (rows,) = struct.unpack_from("<I", content)
        places = struct.unpack_from(f"<{rows + 1}I", content, 4)
        for number, (start, stop) in enumerate(pairwise(places)):
            if stop > len(content):
                raise SourceDamaged(f"ends within row {number}")
            values = _mds_values(content[start:stop], about)
            captions = [values.get(each) for each in options.caption_columns]
            yield name, str(number), _image(values.get(options.image_column)), captions
    except (struct.error, ValueError, LookupError, TypeError) as error:
        raise SourceDamaged(f"is no shard of MDS as its index says: {error!r}") from error


def _unpacked(content: bytes, about: Mapping[str, Any], name: str) -> bytes:
    algorithm = str(about.get("compression") or "").partition(":")[0]
    if not algorithm or name.endswith(about["raw_data"]["basename"]):
        return content
    with pa.CompressedInputStream(
        pa.BufferReader(content), {"br": "brotli", "gz": "gzip"}.get(algorithm, algorithm)
    ) as raw:
        unpacked: bytes = raw.read()
        return unpacked


def _mds_values(sample: bytes, about: Mapping[str, Any]) -> dict[str, object]:
    fixed = about["column_sizes"]
    varying = struct.unpack_from(f"<{fixed.count(None)}I", sample)
    place, sizes, values = 4 * len(varying), iter(varying), dict[str, object]()
    for name, encoding, size in zip(about["column_names"], about["column_encodings"], fixed, strict=True):
        stop = place + (next(sizes) if size is None else size)
        if encoding == "json":
            values[name] = json.loads(sample[place:stop])
        elif encoding in MDS_READ:
            values[name] = sample[place:stop]
        place = stop
    return values


def _webdataset(storage: Storage, piece: Piece, options: Ingest) -> Iterator[Found]:
    """Neighboring members with one key are one sample."""
    (name,) = piece.names
    wanted = {*_PICTURE_MEMBERS, "txt", "json", options.image_column, *options.caption_columns}
    with storage.open(name) as stream, tarfile.open(fileobj=stream, mode="r|*") as tar:
        files = (each for each in tar if each.isfile() and not each.name.rpartition("/")[2].startswith("."))
        for key, sample in groupby(files, key=lambda member: key_of(member.name)):
            members = dict[str, bytes]()
            for member in sample:
                suffix = suffix_of(member.name)
                content = tar.extractfile(member) if suffix in wanted else None
                members[suffix] = content.read() if content else b""
            yield _sample(name, key, members, options)


def _sample(source: str, key: str, members: dict[str, bytes], options: Ingest) -> Found:
    names = (options.image_column, *_PICTURE_MEMBERS)
    image = next((members[name] for name in names if name in members), None)
    about = _json(members.get("json"))
    named = [value for name in options.caption_columns for value in (members.get(name), about.get(name))]
    return source, key, image, [*named, members.get("txt")]


def _json(content: bytes | None) -> dict[str, Any]:
    try:
        values = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _pictures(storage: Storage, piece: Piece, _options: Ingest) -> Iterator[Found]:
    for name in piece.names:
        yield name, "", _file(storage, name), [_file(storage, f"{key_of(name)}.txt")]


def _file(storage: Storage, name: str) -> bytes | None:
    """The content, or None where it cannot be read: the other pictures of the piece are sound."""
    try:
        return storage.read(name)
    except OSError:
        return None


_READERS: dict[Kind, Callable[[Storage, Piece, Ingest], Iterator[Found]]] = {
    Kind.PARQUET: _parquet,
    Kind.HUGGINGFACE: _arrow,
    Kind.WEBDATASET: _webdataset,
    Kind.MDS: _mds,
    Kind.PICTURES: _pictures,
}
