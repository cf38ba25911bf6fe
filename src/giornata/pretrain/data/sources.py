"""What lies in a source of captioned pictures, and how it is cut into pieces that are read one by one.

A source is a folder (or an address that fsspec reads, or one file) of one kind. Hugging Face data sets on disk are
read as what they are, Arrow streams and Parquet: the library `datasets` would add nothing but a cache of its own.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from giornata.domain.errors import Fault, InvalidInput
from giornata.pretrain.data.storage import Storage
from giornata.protocol.pretraining import Ingest

Files = Sequence[tuple[str, int]]
PICTURES_PER_PIECE = 256
MDS_INDEX, MDS_READ = "index.json", ("bytes", "jpeg", "json", "png", "str")
_FOOTERS_AT_ONCE = 16
_PICTURE_SUFFIXES = ("avif", "bmp", "gif", "jpeg", "jpg", "png", "tif", "tiff", "webp")


class Kind(StrEnum):
    """Forms of a source."""

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
    """One file, or one row group of it, or some pictures of a folder. `first` is the place of its first row, `bytes`
    how large it is, as near as that is known without reading it."""

    kind: Kind
    names: tuple[str, ...]
    row_group: int | None = None
    first: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What was found. `digest` is sha256 over names and sizes: the same source in another folder has the same."""

    storage: Storage
    kind: Kind
    files: tuple[tuple[str, int], ...]
    pieces: tuple[Piece, ...]

    @property
    def digest(self) -> str:
        """Of the files' names and sizes."""
        return hashlib.sha256(json.dumps(self.files).encode()).hexdigest()

    @property
    def bytes(self) -> int:
        """Of all files that are read."""
        return sum(size for _, size in self.files)


def find(address: str, options: Ingest) -> Source:
    """Look through a folder, address or file. Raises InvalidInput."""
    storage, listed = _listed(address)
    kind, files = _of_one_kind(storage, [each for each in listed if not _hidden(each[0])])
    if kind is Kind.HUGGINGFACE:
        files = _of_the_data_set(storage, files)
    if kind is Kind.MDS:
        files = _of_the_index(storage, files)
    if kind in {Kind.PARQUET, Kind.HUGGINGFACE, Kind.MDS}:
        _refuse_missing_columns(storage, kind, files[0][0], options)
    pieces = _PIECES[kind](storage, files)
    return Source(storage=storage, kind=kind, files=tuple(files), pieces=tuple(pieces))


def key_of(name: str) -> str:
    """What a sample's files have in common in WebDataset, and a picture with its caption: all up to the first dot of
    the file's own name."""
    return re.sub(r"\.[^/]*$", "", name)


def suffix_of(name: str) -> str:
    """The rest, in small letters."""
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


def _hidden(name: str) -> bool:
    return any(part.startswith((".", "_")) for part in name.split("/"))


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
    """Those that state.json names, where there is one; `cache-….arrow` beside them belong to nobody."""
    kept: list[tuple[str, int]] = []
    named: dict[str, set[str] | None] = {}
    for name, size in files:
        folder, slash, own = name.rpartition("/")
        if folder not in named:
            named[folder] = _named_in_state(storage, f"{folder}{slash}state.json")
        wanted = named[folder]
        if own in wanted if wanted is not None else not own.startswith("cache-"):
            kept.append((name, size))
    return kept or list(files)


def _named_in_state(storage: Storage, name: str) -> set[str] | None:
    try:
        return {each["filename"] for each in json.loads(storage.read(name))["_data_files"]}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def mds_shards(storage: Storage, name: str) -> dict[str, dict[str, Any]]:
    """What the index beside a file of MDS says of each shard, by the shard's file: raw, or compressed where only
    that is there."""
    folder = name.rpartition("/")[0]
    found = {}
    for about in json.loads(storage.read(f"{folder}/{MDS_INDEX}"))["shards"]:
        names = [about[each]["basename"] for each in ("raw_data", "zip_data") if about.get(each)]
        paths = [f"{folder}/{each}".lstrip("/") for each in names]
        found[next((path for path in paths if storage.exists(path)), paths[0])] = about
    return found


def _of_the_index(storage: Storage, files: Files) -> list[tuple[str, int]]:
    """Those that the index of their folder names. Raises InvalidInput where there is none."""
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


def _row_groups(storage: Storage, files: Files) -> Iterator[Piece]:
    """A piece for each row group; for a file whose footer cannot be read one that will say so."""

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


def _whole_files(kind: Kind) -> Callable[[Storage, Files], Iterator[Piece]]:
    def pieces(_storage: Storage, files: Files) -> Iterator[Piece]:
        return (Piece(kind=kind, names=(name,), bytes=size) for name, size in files)

    return pieces


def _some_pictures(_storage: Storage, files: Files) -> Iterator[Piece]:
    for first in range(0, len(files), PICTURES_PER_PIECE):
        some = files[first : first + PICTURES_PER_PIECE]
        size = sum(each for _, each in some)
        yield Piece(kind=Kind.PICTURES, names=tuple(name for name, _ in some), bytes=size)


_PIECES: dict[Kind, Callable[[Storage, Files], Iterator[Piece]]] = {
    Kind.PARQUET: _row_groups,
    Kind.HUGGINGFACE: _whole_files(Kind.HUGGINGFACE),
    Kind.WEBDATASET: _whole_files(Kind.WEBDATASET),
    Kind.MDS: _whole_files(Kind.MDS),
    Kind.PICTURES: _some_pictures,
}
