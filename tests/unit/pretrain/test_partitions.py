"""Rows of one value are in one partition, and all rows come back."""

from pathlib import Path

import numpy as np
import pytest

from giornata.pretrain.data.partitions import ROW, WORKING_BYTES, Partitions


def rows_of(numbers: range) -> np.ndarray:
    rows = np.zeros(len(numbers), ROW)
    rows["number"] = numbers
    rows["hash"] = np.array(numbers) // 3
    return rows


@pytest.mark.parametrize("at_once", [1, 7, 100, 1000])
def test_rows_of_a_value_are_together_and_nothing_is_lost(tmp_path: Path, at_once: int) -> None:
    partitions = Partitions(tmp_path, 300, at_once * WORKING_BYTES)
    for first in range(0, 300, 50):
        rows = rows_of(range(first, first + 50))
        partitions.add(rows, rows["hash"])
    for _ in range(2):
        found = [set(part["hash"].tolist()) for part in partitions]
        assert sorted(np.concatenate(list(partitions))["number"]) == list(range(300))
        assert sum(map(len, found)) == 100
    assert partitions.rows == 300
    assert any(tmp_path.iterdir()) == (at_once < 300)
    if at_once < 300:
        assert max(len(part) for part in partitions) <= 4 * max(at_once, 6)
    partitions.drop()
    assert list(partitions) == []
