"""Pictures by rows of one batch against a script that builds the pipeline for each: `python -m benchmarks.generate`.

| cell | what it draws |
|---|---|
| script | each picture by diffusers' pipeline, loaded anew, and saves it |
| cold | one picture, by a workload that has to load its models; Python and torch are loaded before |
| alone | one picture, by the warm workload |
| joined | the script's pictures and more, in one lease of the warm workload |
| attention | `joined` with another LoRA on the attentions for each picture |
| convolutions | `joined` with LoRAs on all linear layers and convolutions |
| fleet | an order at a real server, drawn by the warm engine of a real node; every picture is downloaded |

A repetition goes through all cells before the next begins, so that ratios are of runs under like conditions: of the
clock, and of processor time, which others on the machine disturb less. The processor time of `fleet` is that of
server, agent, engine and client. The share of the floor is the time that the device needs for the FLOPs of a picture
at the rate of its data sheet, or of its matrix products on a CPU, in the time that the picture took. Prints tables,
then one JSON line.

With `--compile on` the workload has compiled kernels, which are made before the clock runs, but for `cold`; `graphs`
makes their graphs alone, which shows that they can be made and nothing of their speed. The fleet's node has `auto`.

`tiny` shows on a CPU what loading and batching are worth, and nothing of a GPU's arithmetic. `square` and `published`
have SDXL's true shapes with random weights, and want a GPU.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.rig.figures import conclude, machine, spread, spread_words
from benchmarks.rig.installation import BenchmarkInstallation, installation
from benchmarks.rig.picture_floor import flops_per_s, picture_flops
from benchmarks.rig.picture_sizes import SIZES, model_folders
from benchmarks.rig.picture_work import COMPILED, PictureRun, PictureTask, PictureWork, prompt, script, timed
from giornata.diffusion.draws.determinism import fix_determinism, let_libraries_repeat

CELLS = ("script", "cold", "alone", "joined", "attention", "convolutions", "fleet")
RATIOS = (
    ("joined", "script", None),
    ("joined", "alone", None),
    ("attention", "joined", {"cpu": 0.8, "cuda": 0.85}),
    ("convolutions", "joined", {"cpu": 0.8, "cuda": 0.85}),
    ("fleet", "script", {"cpu": 5.0}),
)
"""One cell, the other that it is compared with, and the marks by device."""
FLOOR_MARK = 0.5
"""The share of the floor on a GPU, with --compile on."""
Cells = dict[str, list[PictureRun]]
"""The runs of each cell, repetition by repetition."""


def order(up: BenchmarkInstallation, task: PictureTask, directory: Path, pictures: int) -> None:
    """Order the pictures at the server, and download each. Raises RuntimeError when one does not come."""
    placed = up.client.generate([prompt(number) for number in range(pictures)], model=str(task.base), **task.spec())
    came = [up.client.download_picture(each, directory) for each in up.client.pictures(placed.id, follow=True)]
    if len(came) != pictures:
        raise RuntimeError(f"{len(came)} pictures came, of {pictures}")


def measure(
    task: PictureTask, directory: Path, up: BenchmarkInstallation | None, options: argparse.Namespace
) -> Cells:
    """Measure the cells, each once in each repetition. An order has `ordered` pictures, a script `scripted`."""
    rig, downloads = PictureWork(task, directory, options.cells), directory / "downloads"
    downloads.mkdir()
    runs: dict[str, tuple[Callable[[], None], int]] = {
        "script": (lambda: script(task, directory, options.scripted), options.scripted),
        "cold": (rig.draw_cold, 1),
        "alone": (lambda: rig.draw(1), 1),
        "joined": (lambda: rig.draw(task.rows), task.rows),
        "attention": (lambda: rig.draw(task.rows, "attention"), task.rows),
        "convolutions": (lambda: rig.draw(task.rows, "convolutions"), task.rows),
    }
    if up is not None:
        runs["fleet"] = (lambda: order(up, task, downloads, options.ordered), options.ordered)
    chosen = {name: runs[name] for name in options.cells}
    for warm_up, _ in chosen.values():
        warm_up()
    cells: Cells = {name: [] for name in chosen}
    for _ in range(options.repetitions):
        for name, (run, pictures) in chosen.items():
            others = up.cpu_s if up is not None and name == "fleet" else lambda: 0.0
            cells[name].append(timed(run, pictures, others))
    return cells


def figures(cells: Cells, *, floor_s: float, usd_per_hour: float | None) -> dict[str, dict[str, Any]]:
    """Return what each cell found by the clock, over the repetitions."""
    found: dict[str, dict[str, Any]] = {}
    for name, runs in cells.items():
        seconds = [run.clock_s / run.pictures for run in runs]
        found[name] = {
            "s_per_picture": spread(seconds, 4),
            "pictures_per_s": spread([1 / each for each in seconds], 4),
            "share_of_floor": spread([floor_s / each for each in seconds], 6),
        }
        if usd_per_hour is not None:
            found[name]["pictures_per_usd"] = spread([3600 / (each * usd_per_hour) for each in seconds], 1)
    return found


def ratios(cells: Cells, name: str, of: str, *, by: Callable[[PictureRun], float]) -> dict[str, float]:
    """Compare the pictures a second of two cells, repetition by repetition."""
    pairs = zip(cells[name], cells[of], strict=True)
    return spread([(one.pictures / by(one)) / (other.pictures / by(other)) for one, other in pairs])


def by_clock(run: PictureRun) -> float:
    return run.clock_s


def by_processor(run: PictureRun) -> float:
    return run.cpu_s


def told_ratios(cells: Cells, device: str) -> dict[str, dict[str, Any]]:
    """Return the ratios of the cells that were measured, each with its mark on this device."""
    return {
        f"{name} / {of}": {
            "clock": ratios(cells, name, of, by=by_clock),
            "processor": ratios(cells, name, of, by=by_processor),
            "mark": (marks or {}).get(device),
        }
        for name, of, marks in RATIOS
        if name in cells and of in cells
    }


def table(cells: Cells, found: Mapping[str, Any], compared: Mapping[str, Any]) -> str:
    """Show the figures as medians, and the ratios as median, least and greatest."""
    lines = [
        f"{'':24}{'s/picture':>12}{'pictures/s':>12}{'of processor time':>20}{'of the floor':>14}{'pictures/$':>12}"
    ]
    for name, told in found.items():
        cpu = statistics.median(run.pictures / run.cpu_s for run in cells[name])
        usd = f"{told['pictures_per_usd']['median']:,.0f}" if "pictures_per_usd" in told else "no price"
        lines.append(
            f"{name:24}{told['s_per_picture']['median']:12.3f}{told['pictures_per_s']['median']:12.2f}{cpu:20.2f}"
            f"{told['share_of_floor']['median']:14.2%}{usd:>12}"
        )
    for name, told in compared.items():
        mark = "" if told["mark"] is None else f"  mark {told['mark']:g}"
        lines.append(f"{name:24}{spread_words(told['clock']):>22}{spread_words(told['processor']):>22}{mark}")
    return "\n".join(lines)


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line. On a GPU the defaults are SDXL's shapes, without a server."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--size", choices=tuple(SIZES), help="default: tiny on a CPU, square on a GPU")
    parser.add_argument("--cells", nargs="+", choices=CELLS, help="default: all, on a GPU without fleet")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--scripted", type=int, help="pictures of the script; default: 8, on a GPU 1")
    parser.add_argument("--ordered", type=int, default=64, help="pictures of an order")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--usd-per-hour", type=float, help="price of the machine, for pictures per dollar")
    parser.add_argument(
        "--threads", type=int, default=1, help="of the script and the workload; the node chooses its own"
    )
    parser.add_argument("--compile", choices=COMPILED, default="off", help="kernels of the workload")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes; the figures mean little")
    options = parser.parse_args(arguments)
    on_a_gpu = options.device == "cuda"
    options.size = options.size or ("square" if on_a_gpu else "tiny")
    options.cells = options.cells or [cell for cell in CELLS if not on_a_gpu or cell != "fleet"]
    options.scripted = options.scripted or (1 if on_a_gpu else 8)
    if options.quick:
        options.rows, options.scripted, options.ordered, options.repetitions = 2, 2, 4, 1
    return options


def main() -> None:
    """Command line."""
    options, about = options_of(), machine()
    let_libraries_repeat(os.environ)
    fix_determinism(options.threads)
    size = replace(SIZES[options.size], steps=2) if options.quick else SIZES[options.size]
    rate = flops_per_s(options.device, options.threads)
    with tempfile.TemporaryDirectory(prefix="giornata-load-") as scratch, ExitStack() as stack:
        directory = Path(scratch)
        base, refiner = model_folders(size, directory, options.device)
        task = PictureTask(
            size=size,
            base=base,
            refiner=refiner,
            rows=options.rows,
            device=options.device,
            compile=options.compile,
        )
        flops = picture_flops(size, base, refiner)
        has_fleet = "fleet" in options.cells
        up = stack.enter_context(installation(directory / "data", nodes=1)) if has_fleet else None
        cells = measure(task, directory, up, options)
    found = figures(cells, floor_s=flops / rate, usd_per_hour=options.usd_per_hour)
    compared = told_ratios(cells, options.device)
    print(f"{options.size} on {options.device}: {flops / 1e12:.4g} TFLOP a picture, {rate / 1e12:.4g} TFLOP/s")
    print(table(cells, found, compared))
    conclude(
        {
            "benchmark": "generate",
            "machine": about,
            "device": options.device,
            "size": {"name": options.size, **asdict(size)},
            "rows": options.rows,
            "compile": options.compile,
            "quick": options.quick,
            "floor": {"flops": flops, "flops_per_s": rate, "s_per_picture": flops / rate, "mark": FLOOR_MARK},
            "usd_per_hour": options.usd_per_hour,
            "cells": {name: [asdict(run) for run in runs] for name, runs in cells.items()},
            "figures": found,
            "ratios": compared,
        }
    )


if __name__ == "__main__":
    main()
