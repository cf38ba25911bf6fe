"""Four modes, one data set, real Ray: the same rows exactly once, and the same latents.

On one kind of machine, with one thread for each encoder, latents and text agree to the bit; the tolerance that is
asserted is that of float16, for machines where actors and this process do not compute alike.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from tests.fixtures.pretrain_shards import write_shards

from giornata.pretrain.data import columns
from giornata.pretrain.encode import encode, on_ray
from giornata.pretrain.encoding.encode_shards import encoded_here
from giornata.pretrain.encoding.encoded import source_manifest
from giornata.pretrain.encoding.encoder import Encoder, open_encoder
from giornata.pretrain.feeding.feed import Batch, Feeder
from giornata.pretrain.feeding.graph import fed
from giornata.pretrain.feeding.ledger import Use, UseLedger
from giornata.pretrain.feeding.rows_of_phase import NumberSet, Portion, RowsOfPhase
from giornata.pretrain.recipes import sdxl_tiny
from giornata.protocol.pretraining import Mode, PretrainConfig

SHARDS, ROWS, SAMPLES = 4, 10, 95
BROKEN = (13, 37)
TOLERANCE = 2e-3  # of float16 values near 1: two units in the last place


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed:
    """What one mode fed."""

    batches: tuple[Batch, ...]
    unreadable: tuple[Use, ...]

    @property
    def rows(self) -> dict[Use, tuple[torch.Tensor, ...]]:
        found: dict[Use, tuple[torch.Tensor, ...]] = {}
        for batch in self.batches:
            assert batch.pooled_BP is not None
            parts = (batch.mean_BCHW, batch.logvar_BCHW, batch.prompt_BLD, batch.pooled_BP, batch.time_ids_B6)
            for place, use in enumerate(batch.uses):
                assert use not in found
                found[use] = tuple(part[place] for part in parts)
        return found


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> PretrainConfig:
    folder = tmp_path_factory.mktemp("modes")
    write_shards(folder / "shards", shards=SHARDS, rows=ROWS, sizes=((64, 64), (128, 64), (64, 128)), broken=BROKEN)
    config = sdxl_tiny(str(folder))
    data = replace(config.data, enable_bucket=True, bucket_reso_steps=8, max_quarantined_share=0.1)
    phases = tuple(replace(phase, samples=SAMPLES) for phase in config.phases)
    return replace(config, data=data, phases=phases, encode=replace(config.encode, encode_batch_size=4, encoders=1))


@pytest.fixture(scope="module")
def encoder(config: PretrainConfig) -> Iterator[Encoder]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the actors have it
    yield open_encoder(config.model, seed=0, device="cpu")
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def encoded(ray: ModuleType, config: PretrainConfig, encoder: Encoder) -> PretrainConfig:
    """With its latents, made by actors."""
    report = encode(config, encoder, on_ray(config, source_manifest(config)))
    assert report["encoded"] == SHARDS
    return config


def rows_of(config: PretrainConfig, phase: int = 0) -> RowsOfPhase:
    return RowsOfPhase(seed=config.seed, phase=phase, samples=SAMPLES, shard_rows=(ROWS,) * SHARDS)


def feed_all(config: PretrainConfig, mode: Mode, portions: list[Portion], encoder: Encoder, phase: int = 0) -> Fed:
    config = replace(config, encode=replace(config.encode, mode=mode))
    dataset = fed(config, phase, rows_of(config, phase), portions, rows_of_a_task=40)
    tables = dataset.iter_batches(batch_size=7, batch_format="pyarrow")
    if mode is Mode.COLOCATED:
        tables = encoded_here(config, tables, encoder)
    feeder = Feeder(tables)
    batches: list[Batch] = []
    unreadable: list[Use] = []
    while (feed := feeder.take(16, 8)).batches or feed.unreadable:
        batches += feed.batches
        unreadable += feed.unreadable
    assert ")->MapBatches(" not in dataset.stats(), "a reading task is run inside an encoder"
    return Fed(batches=tuple(batches), unreadable=tuple(unreadable))


@pytest.fixture(scope="module")
def modes(encoded: PretrainConfig, encoder: Encoder) -> dict[Mode, Fed]:
    portions = list(rows_of(encoded).portions())
    return {mode: feed_all(encoded, mode, portions, encoder) for mode in Mode}


def wanted(portions: list[Portion]) -> Counter[Use]:
    return Counter((portion.number, row) for portion in portions for row in portion.rows)


@pytest.mark.parametrize("mode", Mode)
def test_every_row_exactly_once_or_known_as_unreadable(
    modes: dict[Mode, Fed], encoded: PretrainConfig, mode: Mode
) -> None:
    portions = list(rows_of(encoded).portions())
    shards = {portion.number: portion.shard for portion in portions}
    seen = modes[mode]
    assert Counter([*seen.rows, *seen.unreadable]) == wanted(portions)
    assert {shards[number] * ROWS + row for number, row in seen.unreadable} <= set(BROKEN)
    assert len(seen.unreadable) == sum((shards[number] * ROWS + row) in BROKEN for number, row in wanted(portions))
    assert {tuple(batch.mean_BCHW.shape[2:]) for batch in seen.batches} == {(4, 4), (3, 5), (5, 3)}


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not Mode.OFFLINE])
def test_all_modes_feed_the_same_latents_and_text(modes: dict[Mode, Fed], mode: Mode) -> None:
    ours, theirs = modes[Mode.OFFLINE].rows, modes[mode].rows
    assert ours.keys() == theirs.keys()
    for use, parts in ours.items():
        for one, other in zip(parts, theirs[use], strict=True):
            np.testing.assert_allclose(one.float().numpy(), other.float().numpy(), rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("mode", [Mode.OFFLINE, Mode.ONLINE])
def test_a_restart_asks_for_what_remains(
    modes: dict[Mode, Fed], encoded: PretrainConfig, encoder: Encoder, mode: Mode
) -> None:
    ledger = UseLedger(rows_of(encoded))
    before = modes[mode].batches[:5]
    ledger.record([use for batch in before for use in batch.uses])
    rest = feed_all(encoded, mode, list(ledger.remaining()), encoder)
    ledger.record(rest.rows, quarantined=rest.unreadable)  # which raises for a row that was trained before
    assert ledger.complete


def test_order_is_that_of_training_when_it_is_kept(encoded: PretrainConfig) -> None:
    phase = rows_of(encoded)
    portions = list(phase.portions())
    dataset = fed(encoded, 0, phase, portions, rows_of_a_task=20)
    dataset.context.execution_options.preserve_order = True
    found = [(row[columns.PORTION], row[columns.ROW]) for row in dataset.iter_rows()]
    assert found == [(portion.number, row) for portion in portions for row in phase.in_order(portion)]


def test_random_cuts_differ_by_epoch_beside_the_run_and_not_in_storage(
    encoded: PretrainConfig, encoder: Encoder
) -> None:
    drawn = replace(encoded, data=replace(encoded.data, center_crop=False, random_flip=True, enable_bucket=False))
    row = NumberSet.of_spans([(1, 2)])
    twice = [Portion(number=number, epoch=epoch, shard=0, rows=row) for number, epoch in ((0, 0), (SHARDS, 1))]
    seen = feed_all(drawn, Mode.COLOCATED, twice, encoder).rows
    crops = {use: parts[4][2:4].tolist() for use, parts in seen.items()}
    assert len(crops) == 2
    assert crops[0, 1] != crops[SHARDS, 1]


def test_offline_feed_of_no_portions_is_empty(encoded: PretrainConfig, encoder: Encoder) -> None:
    assert feed_all(encoded, Mode.OFFLINE, [], encoder) == Fed(batches=(), unreadable=())


def test_shards_made_by_actors_are_those_made_here(encoded: PretrainConfig, encoder: Encoder, tmp_path: Path) -> None:
    again = replace(encoded, encode=replace(encoded.encode, latents=str(tmp_path)))
    encode(again, encoder)
    theirs = Path(encoded.storage) / "latents"
    read: Callable[[Path], dict[str, bytes]] = lambda top: {  # noqa: E731
        str(path.relative_to(top)): path.read_bytes() for path in sorted(top.rglob("shard-*"))
    }
    assert read(tmp_path) == read(theirs)
