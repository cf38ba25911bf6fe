"""What very many shards cost whoever trains them, before the first row is read: `python benchmarks/portions.py`.

A manifest of so many shards without any pictures; a phase that takes every row once, with rows held back for
validation. For each size a process of its own reads the manifest, makes the phases, a ledger, what remains of it when
half was trained, and the groups that reading tasks are given; with `--ray`, Ray makes its data set of these groups.
Times are seconds of CPU; memory is the process's greatest resident size less that after its imports. Prints a table,
then one JSON line.
"""

import argparse
import hashlib
import json
import pickle
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rig.figures import conclude, machine

from giornata.pretrain.data.manifest import Manifest, Shard
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.feeding.graph import ROWS_OF_A_TASK, grouped
from giornata.pretrain.feeding.ledger import Ledger
from giornata.pretrain.feeding.read_portions import GROUP, STORED, ReadLatents, packed
from giornata.pretrain.feeding.schedule import rows_of_phases
from giornata.pretrain.recipes import sdxl_tiny

ROWS_PER_SHARD = 10_000
HELD_ROWS = 8192


def manifest_of(shards: int) -> bytes:
    """As an ingest of so many shards writes it."""
    digests = (hashlib.sha256(str(number).encode()).hexdigest() for number in range(shards))
    return Manifest(
        shards=tuple(
            Shard(name=f"shard-{number:05}.parquet", rows=ROWS_PER_SHARD, bytes=850_000_000, sha256=digest)
            for number, digest in enumerate(digests)
        )
    ).to_bytes()


class Steps:
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
    steps = Steps()
    manifest = steps("read the manifest", lambda: Manifest.from_bytes(content, where="manifest"))
    config = sdxl_tiny()
    phases = tuple(replace(phase, samples=manifest.rows - HELD_ROWS) for phase in config.phases)
    config = replace(config, phases=phases, train=replace(config.train, validation_rows=HELD_ROWS))
    rows_of = steps("make the phases", lambda: rows_of_phases(config, manifest))[0]
    ledger = steps("make a ledger", lambda: Ledger(rows_of))
    portions = steps("go through all portions", lambda: list(rows_of.portions()))
    half = portions[: len(portions) // 2]
    done = {"finished": [(0, len(half))], "partial": {}, "quarantined": {}}
    ledger = steps("a ledger from a checkpoint", lambda: Ledger.from_json(done, rows_of))
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
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measured(given.one, with_ray=given.ray)))
        return
    about, found = machine(), list[dict[str, float]]()
    for shards in given.shards:
        words = [sys.executable, __file__, "--one", str(shards), *(["--ray"] if given.ray else [])]
        found.append(json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1]))
    print("| | " + " | ".join(f"{each['shards']:,} shards" for each in found) + " |")
    print("|---|" + "---|" * len(found))
    for name in found[0]:
        print(f"| {name} | " + " | ".join(f"{each[name]:g}" for each in found) + " |")
    conclude({"benchmark": "portions", **about, "sizes": found})


if __name__ == "__main__":
    main()
