"""Each use of a picture takes one of its captions: the same one for whoever reads it, whenever that is."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.fixtures.pretrain_shards import write_shards

from giornata.domain.errors import InvalidInput
from giornata.pretrain.data import columns
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.encode import encode
from giornata.pretrain.encoding.encoded import encoded_manifest, latents_storage, source_manifest
from giornata.pretrain.encoding.encoder import Encoder, open_encoder
from giornata.pretrain.encoding.transforms import CaptionChoice, Cutting
from giornata.pretrain.feeding.graph import (
    GROUP,
    STORED,
    WITHOUT_TEXT,
    ReadLatents,
    ReadPictures,
    packed,
)
from giornata.pretrain.feeding.ledger import UseLedger
from giornata.pretrain.feeding.rows_of_phase import Portion, RowsOfPhase, part_of
from giornata.pretrain.recipes import sdxl_tiny
from giornata.protocol.pretraining import Mode, PretrainConfig

CAPTIONS = ("one", "two", "three")
SHARDS, ROWS = 2, 4
PHASE = RowsOfPhase(seed=0, phase=0, samples=4 * SHARDS * ROWS, shard_rows=(ROWS,) * SHARDS)
Reader = ReadLatents | ReadPictures


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (None, (1 / 3, 1 / 3, 1 / 3)),
        ((3, 1), (0.75, 0.25, 0)),
        ((1, 0, 1), (0.5, 0, 0.5)),
        ((0.1, 0.2, 0.1, 5), (0.25, 0.5, 0.25)),
        ((1,), (1, 0, 0)),
    ],
)
def test_captions_are_taken_as_often_as_their_weights_say(
    weights: tuple[float, ...] | None, expected: tuple[float, ...]
) -> None:
    choice, draws = CaptionChoice(seed=1, weights=weights), 2000
    taken = Counter(choice.of(CAPTIONS, (0, epoch, "key")) for epoch in range(draws))
    assert [taken[each] / draws for each in CAPTIONS] == pytest.approx(expected, abs=0.04)
    assert {each for each in CAPTIONS if taken[each]} == {
        each for each, share in zip(CAPTIONS, expected, strict=True) if share
    }
    assert choice.of(("alone",), (0, 0, "key")) == "alone"


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return open_encoder(sdxl_tiny().model, seed=0, device="cpu")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, encoder: Encoder) -> PretrainConfig:
    """With shards of three captions for each picture, and latents with the text of one."""
    folder = tmp_path_factory.mktemp("captions")
    write_shards(folder / "shards", shards=SHARDS, rows=ROWS, captions=3)
    config = sdxl_tiny(str(folder))
    config = replace(config, phases=config.phases[:1])
    encode(config, encoder)
    return config


def of_latents(config: PretrainConfig, read: tuple[str, ...], phase: RowsOfPhase = PHASE) -> Reader:
    manifest = encoded_manifest(config, 32, source_manifest(config))
    return ReadLatents(latents_storage(config, 32), tuple(shard.name for shard in manifest.shards), phase, read)


def of_pictures(config: PretrainConfig) -> Reader:
    names = tuple(shard.name for shard in source_manifest(config).shards)
    cutting = Cutting.of(config.data, seed=config.seed, resolution=32)
    return ReadPictures(Storage.at(config.data.shards), names, PHASE, cutting)


def captions(reader: Reader, portions: Iterable[Portion]) -> dict[tuple[int, int], str]:
    """By use."""
    table = pa.concat_tables(reader(pa.table({GROUP: [packed(list(portions))]})))
    uses = zip(table.column(columns.PORTION).to_pylist(), table.column(columns.ROW).to_pylist(), strict=True)
    return dict(zip(uses, table.column(columns.CAPTION).to_pylist(), strict=True))


def of_source(config: PretrainConfig) -> dict[tuple[int, int], list[str]]:
    """All captions, by shard and row."""
    tables = [pq.read_table(Path(config.data.shards) / shard.name) for shard in source_manifest(config).shards]
    return {
        (shard, row): several
        for shard, table in enumerate(tables)
        for row, several in enumerate(table.column(columns.CAPTIONS).to_pylist())
    }


def test_a_use_takes_the_same_caption_in_every_mode_on_any_rank_and_after_a_restart(config: PretrainConfig) -> None:
    portions = list(PHASE.portions())
    whole = captions(of_pictures(config), portions)
    assert whole == captions(of_latents(config, WITHOUT_TEXT), portions)
    for world in (2, 3):
        ranks = [part_of(portions, PHASE, batch=6, rank=rank, world=world) for rank in range(world)]
        parts = [captions(of_pictures(config), part) for part in ranks]
        assert {use: each for part in parts for use, each in part.items()} == whole
    ledger = UseLedger(PHASE)
    ledger.record(list(whole)[:11])
    rest = captions(of_latents(config, WITHOUT_TEXT), ledger.remaining())
    assert rest == {use: whole[use] for use in list(whole)[11:]}


def test_caption_choice_differs_between_epochs_and_phases(config: PretrainConfig) -> None:
    source, taken = of_source(config), captions(of_pictures(config), PHASE.portions())
    shards = {portion.number: portion.shard for portion in PHASE.portions()}
    by_row: dict[tuple[int, int], set[str]] = {}
    for (number, row), caption in taken.items():
        assert caption in source[shards[number], row]
        by_row.setdefault((shards[number], row), set()).add(caption)
    assert max(map(len, by_row.values())) == 3
    second = replace(PHASE, phase=1)
    assert captions(of_latents(config, WITHOUT_TEXT, second), PHASE.portions()) != taken


def test_the_weights_are_those_of_the_configuration(config: PretrainConfig) -> None:
    source = of_source(config)
    last = replace(PHASE, caption_weights=(1e-9, 0, 1))
    shards = {portion.number: portion.shard for portion in PHASE.portions()}
    taken = captions(of_latents(config, WITHOUT_TEXT, last), PHASE.portions())
    assert all(caption == source[shards[number], row][2] for (number, row), caption in taken.items())


def test_stored_text_is_of_one_caption_for_good(config: PretrainConfig, encoder: Encoder) -> None:
    latents = pq.read_table(Path(config.storage) / "latents" / "32" / "shard-00000.parquet").to_pylist()
    stored = pq.read_table(Path(config.storage) / "latents" / "text" / "shard-00000.parquet").to_pylist()
    source = of_source(config)
    assert [row[columns.CAPTIONS] for row in latents] == [source[0, row] for row in range(ROWS)]
    assert any(row[columns.CAPTION] != source[0, number][0] for number, row in enumerate(stored))
    for row in stored:
        assert row[columns.PROMPT] == encoder.encode_text([row[columns.CAPTION]]).prompt_BLD[0].numpy().tobytes()
    taken = captions(of_latents(config, STORED), (portion for portion in PHASE.portions() if portion.shard == 0))
    assert all(caption == stored[row][columns.CAPTION] for (_, row), caption in taken.items())


def test_text_of_other_choices_is_refused_by_whoever_reads_it(config: PretrainConfig) -> None:
    source = source_manifest(config)
    other = replace(config, data=replace(config.data, caption_weights=(1.0,)))
    for another in (other, replace(config, seed=5)):
        with pytest.raises(InvalidInput, match="caption_choice is"):
            encoded_manifest(another, 32, source)
    encoded_manifest(replace(other, encode=replace(other.encode, mode=Mode.HYBRID)), 32, source)
