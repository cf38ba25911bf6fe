"""What very many shards cost whoever trains them, before the first row is read: `python -m benchmarks.portions`.

A manifest of so many shards without any pictures; a phase that takes every row once, with rows held back for
validation. For each size a process of its own reads the manifest, makes the phases, a ledger, what remains of it when
half was trained, and the groups that reading tasks are given; with `--ray`, Ray makes its data set of these groups.
Times are seconds of CPU; memory is the process's greatest resident size less that after its imports.

With `--tasks` instead: as many reading tasks as given, each of one small shard, are really run by Ray on this
machine, and their rows taken. Times are of the wall, the last two from the first request for a row; memory as above,
of the process that takes the rows.

With `--encode` instead: what `giornata pretrain encode` does beside encoding, for so many shards of which none is
encoded yet. The encoders do nothing and take no time. Prints a table, then one JSON line.
"""

import argparse
import hashlib
import json
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.rig.figures import conclude, machine
from giornata.pretrain.data.columns import LATENTS
from giornata.pretrain.data.manifest import MANIFEST, Manifest, Shard
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.encode import encode
from giornata.pretrain.encoding.encode_shards import EncodedPart, EncodingTask
from giornata.pretrain.encoding.encoder import open_encoder
from giornata.pretrain.feeding.graph import GROUP, ROWS_OF_A_TASK, STORED, ReadLatents, grouped, packed, reading
from giornata.pretrain.feeding.ledger import UseLedger
from giornata.pretrain.feeding.rows_of_phase import rows_of_phases
from giornata.pretrain.recipes import sdxl_tiny

ROWS_PER_SHARD = 10_000
HELD_ROWS = 8192
ROWS_OF_A_SMALL_SHARD = 16


def manifest_of(shards: int) -> bytes:
    """As an ingest of so many shards writes it."""
    digests = (hashlib.sha256(str(number).encode()).hexdigest() for number in range(shards))
    return Manifest(
        shards=tuple(
            Shard(name=f"shard-{number:05}.parquet", rows=ROWS_PER_SHARD, bytes=850_000_000, sha256=digest)
            for number, digest in enumerate(digests)
        )
    ).to_bytes()


class StepSeconds:
    """Seconds of CPU of each."""

    def __init__(self) -> None:
        self.found: dict[str, float] = {}

    def __call__(self, name: str, make: Callable[[], Any]) -> Any:
        began_s = time.process_time()
        made = make()
        self.found[name] = round(time.process_time() - began_s, 3)
        return made


def measured(shards: int, *, with_ray: bool) -> dict[str, float]:
    """In this process, which does nothing else."""
    content = manifest_of(shards)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    steps = StepSeconds()
    manifest = steps("read the manifest", lambda: Manifest.from_bytes(content, where="manifest"))
    config = sdxl_tiny()
    phases = tuple(replace(phase, samples=manifest.rows - HELD_ROWS) for phase in config.phases)
    config = replace(config, phases=phases, train=replace(config.train, validation_rows=HELD_ROWS))
    rows_of = steps("make the phases", lambda: rows_of_phases(config, manifest))[0]
    ledger = steps("make a ledger", lambda: UseLedger(rows_of))
    portions = steps("go through all portions", lambda: list(rows_of.portions()))
    half = portions[: len(portions) // 2]
    done = {"finished": [(0, len(half))], "partial": {}, "quarantined": {}}
    ledger = steps("a ledger from a checkpoint", lambda: UseLedger.from_json(done, rows_of))
    steps("what remains of it", lambda: list(ledger.remaining()))
    few = [(portion.number, row) for portion in portions[-100:] for row in portion.rows]
    steps("record 1,000,000 rows", lambda: ledger.record(few))
    groups = steps("groups for reading tasks", lambda: [packed(each) for each in grouped(portions, ROWS_OF_A_TASK)])
    names = tuple(shard.name for shard in manifest.shards)
    reader = ReadLatents(Storage("/nowhere"), names, rows_of, STORED)
    carried = steps("pack what every task is given", lambda: pickle.dumps(reader))
    steps("unpack it", lambda: pickle.loads(carried))
    if with_ray:
        steps("Ray's data set of them", lambda: _with_ray(groups))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "shards": shards,
        "manifest_mb": round(len(content) / 1e6, 1),
        "tasks": len(groups),
        "task_is_given_mb": round(len(carried) / 1e6, 1),
        "memory_mib": round((peak - before) / 1024),
        **steps.found,
    }


def run_through(tasks: int) -> dict[str, float]:
    """Wall time of so many reading tasks, in this process."""
    import ray.data

    shard = Shard(name="shard.parquet", rows=ROWS_OF_A_SMALL_SHARD, bytes=0, sha256="")
    config = sdxl_tiny()
    phase = replace(config.phases[0], samples=tasks * shard.rows)
    config = replace(config, phases=(phase,), train=replace(config.train, validation_rows=0))
    rows_of = rows_of_phases(config, Manifest(shards=(shard,) * tasks))[0]
    groups = [packed([portion]) for portion in rows_of.portions()]
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(_latents(shard.rows), Path(folder) / shard.name)
        reader = ReadLatents(Storage(folder), (shard.name,) * tasks, rows_of, STORED)
        ray.init(include_dashboard=False, logging_level="error", log_to_driver=False)
        ray.data.DataContext.get_current().enable_progress_bars = False
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began_s = time.perf_counter()
        dataset = ray.data.from_items([{GROUP: group} for group in groups], override_num_blocks=len(groups))
        made_s = time.perf_counter()
        options = reading(Manifest(shards=(shard,)), ())
        batches = iter(dataset.map_batches(reader, **options).iter_batches(batch_size=64, batch_format="pyarrow"))
        rows = len(next(batches))
        first_s = time.perf_counter()
        rows += sum(len(batch) for batch in batches)
        ended_s = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert rows == tasks * shard.rows, f"{rows} rows of {tasks * shard.rows}"
    return {
        "tasks": len(groups),
        "s to make the data set": round(made_s - began_s, 1),
        "s to the first rows": round(first_s - made_s, 1),
        "s to the last": round(ended_s - made_s, 1),
        "ms a task": round(1000 * (ended_s - first_s) / len(groups), 1),
        "memory_mib": round((peak - before) / 1024),
    }


def driver_of_encode(shards: int) -> dict[str, float]:
    """Of an encoding that costs nothing, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        config = sdxl_tiny(folder)
        config = replace(config, phases=config.phases[:1])
        Storage.at(config.data.shards).write(MANIFEST, manifest_of(shards))
        encoder = open_encoder(config.model, seed=config.seed, device="cpu")

        def encoding(works: list[EncodingTask]) -> Iterator[tuple[EncodingTask, dict[str, EncodedPart]]]:
            for work in works:
                shard = Shard(name=f"{work.number}", rows=ROWS_PER_SHARD, bytes=1, sha256="")
                yield work, dict.fromkeys(work.parts, EncodedPart(shard=shard, unreadable={"truncated": 1}))

        steps = StepSeconds()
        steps("all", lambda: encode(config, encoder, encoding))
    return {"shards": shards, "s": steps.found["all"], "ms a shard": round(1000 * steps.found["all"] / shards, 3)}


def _latents(rows: int) -> pa.Table:
    """As an encoder stores those of 32 pixels, without text."""
    values = {pa.string(): "", pa.int32(): 32, pa.binary(): bytes(2 * 4 * 4 * 4)}
    return pa.table({field.name: pa.array([values[field.type]] * rows, field.type) for field in LATENTS})


def _with_ray(groups: list[bytes]) -> int:
    import ray.data

    ray.init(include_dashboard=False, logging_level="error", log_to_driver=False)
    began_s = time.perf_counter()
    dataset = ray.data.from_items([{GROUP: group} for group in groups], override_num_blocks=len(groups))
    print(f"{len(groups)} blocks in {time.perf_counter() - began_s:.1f} s", file=sys.stderr)
    return int(dataset.count())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", nargs="+", type=int, default=[20_000, 200_000])
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--tasks", nargs="+", type=int)
    parser.add_argument("--encode", action="store_true")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        if given.tasks:
            found_here = run_through(given.one)
        else:
            found_here = driver_of_encode(given.one) if given.encode else measured(given.one, with_ray=given.ray)
        print(json.dumps(found_here))
        return
    about, found = machine(), list[dict[str, float]]()
    what = "tasks" if given.tasks else "shards"
    for number in given.tasks or given.shards:
        words = [sys.executable, "-m", "benchmarks.portions", "--one", str(number), *(["--ray"] if given.ray else [])]
        words += ["--tasks", str(number)] if given.tasks else []
        words += ["--encode"] if given.encode else []
        found.append(json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1]))
    print("| | " + " | ".join(f"{each[what]:,} {what}" for each in found) + " |")
    print("|---|" + "---|" * len(found))
    for name in found[0]:
        print(f"| {name} | " + " | ".join(f"{each[name]:g}" for each in found) + " |")
    conclude({"benchmark": "portions", **about, "sizes": found})


if __name__ == "__main__":
    main()
