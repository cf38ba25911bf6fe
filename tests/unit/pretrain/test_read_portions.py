"""Reading tasks take exactly the rows that are wanted, in the order of training, from few row groups."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.pretrain_shards import write_shards

from giornata.pretrain.data import columns
from giornata.pretrain.data.shards import read_rows
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.feeding.graph import GROUP, OF_PICTURES, grouped, packed, portions_of
from giornata.pretrain.feeding.rows_of_phase import NumberSet, Portion, RowsOfPhase

ROWS = 11


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> tuple[Storage, str, list[str]]:
    folder = tmp_path_factory.mktemp("read")
    name = write_shards(folder, shards=1, rows=ROWS).shards[0].name
    return Storage.at(folder), name, pq.read_table(folder / name).column(columns.KEY).to_pylist()


@given(rows=st.lists(st.integers(0, ROWS - 1), max_size=20), at_once=st.integers(1, 8))
def test_rows_by_number_in_any_order(shard: tuple[Storage, str, list[str]], rows: list[int], at_once: int) -> None:
    storage, name, keys = shard
    tables = list(read_rows(storage, name, rows, columns=(columns.KEY,), at_once=at_once))
    assert [key for table in tables for key in table.column(columns.KEY).to_pylist()] == [keys[row] for row in rows]
    assert all(len(table) == at_once for table in tables[:-1])
    assert all(table.column_names == [columns.KEY] for table in tables)


@pytest.mark.parametrize("row", [ROWS, -1])
def test_rows_that_are_not_there_are_an_error(shard: tuple[Storage, str, list[str]], row: int) -> None:
    with pytest.raises(ValueError, match="has 11 rows"):
        list(read_rows(shard[0], shard[1], [0, row], columns=OF_PICTURES, at_once=4))


@given(
    sizes=st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=9), max_size=12),
    rows_of_a_task=st.integers(1, 30),
)
def test_groups_keep_portions_and_their_order(sizes: list[list[int]], rows_of_a_task: int) -> None:
    portions = [
        Portion(number=number, epoch=number // 3, shard=number % 3, rows=NumberSet.of(rows))
        for number, rows in enumerate(sizes)
    ]
    groups = list(grouped(portions, rows_of_a_task))
    assert [portion for group in groups for portion in group] == portions
    assert all(len(group) == 1 or sum(len(each.rows) for each in group) <= rows_of_a_task for group in groups)
    assert [list(portions_of(pa.table({GROUP: [packed(group)]}))) for group in groups] == groups


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=60), most=st.integers(1, 9))
def test_read_tasks_never_exceed_limit_and_keep_portions_in_order(sizes: list[int], most: int) -> None:
    portions = [
        Portion(number=number, epoch=0, shard=number, rows=NumberSet.of_spans([(0, size)]))
        for number, size in enumerate(sizes)
    ]
    groups = list(grouped(portions, 1, most=most))
    assert len(groups) <= most
    assert [portion for group in groups for portion in group] == portions


def test_a_billion_rows_are_not_a_billion_tasks() -> None:
    phase = RowsOfPhase(seed=0, phase=0, samples=300_000, shard_rows=(1000,) * 100)
    assert len(list(grouped(list(phase.portions()), 16_384))) == 19
