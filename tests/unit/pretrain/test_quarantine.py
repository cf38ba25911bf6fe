"""The list of refused rows in files: full but for the last, however the rows came."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from giornata.pretrain.data.decision import QUARANTINE, write_quarantine
from giornata.pretrain.data.storage import Storage


def batches(*counts: int) -> list[pa.RecordBatch]:
    table = pa.table({name: [f"{name} {number}" for number in range(sum(counts))] for name in QUARANTINE.names})
    found, first = [], 0
    for count in counts:
        found += table.slice(first, count).to_batches()
        first += count
    return found


def files(folder: Path, *counts: int) -> list[bytes]:
    out = Storage.at(folder)
    write_quarantine(out, batches(*counts), rows_per_file=10)
    return [out.read(name) for name in out.names()]


def test_files_are_full_but_for_the_last_and_in_order(tmp_path: Path) -> None:
    files(tmp_path, 3, 9, 25)
    tables = [pq.read_table(path) for path in sorted((tmp_path / "quarantine").iterdir())]
    assert [table.num_rows for table in tables] == [10, 10, 10, 7]
    assert pa.concat_tables(tables)["place"].to_pylist() == [f"place {number}" for number in range(37)]


def test_how_they_came_does_not_show(tmp_path: Path) -> None:
    assert files(tmp_path / "a", 3, 9, 25) == files(tmp_path / "b", 37) == files(tmp_path / "c", *[1] * 37)


def test_of_no_rows_there_is_no_file(tmp_path: Path) -> None:
    assert files(tmp_path) == []
