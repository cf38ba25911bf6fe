"""One way to feed a trainer, in a process of its own, which is the trainer's: `python pretraining_feed.py WORK`.

WORK is JSON: way (loader, or a mode), size, resolution, steps, warm, folder, device, model, workers, and for modes
Ray's address and the pid of its raylet. Prints what `Laps.told` says.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

LOADER = "loader"
TAIL = 4
"""Steps at the end that do not count: as many batches as are prepared ahead."""


@dataclass(slots=True, kw_only=True)
class Laps:
    """The clocks at the end of each step. `others_s`: CPU seconds so far of the processes that work for this one."""

    rows: int
    others_s: Callable[[], float]
    marks: list[tuple[float, float, float, float]] = field(default_factory=list)

    def mark(self, waited_s: float) -> None:
        """A step has ended, for which the trainer waited so long."""
        self.marks.append((time.monotonic(), time.process_time(), self.others_s(), waited_s))

    def told(self, *, warm: int, tail: int) -> dict[str, Any]:
        """Of the steps after the first `warm` and before the last `tail`, in which nothing is prepared any more."""
        counted = self.marks[warm - 1 : len(self.marks) - tail]
        first, last = counted[0], counted[-1]
        images = self.rows * (len(counted) - 1)
        wall_s = last[0] - first[0]
        return {
            "images": images,
            "wall_s": wall_s,
            "images_per_s": images / wall_s,
            "trainer_cpu_ms": 1000 * (last[1] - first[1]) / images,
            "others_cpu_ms": 1000 * (last[2] - first[2]) / images,
            "wait_share": sum(mark[3] for mark in counted[1:]) / wall_s,
        }


def measured(work: Mapping[str, Any]) -> dict[str, Any]:
    """Train as many steps; what an image takes, in milliseconds of CPU and images/s."""
    from benchmarks.rig.pretraining_run import given_by, run_of
    from benchmarks.rig.pretraining_sizes import config_of
    from benchmarks.rig.processes import children_cpu_s, usage_of
    from giornata.pretrain.training.models import peak_flops_per_s

    mode = "colocated" if work["way"] == LOADER else work["way"]
    config = config_of({**work, "mode": mode, "samples": work["rows"] * (work["warm"] + work["steps"] + TAIL)})
    given = given_by(config, torch.device(work["device"]))

    # Of Ray's, by process: it does not wait for those that end, such as encoders that have encoded everything.
    seen_s: dict[int, float] = {}

    def others_s() -> float:
        if work["way"] == LOADER:
            return usage_of(os.getpid(), with_children=True).cpu_s - usage_of(os.getpid()).cpu_s
        seen_s.update(children_cpu_s(work["raylet"]))
        return usage_of(work["raylet"]).cpu_s + sum(seen_s.values())

    laps = Laps(rows=work["rows"], others_s=others_s)

    def report(row: Mapping[str, float]) -> None:
        laps.mark(row["waited_s"] if "waited_s" in row else _waited_s(row, work["rows"]))

    own = {
        "feeds": _none if work["way"] == LOADER else _streamed(config, given.phases, given.frozen.encoder),
        "peak_flops_per_s": peak_flops_per_s(given.device),
    }
    with run_of(given, work["folder"], clock_s=time.monotonic, report=report, **own) as run:
        _train(run, work)
    return laps.told(warm=work["warm"], tail=TAIL)


def _waited_s(row: Mapping[str, float], rows: int) -> float:
    return row["data_wait_share"] * rows / row["images_per_s"]


def _train(run: Any, work: Mapping[str, Any]) -> None:
    if work["way"] == LOADER:
        from benchmarks.rig.pretraining_loader import train_with_loader

        train_with_loader(run, workers=work["workers"])
        return
    from giornata.pretrain.ray_train.cluster import connected
    from giornata.pretrain.training.loop import train

    with connected(work["address"]):
        train(run)


def _none(_phase: int, _ledger: Any) -> Iterator[Any]:
    return iter(())


def _streamed(config: Any, phases: Sequence[Any], encoder: Any) -> Callable[[int, Any], Iterator[Any]]:
    """As a trainer is fed (giornata.pretrain.ray_train.worker.feeds), but for Ray Train, which hands streams out."""
    from giornata.pretrain.encoding.encode_shards import encoded_here
    from giornata.pretrain.feeding.feed import Feeder
    from giornata.pretrain.feeding.graph import fed
    from giornata.pretrain.ray_train.fit import Streams
    from giornata.protocol.pretraining import Mode

    colocated = config.encode.mode is Mode.COLOCATED

    def feeds(phase: int, ledger: Any) -> Iterator[Any]:
        dataset = fed(config, phase, phases[phase], list(ledger.remaining()))
        (part,) = Streams(config).configure({"only": dataset}, 1, None, None)
        batches = part["only"].iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=4)
        feeder = Feeder(encoded_here(config, batches, encoder) if colocated else batches)
        rows = config.train.global_batch_size
        while (feed := feeder.take(rows, rows)).rows:
            yield feed

    return feeds


def main(arguments: Sequence[str]) -> None:
    """The process."""
    work = json.loads(arguments[0])
    torch.set_num_threads(work["threads"])
    print(json.dumps(measured(work)))


if __name__ == "__main__":
    main(sys.argv[1:])
