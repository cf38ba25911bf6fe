"""Other programs read encoded shards: the functions of the guide, as they stand there."""

import json
import re
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import numpy as np
import pytest
import webdataset
from tests.fixtures.pretrain_shards import write_shards

from giornata.pretrain.data.source_rows import rows_of
from giornata.pretrain.data.sources import Kind, find
from giornata.pretrain.encode import encode
from giornata.pretrain.encoding.encoder import open_encoder
from giornata.pretrain.recipes import sdxl_tiny
from giornata.protocol.pretraining import Ingest

GUIDE = Path(__file__).parents[3] / "docs/how-to/pretraining-modes.md"
ROWS, BROKEN = 5, 3


@pytest.fixture(scope="module")
def latents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 32 pixels, with a picture that cannot be read."""
    folder = tmp_path_factory.mktemp("elsewhere")
    write_shards(folder / "shards", shards=1, rows=ROWS, sizes=((64, 64), (96, 64)), broken=(BROKEN,))
    config = sdxl_tiny(str(folder))
    config = replace(config, phases=config.phases[:1], data=replace(config.data, max_quarantined_share=0.5))
    encode(config, open_encoder(config.model, seed=0, device="cpu"))
    return folder / "latents"


def of_the_guide() -> dict[str, Callable[..., Any]]:
    found: dict[str, Any] = {}
    section = GUIDE.read_text(encoding="utf-8").split("### Reading encoded shards elsewhere")[1].split("\n## ")[0]
    for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
        exec(block, found)  # noqa: S102 - these are our own lines
    return found


def test_pyarrow_reads_arrays_by_what_the_shards_say(latents: Path) -> None:
    rows = list(of_the_guide()["rows"](latents, 32, 0))
    assert len(rows) == ROWS - 1
    assert {row["prompt"].shape for row in rows} == {(77, 64)}
    assert all(row["mean"].shape[0] == 4 and row["mean"].shape == row["logvar"].shape for row in rows)
    assert all(row[name].dtype == np.float16 for row in rows for name in ("mean", "logvar", "prompt"))


def test_webdataset_reads_what_the_guide_converts(latents: Path, tmp_path: Path) -> None:
    guide = of_the_guide()
    guide["to_webdataset"](latents, 32, 0, str(tmp_path / "0.tar"))
    read = list(webdataset.WebDataset(str(tmp_path / "0.tar"), shardshuffle=False).decode())
    expected = list(guide["rows"](latents, 32, 0))
    assert [sample["caption.txt"] for sample in read] == [row["caption"] for row in expected]
    for sample, row in zip(read, expected, strict=True):
        assert all(np.array_equal(sample[f"{name}.npy"], row[name]) for name in ("mean", "logvar", "prompt"))


class MDSWriter:
    """Stands in for MosaicML Streaming's: the same layout of one shard and of its index, for texts and arrays.

    A shard has its number of samples, their offsets, its description, and the samples: sizes of their columns, which
    stand in the order of their names, and the columns. An array has a byte (axes * 4 + code of the type of its
    sides), its sides and its values; `ndarray:float16` refuses other values.
    """

    def __init__(self, *, out: str, columns: Mapping[str, str]) -> None:
        self._out, self._columns, self._samples = Path(out), dict(sorted(columns.items())), list[bytes]()

    def __enter__(self) -> Self:
        return self

    def write(self, sample: Mapping[str, Any]) -> None:
        data = [self._encoded(kind, sample[name]) for name, kind in self._columns.items()]
        self._samples.append(struct.pack(f"<{len(data)}I", *map(len, data)) + b"".join(data))

    def _encoded(self, kind: str, value: Any) -> bytes:
        if kind == "str":
            assert isinstance(value, str)
            return value.encode()
        assert (kind, value.dtype) == ("ndarray:float16", np.float16)
        assert all(0 < side < 256 for side in value.shape)
        return bytes([value.ndim << 2, *value.shape]) + value.tobytes()

    def __exit__(self, *_: object) -> None:
        names, count = list(self._columns), len(self._samples)
        about = {"column_encodings": list(self._columns.values()), "column_names": names, "compression": None}
        about |= {"column_sizes": [None] * len(names), "format": "mds", "hashes": [], "size_limit": 1 << 26}
        config = json.dumps(about | {"version": 2}, sort_keys=True).encode()
        places = accumulate(map(len, self._samples), initial=4 * (count + 2) + len(config))
        head = struct.pack(f"<{count + 2}I", count, *places)
        self._out.mkdir(parents=True)
        shard = self._out / "shard.00000.mds"
        shard.write_bytes(head + config + b"".join(self._samples))
        raw = {"basename": shard.name, "bytes": shard.stat().st_size, "hashes": {}}
        entry = about | {"raw_data": raw, "samples": count, "version": 2, "zip_data": None}
        (self._out / "index.json").write_text(json.dumps({"shards": [entry], "version": 2}))


def arrays_of(shard: bytes, names: list[str]) -> list[dict[str, np.ndarray]]:
    """The arrays of a shard whose columns have these names, by the layout that MosaicML publishes."""
    (count,) = struct.unpack_from("<I", shard)
    found = []
    for place in struct.unpack_from(f"<{count}I", shard, 4):
        sizes = struct.unpack_from(f"<{len(names)}I", shard, place)
        starts = accumulate(sizes, initial=place + 4 * len(names))
        columns = {name: shard[start : start + size] for name, start, size in zip(names, starts, sizes, strict=False)}
        arrays = {name: each for name, each in columns.items() if name not in {"key", "caption"}}
        found.append(
            {
                name: np.frombuffer(each[1 + (each[0] >> 2) :], np.float16).reshape(
                    tuple(each[1 : 1 + (each[0] >> 2)])
                )
                for name, each in arrays.items()
            }
        )
    return found


def test_mds_that_the_guide_converts_is_read_back(
    latents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streaming = ModuleType("streaming")
    streaming.MDSWriter = MDSWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "streaming", streaming)  # which the guide's function imports by itself
    guide, folder = of_the_guide(), tmp_path / "mds"
    guide["to_mds"](latents, 32, 0, str(folder))
    expected = list(guide["rows"](latents, 32, 0))
    options = Ingest(image_column="mean", caption_columns=("key", "caption"), max_captions=2)
    source = find(str(folder), replace(options, image_column="caption"))
    assert source.kind is Kind.MDS
    read = [row.captions for piece in source.pieces for row in rows_of(source.storage, piece, options)]
    assert read == [(row["key"], row["caption"]) for row in expected]
    arrays = arrays_of((folder / "shard.00000.mds").read_bytes(), ["caption", "key", "logvar", "mean", "prompt"])
    for there, row in zip(arrays, expected, strict=True):
        assert set(there) == {"mean", "logvar", "prompt"}
        assert all(np.array_equal(there[name], row[name]) for name in there)
