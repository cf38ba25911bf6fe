"""Pictures by rows of one batch against a script that builds the pipeline for each: `python -m benchmarks.generate`.

Five cells. `script` loads diffusers' pipeline, draws and saves, picture by picture; `joined` gives the same pictures
to the workload in one lease; `attention` is `joined` with another LoRA on the attentions for each picture, and
`convolutions` with LoRAs on all linear layers and convolutions. `fleet` is the whole path: an order at a real server,
drawn by the engine of a real node, and every picture downloaded. Workload and engine are warm. A repetition goes
through all cells before the next begins, so that ratios are of runs under like conditions: each in pictures a second
of the clock, and of processor time, which others on the machine disturb less. The processor time of `fleet` is that
of server, agent, engine and client. Prints a table, then one JSON line.

On a CPU at tiny size this shows what loading and batching are worth, and nothing of a GPU's arithmetic.
"""

import argparse
import hashlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.rig.figures import conclude, machine, spread, spread_words
from benchmarks.rig.installation import Installation, installation
from giornata.diffusion.adapter.lora import add_adapters
from giornata.diffusion.base.models import BaseModel, ModelLocation, load_model
from giornata.diffusion.draws.determinism import fix_determinism, let_libraries_repeat
from giornata.diffusion.families import SDXL
from giornata.diffusion.files.formats import write_lora
from giornata.diffusion.files.lora_facts import facts_of
from giornata.diffusion.tiny.tiny_model import build_tiny_model
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.generation.picture import PictureParams
from giornata.protocol.node.pipe import InputFile, Start
from giornata.protocol.specs import TrainSpec
from giornata.workloads.generate.workload import GenerateWorkload
from giornata.workloads.interface import AgentRequest

COLORS = ("red", "green", "blue", "yellow", "purple", "orange", "pink", "cyan")
RANK = 8
ATTENTION = ("to_k", "to_q", "to_v", "to_out.0")
CONVOLUTIONS = ("conv1", "conv2", "conv_shortcut", "conv_in", "conv_out", "conv")
ALL_LAYERS = (*ATTENTION, "ff.net.0.proj", "ff.net.2", "proj_in", "proj_out", "time_emb_proj", *CONVOLUTIONS)
RATIOS = (
    ("joined", "script", None),
    ("attention", "joined", 0.8),
    ("convolutions", "joined", 0.8),
    ("fleet", "script", 5.0),
)
"""One cell, the other that it is compared with, and the mark."""
PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a cell: its pictures, and what they took."""

    pictures: int
    clock_s: float
    cpu_s: float


Cells = dict[str, list[Run]]
"""The runs of each cell, repetition by repetition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The pictures: `rows` of them, `side_px` square, in `steps` steps."""

    folder: Path
    rows: int
    side_px: int
    steps: int

    def params(self, place: int, loras: Sequence[dict[str, str]] = ()) -> dict[str, Any]:
        """Return the parameters of one picture."""
        return PictureParams.model_validate(
            {
                "model": {"name": str(self.folder)},
                "prompt": f"a {COLORS[place % len(COLORS)]} circle",
                "width": self.side_px,
                "height": self.side_px,
                "num_inference_steps": self.steps,
                "seed": place,
                "loras": list(loras),
            }
        ).model_dump(mode="json")


class Listener:
    """The engine's side: counts the pictures that come."""

    def __init__(self) -> None:
        self.pictures = 0

    def wish(self) -> AgentRequest:
        return AgentRequest.GO_ON

    def picture(self, *_given: object, **_named: object) -> None:
        self.pictures += 1

    def picture_failed(self, _order_id: str, number: int, reason: Reason, message: str) -> None:
        raise RuntimeError(f"picture {number} failed: {reason} {message}")

    def dropped_pictures(self) -> frozenset[tuple[str, int]]:
        return frozenset()

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_given, **_named: None


def script(task: Task, directory: Path) -> None:
    """Draw each picture as a service that keeps nothing does it."""
    for place in range(task.rows):
        params = task.params(place)
        pipeline = SDXL.load_pipeline(task.folder, dtype=torch.float32)
        pipeline.set_progress_bar_config(disable=True)
        image = pipeline(
            params["prompt"],
            width=task.side_px,
            height=task.side_px,
            num_inference_steps=task.steps,
            guidance_scale=params["guidance_scale"],
            generator=torch.Generator("cpu").manual_seed(place),
        ).images[0]
        image.save(directory / f"{place}.png")


class PictureRig:
    """A warm workload, and leases for it."""

    def __init__(self, task: Task, directory: Path) -> None:
        self._task, self._directory, self._leases = task, directory, 0
        self._workload = GenerateWorkload(device="cpu", rows=task.rows)
        base = load_model(ModelLocation(name=str(task.folder), key="loras"), device="cpu", dtype=torch.float32)
        self._loras = {
            name: [
                _lora(base, directory / f"{name}-{seed}.safetensors", each, seed=seed) for seed in range(task.rows)
            ]
            for name, each in (("attention", ATTENTION), ("convolutions", ALL_LAYERS))
        }

    def draw(self, loras: str | None = None) -> None:
        """Draw all pictures in one lease, each with another LoRA of this name or with none."""
        self._leases += 1
        directory = self._directory / str(self._leases)
        directory.mkdir()
        files = [] if loras is None else self._loras[loras]
        uses = [[{"name": each.name, "sha256": each.sha256}] for each in files] or [[]] * self._task.rows
        pictures = [
            {"order_id": "order_1", "number": place, "params": self._task.params(place, used)}
            for place, used in enumerate(uses)
        ]
        listener = Listener()
        start = Start(
            attempt=str(self._leases),
            job="",
            kind="generate",
            spec={"pictures": pictures},
            directory=directory,
            inputs=tuple(files),
        )
        self._workload.run(start, listener)
        if listener.pictures != self._task.rows:
            raise RuntimeError(f"{listener.pictures} pictures came, of {self._task.rows}")


def _lora(base: BaseModel, path: Path, targets: Sequence[str], *, seed: int) -> InputFile:
    fields = {"model": "owner/name", "dataset": "ds_1", "rank": RANK, "resolution": 64}
    spec = TrainSpec.model_validate({**fields, "seed": seed, "target_modules": targets})
    draw = torch.Generator().manual_seed(seed)
    with add_adapters(base, spec) as adapters:
        named = adapters.tensors().items()
        tensors = {name: value + 0.01 * torch.randn(value.shape, generator=draw) for name, value in named}
    facts = facts_of(spec, step=1, layers_per_block=1, family=base.family)
    write_lora("kohya", path, tensors, facts, dtype="float32")
    return InputFile(role="lora", path=path, sha256=hashlib.sha256(path.read_bytes()).hexdigest(), name=path.name)


def order(up: Installation, task: Task, directory: Path, pictures: int) -> None:
    """Order the pictures at the server, and download each. Raises RuntimeError when one does not come."""
    placed = up.client.generate(
        [f"a {COLORS[number % len(COLORS)]} circle" for number in range(pictures)],
        model=str(task.folder),
        width=task.side_px,
        height=task.side_px,
        num_inference_steps=task.steps,
    )
    came = [up.client.download_picture(each, directory) for each in up.client.pictures(placed.id, follow=True)]
    if len(came) != pictures:
        raise RuntimeError(f"{len(came)} pictures came, of {pictures}")


def timed(run: Callable[[], None], pictures: int, others_cpu_s: Callable[[], float]) -> Run:
    """Run, and return the seconds of the clock and of the processor, those of other processes included."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time() + others_cpu_s()
    run()
    cpu_s = time.process_time() + others_cpu_s() - began_cpu_s
    return Run(pictures=pictures, clock_s=time.perf_counter() - began_s, cpu_s=cpu_s)


def measure(task: Task, directory: Path, up: Installation, *, repetitions: int, ordered: int) -> Cells:
    """Measure all cells, once in each repetition. An order has `ordered` pictures."""
    picture_rig, downloads = PictureRig(task, directory), directory / "downloads"
    downloads.mkdir()
    runs: dict[str, tuple[Callable[[], None], int]] = {
        "script": (lambda: script(task, directory), task.rows),
        "joined": (picture_rig.draw, task.rows),
        "attention": (lambda: picture_rig.draw("attention"), task.rows),
        "convolutions": (lambda: picture_rig.draw("convolutions"), task.rows),
        "fleet": (lambda: order(up, task, downloads, ordered), ordered),
    }
    for warm_up, _ in runs.values():
        warm_up()
    cells: Cells = {name: [] for name in runs}
    for _ in range(repetitions):
        for name, (run, pictures) in runs.items():
            cells[name].append(timed(run, pictures, up.cpu_s if name == "fleet" else lambda: 0.0))
    return cells


def ratios(cells: Cells, name: str, of: str, *, by: Callable[[Run], float]) -> dict[str, float]:
    """Compare the pictures a second of two cells, repetition by repetition."""
    pairs = zip(cells[name], cells[of], strict=True)
    return spread([(one.pictures / by(one)) / (other.pictures / by(other)) for one, other in pairs])


def by_clock(run: Run) -> float:
    return run.clock_s


def by_processor(run: Run) -> float:
    return run.cpu_s


def table(cells: Cells) -> str:
    """Show the rates, and the ratios: median, least and greatest."""
    lines = [f"{'':24}{'pictures/s':>12}{'of processor time':>20}"]
    for name, runs in cells.items():
        rates = [statistics.median(run.pictures / by(run) for run in runs) for by in (by_clock, by_processor)]
        lines.append(f"{name:24}{rates[0]:12.2f}{rates[1]:20.2f}")
    for name, of, mark in RATIOS:
        found = [spread_words(ratios(cells, name, of, by=by)) for by in (by_clock, by_processor)]
        lines.append(f"{f'{name} / {of}':24}{found[0]:>22}{found[1]:>22}" + (f"  mark {mark:g}" if mark else ""))
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--side", type=int, default=64, help="of the pictures, in pixels")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--ordered", type=int, default=64, help="pictures of an order")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument(
        "--threads", type=int, default=1, help="of the script and the workload; the node chooses its own"
    )
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes; the figures mean little")
    options, about = parser.parse_args(), machine()
    if options.quick:
        options.rows, options.steps, options.ordered, options.repetitions = 2, 2, 4, 1
    let_libraries_repeat(os.environ)
    fix_determinism(options.threads)
    with tempfile.TemporaryDirectory(prefix="giornata-load-") as scratch:
        directory = Path(scratch)
        folder = build_tiny_model(directory / "tiny")
        task = Task(folder=folder, rows=options.rows, side_px=options.side, steps=options.steps)
        with installation(directory / "data", nodes=1) as up:
            cells = measure(task, directory, up, repetitions=options.repetitions, ordered=options.ordered)
    print(table(cells))
    by_both = {"clock": by_clock, "processor": by_processor}
    conclude(
        {
            "benchmark": "generate",
            "machine": about,
            "quick": options.quick,
            "cells": {name: [asdict(run) for run in runs] for name, runs in cells.items()},
            "ratios": {
                f"{name} / {of}": {each: ratios(cells, name, of, by=by) for each, by in by_both.items()}
                for name, of, _ in RATIOS
            },
        }
    )


if __name__ == "__main__":
    main()
