"""The forms in which example data are written; each as its usual tools write it."""

import hashlib
import io
import json
import struct
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from giornata.pretrain.data.filters import Refusal
from giornata.pretrain.data.sources import Kind

ROW_GROUP = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A picture's bytes, its caption as the source has it, and why it must be refused (None: it must be kept).

    `source` and `place` say where it lies, as the quarantine names it.
    """

    image: bytes | None
    suffix: str
    caption: str | float | None
    refusal: Refusal | None = None
    source: str = ""
    place: str = ""


Shares = Sequence[Sequence[Row]]


def write_parquet(folder: Path, shares: Shares) -> list[Row]:
    """Columns `jpg`, `caption` and one that is of no concern. A caption that is no text is null here."""
    written: list[Row] = []
    for number, rows in enumerate(shares):
        name = f"part-{number:05}.parquet"
        columns = {
            "url": [f"https://example.org/{number}/{place}" for place in range(len(rows))],
            "caption": pa.array([_text(row) for row in rows], pa.string()),
            "jpg": pa.array([row.image for row in rows], pa.binary()),
        }
        pq.write_table(pa.table(columns), folder / name, row_group_size=ROW_GROUP)
        written += _placed(rows, name)
    return written


def write_huggingface(folder: Path, shares: Shares) -> list[Row]:
    """As `datasets.save_to_disk` leaves a data set: Arrow streams, pictures as a struct of bytes and path."""
    written: list[Row] = []
    picture = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    names = [f"data-{number:05}-of-{len(shares):05}.arrow" for number in range(len(shares))]
    for name, rows in zip(names, shares, strict=True):
        images = [None if row.image is None else {"bytes": row.image, "path": None} for row in rows]
        captions = pa.array([_text(row) for row in rows], pa.string())
        table = pa.table({"jpg": pa.array(images, picture), "caption": captions})
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table, max_chunksize=ROW_GROUP)
        written += _placed(rows, name)
    digest = hashlib.sha256(b"".join((folder / name).read_bytes() for name in names))
    state: dict[str, Any] = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": digest.hexdigest()[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    (folder / "state.json").write_text(json.dumps(state))
    features = {"jpg": {"_type": "Image"}, "caption": {"dtype": "string", "_type": "Value"}}
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    return written


def write_webdataset(folder: Path, shares: Shares) -> list[Row]:
    """Captions as .txt, every third one within a .json."""
    written: list[Row] = []
    for number, rows in enumerate(shares):
        name = f"{number:05}.tar"
        with tarfile.open(folder / name, "w") as tar:
            for place, row in enumerate(rows):
                key = f"{number:03}{place:06}"
                if row.image is not None:
                    _add(tar, f"{key}.{row.suffix}", row.image)
                if place % 3 == 0 or isinstance(row.caption, float):
                    _add(tar, f"{key}.json", json.dumps({"caption": row.caption, "nsfw": None}).encode())
                elif isinstance(row.caption, str):
                    _add(tar, f"{key}.txt", row.caption.encode())
                written.append(replace(row, source=name, place=key))
    return written


def write_mds(folder: Path, shares: Shares) -> list[Row]:
    """As MosaicML Streaming leaves a data set, without compression."""
    written: list[Row] = []
    about: dict[str, Any] = {"column_names": ["caption", "jpg"], "column_encodings": ["str", "bytes"]}
    about |= {"column_sizes": [None, None], "compression": None, "format": "mds", "hashes": [], "version": 2}
    shards = []
    for number, rows in enumerate(shares):
        name = f"shard.{number:05}.mds"
        pairs = [((_text(row) or "").encode(), row.image or b"") for row in rows]
        samples = [struct.pack("<2I", len(text), len(image)) + text + image for text, image in pairs]
        places = accumulate(map(len, samples), initial=4 * (len(rows) + 2))
        (folder / name).write_bytes(struct.pack(f"<{len(rows) + 2}I", len(rows), *places) + b"".join(samples))
        raw = {"basename": name, "bytes": (folder / name).stat().st_size, "hashes": {}}
        shards.append({**about, "raw_data": raw, "samples": len(rows), "size_limit": 1 << 26, "zip_data": None})
        written += _placed(rows, name)
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    return written


def write_pictures(folder: Path, shares: Shares) -> list[Row]:
    """A folder for each share; a caption beside its picture. Rows without a picture cannot be written."""
    written: list[Row] = []
    for number, rows in enumerate(shares):
        (folder / f"{number:03}").mkdir()
        for place, row in enumerate(rows):
            if row.image is None:
                continue
            stem = f"{number:03}/{place:06}"
            (folder / f"{stem}.{row.suffix}").write_bytes(row.image)
            if isinstance(row.caption, str):
                (folder / f"{stem}.txt").write_text(row.caption, encoding="utf-8")
            written.append(replace(row, source=f"{stem}.{row.suffix}"))
    return written


def _text(row: Row) -> str | None:
    return row.caption if isinstance(row.caption, str) else None


def _placed(rows: Sequence[Row], name: str) -> list[Row]:
    return [replace(row, source=name, place=str(place)) for place, row in enumerate(rows)]


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


WRITERS: dict[Kind, Callable[[Path, Shares], list[Row]]] = {
    Kind.PARQUET: write_parquet,
    Kind.HUGGINGFACE: write_huggingface,
    Kind.WEBDATASET: write_webdataset,
    Kind.MDS: write_mds,
    Kind.PICTURES: write_pictures,
}
