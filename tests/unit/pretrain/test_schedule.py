"""Which trainer gets which rows when the order is pinned."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from giornata.domain.errors import InvalidInput
from giornata.pretrain.data.manifest import Manifest, Shard
from giornata.pretrain.feeding.rows_of_phase import RowsOfPhase, part_of, rows_of_phases, share
from giornata.pretrain.recipes import sdxl_tiny
from giornata.protocol.pretraining_checks import parse


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 60))
def test_pinned_parts_are_the_steps_rows_in_order(batch: int, world: int, samples: int) -> None:
    rows_of = RowsOfPhase(seed=1, phase=0, samples=samples, shard_rows=(9, 4, 11))
    whole = [(each.number, row) for each in rows_of.portions() for row in rows_of.in_order(each)]
    parts = []
    for rank in range(world):
        part = part_of(rows_of.portions(), rows_of, batch=batch, rank=rank, world=world)
        parts.append([(each.number, row) for each in part for row in rows_of.in_order(each)])
    shares = [share(batch, rank=rank, world=world) for rank in range(world)]
    assert sum(shares) == batch
    assert max(shares) - min(shares) <= 1
    for step in range(samples // batch):
        taken = [part[step * size : (step + 1) * size] for part, size in zip(parts, shares, strict=True)]
        assert [use for one in taken for use in one] == whole[step * batch : (step + 1) * batch]
    assert sorted(use for part in parts for use in part) == sorted(whole)


def test_validation_rows_are_the_same_in_all_phases_and_leave_some() -> None:
    shards = tuple(Shard(name=f"{number}", rows=40, bytes=1, sha256=f"{number}") for number in range(3))
    values = sdxl_tiny().to_json()
    values["train"] |= {"validation_rows": 7}
    first, second = rows_of_phases(parse(values), Manifest(shards=shards))
    assert first.left_out == second.left_out
    assert sum(len(rows) for _, rows in first.left_out) == 7
    values["train"] |= {"validation_rows": 120}
    with pytest.raises(InvalidInput, match="leave none of the 120"):
        rows_of_phases(parse(values), Manifest(shards=shards))
