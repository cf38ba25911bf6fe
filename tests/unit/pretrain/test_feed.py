"""A trainer's share of a step: every row once, in batches of one size, whatever the blocks it came in."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.pretrain_shards import picture

from giornata.diffusion.encode.captions import Embedding
from giornata.pretrain.data import columns
from giornata.pretrain.encoding.encode_shards import encode_cut, encoded_here
from giornata.pretrain.encoding.encoder import open_encoder
from giornata.pretrain.encoding.transforms import Cutting, Posterior, cut_rows
from giornata.pretrain.feeding.feed import Feed, Feeder
from giornata.pretrain.recipes import sdxl_tiny
from giornata.protocol.pretraining import Architecture, Data, Encode, Mode, Model, PretrainConfig

SIZES = ((32, 32), (32, 48), (48, 32))


def fed_row(number: int, size: tuple[int, int] | None, *, pooled: bool = True) -> dict[str, object]:
    """Row `number` of portion 7; None: it could not be read."""
    height, width = size or (0, 0)
    latents = np.full((4, height // 8, width // 8), number, np.float16).tobytes()
    return {
        columns.PORTION: 7,
        columns.EPOCH: 2,
        columns.SHARD: 1,
        columns.ROW: number,
        columns.KEY: f"key{number}",
        columns.CAPTION: f"caption {number}",
        columns.HEIGHT: 100,
        columns.WIDTH: 200,
        columns.TARGET_HEIGHT: height,
        columns.TARGET_WIDTH: width,
        columns.CROP_TOP: 3,
        columns.CROP_LEFT: 4,
        columns.REASON: "" if size else "is damaged",
        columns.MEAN: latents,
        columns.LOGVAR: latents,
        columns.PROMPT: np.full((77, 6), -number, np.float16).tobytes() if size else b"",
        columns.POOLED: np.full(5, number, np.float16).tobytes() if size and pooled else b"",
    }


def tables(rows: Sequence[dict[str, object]], block: int) -> Iterator[pa.Table]:
    for first in range(0, len(rows), block):
        yield pa.Table.from_pylist(list(rows[first : first + block]), schema=columns.FED)


def fed(sizes: Sequence[tuple[int, int] | None], block: int = 5, **options: bool) -> Feeder:
    return Feeder(tables([fed_row(number, size, **options) for number, size in enumerate(sizes)], block))


def all_of(feeder: Feeder, rows: int, batch_rows: int | None) -> list[Feed]:
    feeds = []
    while (feed := feeder.take(rows, batch_rows)).batches or feed.unreadable:
        feeds.append(feed)
    return feeds


def shape_of(feeds: Sequence[Feed]) -> list[list[list[int]]]:
    return [[[row for _, row in batch.uses] for batch in feed.batches] for feed in feeds]


def test_tensors_are_what_was_fed() -> None:
    feed = fed([(32, 48)] * 3).take(3)
    (batch,) = feed.batches
    assert batch.mean_BCHW.shape == batch.logvar_BCHW.shape == (3, 4, 4, 6)
    assert str(batch.mean_BCHW.dtype) == str(batch.prompt_BLD.dtype) == "torch.float16"
    assert batch.mean_BCHW[:, 0, 0, 0].tolist() == [0.0, 1.0, 2.0]
    assert batch.prompt_BLD.shape == (3, 77, 6)
    assert batch.prompt_BLD[:, 5, 5].tolist() == [0.0, -1.0, -2.0]
    assert batch.pooled_BP is not None
    assert batch.pooled_BP.tolist() == [[number] * 5 for number in (0.0, 1.0, 2.0)]
    assert batch.time_ids_B6.tolist() == [[100, 200, 3, 4, 32, 48]] * 3
    assert (batch.uses, batch.keys, batch.epochs) == (((7, 0), (7, 1), (7, 2)), ("key0", "key1", "key2"), (2, 2, 2))


def test_models_without_pooled_text() -> None:
    assert fed([(32, 32)], pooled=False).take(1).batches[0].pooled_BP is None


def test_feeds_of_a_number_of_rows_the_last_one_smaller() -> None:
    feeds = all_of(fed([(32, 32)] * 23), 10, 4)
    assert [[len(batch) for batch in feed.batches] for feed in feeds] == [[4, 4, 2], [4, 4, 2], [3]]
    empty = fed([]).take(10, 4)
    assert (empty.rows, list(empty.batches), list(empty.unreadable)) == (0, [], [])


def test_rows_of_other_sizes_wait_their_turn() -> None:
    one, other = SIZES[:2]
    feeds = all_of(fed([one, other, one, other, one, one, other]), 2, 2)
    assert shape_of(feeds) == [[[0, 2]], [[1, 3]], [[4, 5]], [[6]]]


def test_feed_gives_remaining_rows_in_small_batches_at_the_end() -> None:
    feeds = all_of(fed([*SIZES, *SIZES]), 6, 4)
    assert shape_of(feeds) == [[[0, 3], [1, 4], [2, 5]]]


def test_feed_without_batch_size_gives_the_next_rows_of_each_step() -> None:
    one, other = SIZES[:2]
    feeds = all_of(fed([one, other, one, None, other, one, one]), 3, None)
    assert shape_of(feeds) == [[[0, 2], [1]], [[4], [5]], [[6]]]
    assert [list(feed.unreadable) for feed in feeds] == [[], [(7, 3)], []], "which had its place in the step"


def test_unreadable_rows_are_apart_and_none_is_lost_at_the_end() -> None:
    feeds = all_of(fed([(32, 32), None, (32, 32), None]), 2, 2)
    assert shape_of(feeds) == [[[0, 2]], []]
    assert [use for feed in feeds for use in feed.unreadable] == [(7, 1), (7, 3)]


@given(
    sizes=st.lists(st.sampled_from([*SIZES, None]), max_size=40),
    rows=st.integers(1, 9),
    batch_rows=st.none() | st.integers(1, 5),
    blocks=st.tuples(st.integers(1, 9), st.integers(1, 9)),
)
def test_every_row_once_whatever_the_blocks(
    sizes: list[tuple[int, int] | None], rows: int, batch_rows: int | None, blocks: tuple[int, int]
) -> None:
    feeds, others = (all_of(fed(sizes, block), rows, batch_rows) for block in blocks)
    assert shape_of(feeds) == shape_of(others)
    uses = [use for feed in feeds for batch in feed.batches for use in batch.uses]
    bad = [use for feed in feeds for use in feed.unreadable]
    assert sorted(uses) == [(7, number) for number, size in enumerate(sizes) if size]
    assert sorted(bad) == [(7, number) for number, size in enumerate(sizes) if not size]
    if batch_rows is None:
        assert all(feed.rows + len(feed.unreadable) == rows for feed in feeds[:-1])
    else:
        assert all(feed.rows == rows for feed in feeds[:-2])
    for feed in feeds:
        assert all(len(batch) <= (batch_rows or rows) for batch in feed.batches)


def cut_pictures(count: int) -> pa.Table:
    rows = []
    for number in range(count):
        row = fed_row(number, (32, 32))
        rows.append({**row, columns.IMAGE: picture(number, (64, 48)), columns.WIDTH: 64, columns.HEIGHT: 48})
    return cut_rows(Cutting.of(Data(shards="x"), seed=0, resolution=32), rows, epoch_in_draws=True)


def colocated(encode_batch_size: int) -> PretrainConfig:
    config = sdxl_tiny()
    return replace(config, encode=Encode(mode=Mode.COLOCATED, encode_batch_size=encode_batch_size))


def test_pictures_are_encoded_here_as_they_are_elsewhere() -> None:
    encoder = open_encoder(Model(architecture=Architecture.SDXL_TINY), seed=0, device="cpu")
    cut = cut_pictures(5)
    assert cut.schema == columns.CUT
    here = pa.concat_tables(encoded_here(colocated(1), [cut], encoder))
    assert here.equals(encode_cut(encoder, cut, at_once=2))
    (batch,) = Feeder(encoded_here(colocated(1), [cut], encoder)).take(5).batches
    assert batch.keys == tuple(f"key{number}" for number in range(5))
    with pytest.raises(RuntimeError, match="no encoder was given"):
        list(encoded_here(colocated(1), [cut], None))


class Overflowing:
    """An encoder whose second picture of each batch is not a number: what half precision does to some pictures."""

    digest, scaling = "x", (0.0, 1.0)

    def encode_images(self, pixels_BHWC: np.ndarray) -> Posterior:
        mean_BChw = np.zeros((len(pixels_BHWC), 4, 4, 4), np.float16)
        mean_BChw[1:2] = np.inf
        return Posterior(mean_BChw=mean_BChw, logvar_BChw=np.zeros_like(mean_BChw))

    def encode_text(self, captions: Sequence[str]) -> Embedding:
        return Embedding(prompt_BLD=torch.zeros(len(captions), 77, 6, dtype=torch.float16), pooled_BP=None)


def test_pictures_that_overflow_are_unreadable_in_every_mode() -> None:
    cut = cut_pictures(4)
    here = Feeder(encoded_here(colocated(8), [cut], Overflowing())).take(4)
    elsewhere = Feeder([encode_cut(Overflowing(), cut, at_once=4)]).take(4)
    for feed in (here, elsewhere):
        assert shape_of([feed]) == [[[0, 2, 3]]]
        assert list(feed.unreadable) == [(7, 1)]
