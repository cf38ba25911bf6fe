"""Data sets on disk as the library `datasets` writes them: every row is read, as the library itself reads it back."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.fixtures.pretrain_sources import write_example

from giornata.pretrain.data.source_rows import rows_of
from giornata.pretrain.data.sources import Kind, find
from giornata.protocol.pretraining import Ingest

ROWS, SHARDS = 10, 3


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The library, which keeps what it caches here and asks no hub."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HF_HOME", str(tmp_path_factory.mktemp("hugging face")))
        environment.setenv("HF_HUB_OFFLINE", "1")
        import datasets

        datasets.disable_progress_bars()
        yield datasets


def pictures() -> list[bytes]:
    """PNGs, each of a width of its own."""
    found = []
    for width in range(8, 8 + ROWS):
        content = io.BytesIO()
        Image.new("RGB", (width, 8), (20 * (width - 8), 0, 90)).save(content, "PNG")
        found.append(content.getvalue())
    return found


def made(datasets: Any, folder: Path) -> Any:
    """With an Image feature: bytes, files (which saving takes in), a picture that is missing, a caption that is."""
    images: list[Any] = [{"bytes": content, "path": None} for content in pictures()]
    for number in (1, 8):
        path = folder / f"{number}.png"
        path.write_bytes(pictures()[number])
        images[number] = str(path)
    images[4] = None
    captions = [None if number == 6 else f"ein Bild, größer: {number}" for number in range(ROWS)]
    features = datasets.Features(
        {"jpg": datasets.Image(), "likes": datasets.Value("int64"), "caption": datasets.Value("string")}
    )
    return datasets.Dataset.from_dict(
        {"jpg": images, "likes": list(range(ROWS)), "caption": captions}, features=features
    )


def read(folder: Path) -> list[tuple[str, str, bytes | None, str]]:
    source = find(str(folder), Ingest())
    assert source.kind is Kind.HUGGINGFACE
    rows = [raw for piece in source.pieces for raw in rows_of(source.storage, piece, Ingest())]
    return [(raw.source, raw.place, raw.image, raw.caption) for raw in rows]


def read_back(datasets: Any, folder: Path) -> list[tuple[bytes | None, str]]:
    """By the library."""
    rows = datasets.load_from_disk(str(folder)).cast_column("jpg", datasets.Image(decode=False))
    return [(row["jpg"] and row["jpg"]["bytes"], row["caption"] or "") for row in rows]


def test_every_row_of_several_shards(datasets: Any, tmp_path: Path) -> None:
    made(datasets, tmp_path).save_to_disk(tmp_path / "saved", num_shards=SHARDS)
    for number in (1, 8):
        (tmp_path / f"{number}.png").unlink()
    rows = read(tmp_path / "saved")
    assert [(image, caption) for _, _, image, caption in rows] == read_back(datasets, tmp_path / "saved")
    assert [image for _, _, image, _ in rows] == [each if n != 4 else None for n, each in enumerate(pictures())]
    assert rows[6][3] == ""
    assert rows[9][3] == "ein Bild, größer: 9"
    names = [f"data-{number:05}-of-{SHARDS:05}.arrow" for number in range(SHARDS)]
    assert [(name, place) for name, place, _, _ in rows] == [
        (names[shard], str(place)) for shard, count in enumerate((4, 3, 3)) for place in range(count)
    ]


def test_cache_files_of_datasets_library_beside_data_set_are_not_read(datasets: Any, tmp_path: Path) -> None:
    made(datasets, tmp_path).save_to_disk(tmp_path / "saved", num_shards=SHARDS)
    before = read(tmp_path / "saved")
    kept = datasets.load_from_disk(str(tmp_path / "saved")).filter(lambda likes: likes > 7, input_columns="likes")
    assert len(kept) == 2
    assert list((tmp_path / "saved").glob("cache-*.arrow"))
    assert read(tmp_path / "saved") == before


def test_a_selection_and_several_splits(datasets: Any, tmp_path: Path) -> None:
    whole = made(datasets, tmp_path)
    splits = datasets.DatasetDict({"train": whole.select([9, 0, 3]), "held": whole.shuffle(seed=1).select(range(2))})
    splits.save_to_disk(tmp_path / "saved")
    rows = read(tmp_path / "saved")
    wanted = [
        (split, each) for split in ("held", "train") for each in read_back(datasets, tmp_path / "saved" / split)
    ]
    assert [(name.partition("/")[0], (image, caption)) for name, _, image, caption in rows] == wanted
    assert [image for name, _, image, _ in rows if name.startswith("train/")] == [pictures()[n] for n in (9, 0, 3)]


def test_our_example_is_a_data_set_for_the_library(datasets: Any, tmp_path: Path) -> None:
    """So that what is tested with it is tested with what the library writes."""
    example = write_example(tmp_path, rows=12, kind=Kind.HUGGINGFACE, files=2)
    rows = read_back(datasets, tmp_path)
    assert [image for image, _ in rows] == [row.image for row in example.rows]
    assert [caption for _, caption in rows] == [
        row.caption if isinstance(row.caption, str) else "" for row in example.rows
    ]
