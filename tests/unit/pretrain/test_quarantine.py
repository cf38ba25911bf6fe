"""The list of refused rows in files: full but for the last, however the rows came."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as pds
import pyarrow.parquet as pq

from giornata.pretrain.data import columns
from giornata.pretrain.data.decision import Decision, write_quarantine
from giornata.pretrain.data.examination import EXAMINED
from giornata.pretrain.data.storage import Storage


def files(folder: Path, refused: int, *, seed: int = 0, rows_per_file: int = 10) -> list[bytes]:
    """The files of so many refused rows, which were examined in an order of the seed."""
    texts = {columns.REASON: "damaged", "detail": "is damaged", "source": "file", columns.CAPTION: ""}
    rows = [
        {**texts, "piece": 0, "ordinal": number, columns.KEY: bytes(32), "place": f"{number}"}
        for number in random.Random(seed).sample(range(refused), refused)
    ]
    scratch, out = folder / "scratch", Storage.at(folder / f"out-{seed}")
    scratch.mkdir(exist_ok=True)
    decision = Decision(pds.dataset(pa.Table.from_pylist(rows, EXAMINED)), scratch)
    write_quarantine(out, decision, rows_per_file=rows_per_file)
    return [out.read(name) for name in out.names()]


def test_files_are_full_but_for_the_last_and_in_order(tmp_path: Path) -> None:
    files(tmp_path, 37)
    tables = [pq.read_table(path) for path in sorted((tmp_path / "out-0" / "quarantine").iterdir())]
    assert [table.num_rows for table in tables] == [10, 10, 10, 7]
    assert pa.concat_tables(tables)["place"].to_pylist() == [str(number) for number in range(37)]


def test_files_of_many_rows_are_full_as_well(tmp_path: Path) -> None:
    files(tmp_path, 9000, rows_per_file=2500)
    tables = [pq.read_table(path) for path in sorted((tmp_path / "out-0" / "quarantine").iterdir())]
    assert [table.num_rows for table in tables] == [2500, 2500, 2500, 1500]


def test_quarantine_files_do_not_depend_on_how_rows_arrive(tmp_path: Path) -> None:
    assert files(tmp_path, 37, seed=0) == files(tmp_path, 37, seed=1) == files(tmp_path, 37, seed=2)


def test_quarantine_without_rows_writes_no_file(tmp_path: Path) -> None:
    assert files(tmp_path, 0) == []
