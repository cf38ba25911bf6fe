"""Pictures are cut where they say they were, and what cannot be read keeps its place."""

import io

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from tests.fixtures.pretrain_shards import picture

from giornata.diffusion.encode.decoding import decode
from giornata.pretrain.data import columns
from giornata.pretrain.encoding.transforms import Cutting, cut_for_each, cut_rows
from giornata.protocol.pretraining import Data


def cutting(resolution: int = 32, **options: object) -> Cutting:
    return Cutting.of(Data(shards="x", **options), seed=3, resolution=resolution)  # type: ignore[arg-type]


def ramp(width: int, height: int) -> bytes:
    """Red says the column, green the row."""
    y, x = np.mgrid[0:height, 0:width]
    file = io.BytesIO()
    Image.fromarray(np.stack([x, y, 0 * x], axis=2).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def cut(by: Cutting, content: bytes, key: str, epoch: int) -> dict[str, object]:
    return by.cut(decode(content), key, epoch)


def pixels_of(row: dict[str, object]) -> np.ndarray:
    shape = (row[columns.TARGET_HEIGHT], row[columns.TARGET_WIDTH], 3)
    return np.frombuffer(row[columns.PIXELS], np.uint8).reshape(shape)  # type: ignore[call-overload]


def test_the_middle_is_cut_without_chance() -> None:
    row = cut(cutting(center_crop=True), ramp(96, 32), "k", 0)
    assert (row[columns.HEIGHT], row[columns.WIDTH]) == (32, 96)
    assert (row[columns.CROP_TOP], row[columns.CROP_LEFT]) == (0, 32)
    found_HWC = pixels_of(row)
    assert found_HWC[0, 0].tolist() == [32, 0, 0]
    assert found_HWC[31, 31].tolist() == [63, 31, 0]
    assert row == cut(cutting(center_crop=True), ramp(96, 32), "another", 7)


def test_crops_are_functions_of_seed_key_and_epoch() -> None:
    drawn = cutting(center_crop=False)
    lefts = {
        (key, epoch): cut(drawn, ramp(96, 32), key, epoch)[columns.CROP_LEFT] for key in "abcd" for epoch in range(4)
    }
    assert lefts == {place: cut(drawn, ramp(96, 32), *place)[columns.CROP_LEFT] for place in lefts}
    assert len({lefts["a", epoch] for epoch in range(4)}) > 1
    assert len({lefts[key, 0] for key in "abcd"}) > 1
    assert all(0 <= left <= 64 for left in lefts.values())
    row = cut(drawn, ramp(96, 32), "a", 0)
    assert pixels_of(row)[0, 0, 0] == row[columns.CROP_LEFT]  # where it says


def test_flips_are_drawn_and_mirror_before_the_crop() -> None:
    drawn = cutting(center_crop=True, random_flip=True)
    reds = {int(pixels_of(cut(drawn, ramp(32, 32), key, 0))[0, 0, 0]) for key in "abcdefgh"}
    assert reds == {0, 31}
    assert {int(pixels_of(cut(cutting(center_crop=True), ramp(32, 32), key, 0))[0, 0, 0]) for key in "abcdefgh"} == {
        0
    }


def test_stored_rows_are_cut_alike_in_every_epoch() -> None:
    drawn = cutting(center_crop=False, random_flip=True)
    rows = [
        {columns.PORTION: 0, columns.EPOCH: epoch, columns.SHARD: 0, columns.ROW: 0, columns.KEY: "k"}
        | {columns.IMAGE: ramp(96, 40), columns.CAPTION: "c", columns.WIDTH: 96, columns.HEIGHT: 40}
        for epoch in range(6)
    ]
    stored = cut_rows(drawn, rows, epoch_in_draws=False)
    beside = cut_rows(drawn, rows, epoch_in_draws=True)
    assert len(set(stored.column(columns.PIXELS).to_pylist())) == 1
    assert len(set(beside.column(columns.PIXELS).to_pylist())) > 1


@pytest.mark.parametrize(
    ("size", "target"),
    [((64, 64), (64, 64)), ((128, 64), (40, 88)), ((64, 128), (88, 40)), ((1000, 10), (32, 128))],
)
def test_buckets_are_of_the_pictures_proportions(size: tuple[int, int], target: tuple[int, int]) -> None:
    bucketed = cutting(64, enable_bucket=True, bucket_reso_steps=8)
    width, height = size
    row = cut(bucketed, ramp(width, height) if width < 256 else picture(1, size), "k", 0)
    assert (row[columns.TARGET_HEIGHT], row[columns.TARGET_WIDTH]) == target
    assert len(row[columns.PIXELS]) == target[0] * target[1] * 3
    assert row[columns.TARGET_HEIGHT] * row[columns.TARGET_WIDTH] <= 64 * 64


@pytest.mark.parametrize(
    "content", [b"", b"no picture", picture(1, (64, 64))[:300]], ids=["empty", "text", "truncated"]
)
def test_unreadable_picture_keeps_its_place_with_a_reason(content: bytes) -> None:
    use = {columns.PORTION: 5, columns.EPOCH: 1, columns.SHARD: 2, columns.ROW: 9, columns.KEY: "k"}
    row = {**use, columns.IMAGE: content, columns.CAPTION: "c", columns.WIDTH: 64, columns.HEIGHT: 64}
    found = cut_rows(cutting(), [row, {**row, columns.IMAGE: ramp(32, 32)}], epoch_in_draws=True)
    assert found.schema == columns.CUT
    bad, good = found.to_pylist()
    assert bad[columns.REASON]
    assert bad[columns.PIXELS] == b""
    assert {name: bad[name] for name in use} == use
    assert good[columns.REASON] == ""
    assert len(good[columns.PIXELS]) == 32 * 32 * 3


def test_no_rows_are_a_table_too() -> None:
    assert cut_rows(cutting(), [], epoch_in_draws=True).equals(pa.Table.from_pylist([], schema=columns.CUT))


class CountedSourceRow(dict[str, object]):
    """A source row that counts how often its picture is taken."""

    times = 0

    def __getitem__(self, name: str) -> object:
        type(self).times += name == columns.IMAGE
        return super().__getitem__(name)


def test_a_picture_is_decoded_once_for_all_resolutions() -> None:
    whole = {columns.KEY: "k", columns.CAPTION: "a ramp", columns.IMAGE: ramp(96, 80)}
    broken = {**whole, columns.KEY: "b", columns.IMAGE: b"broken"}
    cuttings = [cutting(side, center_crop=False, random_flip=True) for side in (32, 64)]
    CountedSourceRow.times = 0
    found = cut_for_each(cuttings, [CountedSourceRow(whole), CountedSourceRow(broken)], epoch_in_draws=False)
    assert CountedSourceRow.times == 2
    alone = [cut_rows(each, [whole, broken], epoch_in_draws=False) for each in cuttings]
    assert all(one.equals(other) for one, other in zip(found, alone, strict=True))
    assert [table.column(columns.TARGET_HEIGHT).to_pylist() for table in found] == [[32, 0], [64, 0]]
