"""A source of captioned pictures: its files, and the pieces in which they are read.

A source is a folder (or an address that fsspec reads, or one file) of one kind. Hugging Face data sets on disk are
read as Arrow streams and Parquet: the library `datasets` would add nothing but a cache.

One task examines a *part*, which is some pieces. The rows of a *stretch* of pieces are mixed with one another and
written before the next stretch begins. Both are functions of the source, so that an ingest can be continued.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from giornata.domain.errors import Fault, InvalidInput
from giornata.pretrain.data.storage import Storage
from giornata.protocol.pretraining import Ingest

Files = Sequence[tuple[str, int]]
PICTURES_PER_PIECE = 256
MAX_PARTS = 10_000
MDS_INDEX, MDS_READ = "index.json", ("bytes", "jpeg", "json", "png", "str")
_FOOTERS_AT_ONCE = 16
_PICTURE_SUFFIXES = ("avif", "bmp", "gif", "jpeg", "jpg", "png", "tif", "tiff", "webp")


class Kind(StrEnum):
    """The supported formats of a data source."""

    PARQUET = "parquet"  # also what Hugging Face's hub keeps
    HUGGINGFACE = "huggingface"  # as `datasets.save_to_disk` writes it
    WEBDATASET = "webdataset"
    MDS = "mds"  # as MosaicML Streaming writes it
    PICTURES = "pictures"  # files, each with a .txt of its name beside it


_KIND_OF = {
    "parquet": Kind.PARQUET,
    "arrow": Kind.HUGGINGFACE,
    "tar": Kind.WEBDATASET,
    "tar.gz": Kind.WEBDATASET,
    "tgz": Kind.WEBDATASET,
    **dict.fromkeys(_PICTURE_SUFFIXES, Kind.PICTURES),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One file, one row group of it, or some pictures of a folder. `first` is the number of its first row.

    `bytes` is its size, an estimate for row groups.
    """

    kind: Kind
    names: tuple[str, ...]
    row_group: int | None = None
    first: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The files of one kind in a folder, and their pieces."""

    storage: Storage
    kind: Kind
    files: tuple[tuple[str, int], ...]
    pieces: tuple[Piece, ...]

    @property
    def digest(self) -> str:
        """sha256 over the files' names and sizes: a copy in another folder has the same digest."""
        return hashlib.sha256(json.dumps(self.files).encode()).hexdigest()

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.files)


def find(address: str, options: Ingest) -> Source:
    """Look through a folder, address or file. Raises InvalidInput."""
    storage, listed = _listed(address)
    seen = [each for each in listed if not any(part.startswith((".", "_")) for part in each[0].split("/"))]
    kind, files = _of_one_kind(storage, seen)
    if kind is Kind.HUGGINGFACE:
        files = _of_the_data_set(storage, files)
    if kind is Kind.MDS:
        files = _of_the_index(storage, files)
    if kind in {Kind.PARQUET, Kind.HUGGINGFACE, Kind.MDS}:
        _refuse_missing_columns(storage, kind, files[0][0], options)
    return Source(storage=storage, kind=kind, files=tuple(files), pieces=tuple(_pieces(storage, kind, files)))


def parts_of(pieces: int) -> list[range]:
    """The numbers of the pieces of each part, for this many pieces. Parts differ by one piece at most."""
    count = min(pieces, MAX_PARTS)
    edges = [pieces * place // count for place in range(count + 1)] if count else []
    return [range(start, stop) for start, stop in pairwise(edges)]


def stretches_of(pieces: Sequence[Piece], shuffle_bytes: int) -> list[range]:
    """The numbers of the pieces of each stretch. A piece that would make a stretch too large begins another."""
    edges, size = [0], 0
    for number, piece in enumerate(pieces):
        if size and size + piece.bytes > shuffle_bytes:
            edges.append(number)
            size = 0
        size += piece.bytes
    return [range(start, stop) for start, stop in pairwise([*edges, len(pieces)])]


def key_of(name: str) -> str:
    """The name up to the first dot of its last part: a sample's files in WebDataset share it, and a picture with its
    caption."""
    return re.sub(r"\.[^/]*$", "", name)


def suffix_of(name: str) -> str:
    """The name after its key and a dot, in lower case."""
    return name[len(key_of(name)) + 1 :].lower()


# ---- files ----


def _listed(address: str) -> tuple[Storage, list[tuple[str, int]]]:
    storage = Storage.to_read(address)
    place, _, query = address.partition("?")
    folder, _, name = place.rstrip("/").rpartition("/")
    # A file first: to list one over https would read the whole of it
    if name and _kind(name) and not folder.endswith(":/"):
        above = Storage.to_read(f"{folder or '.'}{'?' + query if query else ''}")
        if above.exists(name):
            return above, [(name, above.size_bytes(name))]
    if found := storage.sizes():
        return storage, found
    raise InvalidInput([Fault(where="source", message=f"there is nothing in {storage}", hint="a folder or a file")])


def _kind(name: str) -> Kind | None:
    suffix = suffix_of(name)
    if "mds" in suffix.split("."):  # shard.00000.mds, also compressed
        return Kind.MDS
    return _KIND_OF.get(suffix) or _KIND_OF.get(suffix.rpartition(".")[2])


def _of_one_kind(storage: Storage, listed: Sequence[tuple[str, int]]) -> tuple[Kind, list[tuple[str, int]]]:
    counts = Counter(kind for name, _ in listed if (kind := _kind(name)))
    if not counts:
        hint = "Parquet, WebDataset (.tar), Arrow or picture files"
        raise InvalidInput([Fault(where="source", message=f"{storage} holds nothing to read", hint=hint)])
    if len(counts) > 1:
        found = ", ".join(f"{count} of {kind}" for kind, count in sorted(counts.items()))
        hint = "name a folder that holds one kind"
        raise InvalidInput(
            [Fault(where="source", message=f"{storage} holds files of several kinds: {found}", hint=hint)]
        )
    kind = next(iter(counts))
    return kind, [each for each in listed if _kind(each[0]) is kind]


def _of_the_data_set(storage: Storage, files: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """The files that state.json names, where there is one. `cache-….arrow` beside them is no data."""
    folders = {name.rpartition("/")[0] for name, _ in files}
    named = {folder: _named_in_state(storage, f"{folder}/state.json".lstrip("/")) for folder in folders}

    def counts(name: str) -> bool:
        folder, _, own = name.rpartition("/")
        wanted = named[folder]
        return own in wanted if wanted is not None else not own.startswith("cache-")

    return [each for each in files if counts(each[0])] or list(files)


def _named_in_state(storage: Storage, name: str) -> set[str] | None:
    try:
        return {each["filename"] for each in json.loads(storage.read(name))["_data_files"]}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def mds_shards(storage: Storage, name: str) -> dict[str, dict[str, Any]]:
    """The index beside a file of MDS: its entry of each shard, by the shard's file, raw or else compressed."""
    folder = name.rpartition("/")[0]
    found = {}
    for about in json.loads(storage.read(f"{folder}/{MDS_INDEX}"))["shards"]:
        names = [about[each]["basename"] for each in ("raw_data", "zip_data") if about.get(each)]
        paths = [f"{folder}/{each}".lstrip("/") for each in names]
        found[next((path for path in paths if storage.exists(path)), paths[0])] = about
    return found


def _of_the_index(storage: Storage, files: Files) -> list[tuple[str, int]]:
    """The files that the index of their folder names. Raises InvalidInput where there is none."""
    folders = {name.rpartition("/")[0]: name for name, _ in files}
    try:
        named = {name for each in folders.values() for name in mds_shards(storage, each)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"{storage} holds MDS shards, and their {MDS_INDEX} cannot be read: {error}"
        raise InvalidInput([Fault(where="source", message=message, hint="name the folder of the index")]) from None
    return [(name, size) for name, size in files if name in named] or list(files)


# ---- columns ----


def _refuse_missing_columns(storage: Storage, kind: Kind, name: str, options: Ingest) -> None:
    try:
        there = _columns(storage, kind, name)
    except (pa.ArrowException, OSError):
        return  # counted when it is read
    faults = []
    has = f"{name} has {', '.join(there)}"
    if options.image_column not in there:
        faults.append(Fault(where="ingest.image_column", message=f"there is no {options.image_column!r}", hint=has))
    if not set(options.caption_columns) & set(there):
        wanted = " or ".join(map(repr, options.caption_columns))
        faults.append(Fault(where="ingest.caption_columns", message=f"there is no {wanted}", hint=has))
    if faults:
        raise InvalidInput(faults)


def _columns(storage: Storage, kind: Kind, name: str) -> list[str]:
    if kind is Kind.MDS:
        about = mds_shards(storage, name)[name]
        named = zip(about["column_names"], about["column_encodings"], strict=True)
        return [each if code in MDS_READ else f"{each} (as {code}, which is not read)" for each, code in named]
    with storage.open(name) as file:
        if kind is Kind.PARQUET:
            return list(pq.read_schema(file).names)
        return list(pa.ipc.open_stream(file).schema.names)


# ---- pieces ----


def _pieces(storage: Storage, kind: Kind, files: Files) -> Iterator[Piece]:
    if kind is Kind.PARQUET:
        yield from _row_groups(storage, files)
        return
    count = PICTURES_PER_PIECE if kind is Kind.PICTURES else 1
    for first in range(0, len(files), count):
        names, sizes = zip(*files[first : first + count], strict=True)
        yield Piece(kind=kind, names=names, bytes=sum(sizes))


def _row_groups(storage: Storage, files: Files) -> Iterator[Piece]:
    """A piece for each row group. A file with an unreadable footer is one piece, which is refused when it is read."""

    def groups_of(file: tuple[str, int]) -> list[int] | None:
        try:
            with storage.open(file[0]) as stream:
                footer = pq.ParquetFile(stream).metadata
                return [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
        except (pa.ArrowException, OSError):
            return None

    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as threads:
        for (name, size), counts in zip(files, threads.map(groups_of, files), strict=True):
            if counts is None:
                yield Piece(kind=Kind.PARQUET, names=(name,), bytes=size)
            first, rows = 0, max(1, sum(counts or ()))
            for group, count in enumerate(counts or ()):
                part = size * count // rows
                yield Piece(kind=Kind.PARQUET, names=(name,), row_group=group, first=first, bytes=part)
                first += count
