"""What deciding over many rows takes, and what reading one picture takes: `python -m benchmarks.ingest`.

*Deciding*: rows as an ingest examines them, without pictures, are written to Parquet files; then a process of its own
finds duplicates, sorts what is kept and lists what is refused, within a limit of memory. Of every 100 rows one has
the bytes of another, and one was refused before. Sizes take turns, in every repetition.
Memory is the process's greatest resident size less that after its imports; disk is the most that its folder ever
held (looked at twice a second), the files of examined rows not counted.

*Reading*: pictures of 512 × 512 (smooth ones, JPEG at 90) are examined in one process, as a task of the first pass
does it, and brought to their shard, as one of the second does.

Rates are rows per second of CPU time, all threads together, and of wall time. Prints tables, then one JSON line.
"""

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pds
import pyarrow.parquet as pq
from PIL import Image

from benchmarks.rig.figures import conclude, machine, spread, spread_words
from giornata.pretrain.data import columns
from giornata.pretrain.data.decision import Decision, Keep
from giornata.pretrain.data.examination import EXAMINED, examine
from giornata.pretrain.data.ingest_tasks import Stretch, _sharded
from giornata.pretrain.data.source_rows import Raw
from giornata.protocol.pretraining import Ingest

ROWS_PER_FILE = 200_000
ROWS_PER_SHARD = 10_000
LOOK_EVERY_S = 0.5
CAPTION = "a photograph of something that has a caption of sixty letters"


# ---- deciding ----


def write_rows(folder: Path, rows: int) -> None:
    """Files of EXAMINED."""
    draw = np.random.default_rng(rows)
    folder.mkdir(parents=True)
    for number, first in enumerate(range(0, rows, ROWS_PER_FILE)):
        count = min(ROWS_PER_FILE, rows - first)
        pq.write_table(_rows(draw, first, count), folder / f"part-{number:05}.parquet", compression="zstd")


def _rows(draw: np.random.Generator, first: int, count: int) -> pa.Table:
    keys = draw.integers(0, 256, (count, 32), dtype=np.uint8)
    keys[50::100] = keys[::100][: len(keys[50::100])]
    numbers = np.arange(first, first + count)
    reasons = np.where(numbers % 100 == 99, "damaged", "")
    values = {
        "piece": numbers // 1000,
        "ordinal": numbers % 1000,
        columns.KEY: pa.FixedSizeBinaryArray.from_buffers(pa.binary(32), count, [None, pa.py_buffer(keys.tobytes())]),
        columns.REASON: pa.array(reasons, pa.string()),
        "detail": pa.array(reasons, pa.string()),
        "source": [f"part-{each:07}.parquet" for each in numbers // 1000],
        "place": [str(each % 1000) for each in numbers],
        columns.CAPTION: [f"{CAPTION} {each}" for each in numbers],
    }
    return pa.table(values).select(EXAMINED.names).cast(EXAMINED)


def decide(folder: Path, memory_bytes: int) -> dict[str, float]:
    """In this process, which does nothing else."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    rows = pds.dataset(folder, schema=EXAMINED, format="parquet")
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch, most_bytes(Path(scratch)) as disk:
        decision = Decision(rows, Path(scratch), memory_bytes=memory_bytes)
        keep = decision.keep(range(1 << 30), ROWS_PER_SHARD)
        refused = sum(batch.num_rows for batch in decision.refused())
    return {
        "kept": keep.rows,
        "refused": refused,
        "wall_s": time.perf_counter() - began_s,
        "cpu_s": time.process_time() - began_cpu_s,
        "memory_bytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024,
        "disk_bytes": max(disk),
    }


@contextmanager
def most_bytes(folder: Path) -> Iterator[list[int]]:
    """What is in the folder, again and again."""
    seen, ended = [0], threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_EVERY_S):
            with suppress(FileNotFoundError):
                seen.append(sum(path.stat().st_blocks * 512 for path in folder.rglob("*")))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        ended.set()
        looking.join()


def measured(folder: Path, rows: int, memory_mib: int) -> dict[str, float]:
    """By a process of its own."""
    words = [sys.executable, "-m", "benchmarks.ingest", "--decide", str(folder / str(rows))]
    words += ["--memory-mib", str(memory_mib)]
    answer = subprocess.run(words, check=True, stdout=subprocess.PIPE, env={**os.environ}).stdout
    found: dict[str, float] = json.loads(answer)
    print(f"{rows} rows, {memory_mib} MiB: {found}", file=sys.stderr)
    if found["kept"] + found["refused"] != rows:
        raise RuntimeError(f"{found} do not add up to {rows} rows")
    return found


def deciding(given: argparse.Namespace, folder: Path) -> list[dict[str, object]]:
    """Sizes in turns."""
    for rows in given.rows:
        write_rows(folder / str(rows), rows)
    cells = [(rows, mib) for rows in given.rows for mib in given.memory_mib]
    runs: dict[tuple[int, int], list[dict[str, float]]] = {cell: [] for cell in cells}
    for _ in range(given.repetitions):
        for rows, mib in cells:
            runs[rows, mib].append(measured(folder, rows, mib))
    return [_cell(cell, found) for cell, found in runs.items()]


def _cell(cell: tuple[int, int], runs: list[dict[str, float]]) -> dict[str, object]:
    rows, mib = cell
    return {
        "rows": rows,
        "memory_mib": mib,
        "rows_per_cpu_s": spread([rows / run["cpu_s"] for run in runs], 0),
        "rows_per_wall_s": spread([rows / run["wall_s"] for run in runs], 0),
        "peak_mib": spread([run["memory_bytes"] / 2**20 for run in runs], 0),
        "disk_bytes_per_row": spread([run["disk_bytes"] / rows for run in runs], 0),
    }


# ---- reading ----


def reading(count: int, repetitions: int) -> dict[str, object]:
    """Pictures per second of CPU time, in one process."""
    pictures = [_jpeg(seed) for seed in range(count)]
    rows = [Raw(source="a.parquet", place="0", image=each, captions=(CAPTION,)) for each in pictures]
    filters = Ingest()
    keep = Keep(
        rows=1,
        dropped=np.array([], np.int64),
        first_keys=np.array([b"\0"] * 100_000, "S32"),
    )
    stretch = Stretch(pieces=range(1), keep=keep, first_shard=0)
    ways = {
        "examined": lambda row: examine(row, filters),
        "brought to its shard": lambda row: _sharded(row, stretch),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repetitions):
        for name, way in ways.items():
            began_s = time.process_time()
            for row in rows:
                way(row)
            rates[name].append(count / (time.process_time() - began_s))
    size = sum(map(len, pictures)) / count
    return {"bytes_of_a_picture": round(size), **{name: spread(found, 0) for name, found in rates.items()}}


def _jpeg(seed: int) -> bytes:
    rough = np.random.default_rng(seed).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    sink = io.BytesIO()
    Image.fromarray(rough).resize((512, 512), Image.Resampling.BICUBIC).save(sink, "JPEG", quality=90)
    return sink.getvalue()


# ---- the program ----


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=int, default=[100_000, 1_000_000])
    parser.add_argument("--memory-mib", nargs="+", type=int, default=[256, 4096])
    parser.add_argument("--pictures", type=int, default=200)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="for the rows (a temporary one)")
    parser.add_argument("--decide", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.decide:
        print(json.dumps(decide(given.decide, given.memory_mib[0] << 20)))
        return
    about = machine()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        cells = deciding(given, Path(folder))
    print("| rows | memory allowed | rows/s of CPU | rows/s | memory, MiB | disk, bytes a row |")
    print("|---|---|---|---|---|---|")
    for cell in cells:
        names = ("rows_per_cpu_s", "rows_per_wall_s", "peak_mib", "disk_bytes_per_row")
        words = " | ".join(spread_words(cell[name]) for name in names)  # type: ignore[arg-type]
        print(f"| {cell['rows']:,} | {cell['memory_mib']} MiB | {words} |")
    rates = reading(given.pictures, given.repetitions) if given.pictures else {}
    for name, found in rates.items():
        print(f"{name}: {spread_words(found) if isinstance(found, dict) else found}")
    conclude({"benchmark": "ingest", **about, "deciding": cells, "reading": rates})


if __name__ == "__main__":
    main()
