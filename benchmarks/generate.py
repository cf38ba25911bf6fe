"""Pictures by rows of one batch against a script that builds the pipeline for each: `python -m benchmarks.generate`.

Three cells, of the same pictures: `script` loads diffusers' pipeline, draws and saves, picture by picture; `joined`
gives all of them to the workload in one lease; `loras` is `joined` with another LoRA for each picture. The workload
is warm: its base and LoRAs were loaded before. A repetition goes through all cells before the next begins, so that
ratios are of runs under like conditions. Prints a table, then one JSON line. Another program may call `measure`.

On a CPU at tiny size this shows what loading and batching are worth, and nothing of a GPU's arithmetic.
"""

import argparse
import hashlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from giornata.diffusion.adapter.lora import add_adapters
from giornata.diffusion.base.models import BaseModel, ModelLocation, load_model
from giornata.diffusion.draws.determinism import fix_determinism, let_libraries_repeat
from giornata.diffusion.families import SDXL
from giornata.diffusion.files.formats import write_lora
from giornata.diffusion.files.lora_facts import facts_of
from giornata.diffusion.tiny.tiny_model import build_tiny_model
from giornata.domain.reasons import Reason
from giornata.protocol.generation.picture import PictureParams
from giornata.protocol.pipe import InputFile, Start
from giornata.protocol.specs import TrainSpec
from giornata.workloads.generate.workload import GenerateWorkload
from giornata.workloads.interface import AgentRequest

COLORS = ("red", "green", "blue", "yellow", "purple", "orange", "pink", "cyan")
RANK = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What was measured: pictures per second of each repetition."""

    name: str
    pictures_per_s: tuple[float, ...]


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


class Studio:
    """A warm workload, and leases for it."""

    def __init__(self, task: Task, directory: Path) -> None:
        self._task, self._directory, self._leases = task, directory, 0
        self._workload = GenerateWorkload(device="cpu", rows=task.rows)
        base = load_model(ModelLocation(name=str(task.folder), key="loras"), device="cpu", dtype=torch.float32)
        self._loras = [_lora(base, directory / f"{place}.safetensors", seed=place) for place in range(task.rows)]

    def draw(self, *, with_loras: bool) -> None:
        """Draw all pictures in one lease, each with another LoRA or with none."""
        self._leases += 1
        directory = self._directory / str(self._leases)
        directory.mkdir()
        uses = [[{"name": each.name, "sha256": each.sha256}] if with_loras else [] for each in self._loras]
        pictures = [
            {"order_id": "order_1", "number": place, "params": self._task.params(place, loras)}
            for place, loras in enumerate(uses)
        ]
        listener = Listener()
        start = Start(
            attempt=str(self._leases),
            job="",
            kind="generate",
            spec={"pictures": pictures},
            directory=directory,
            inputs=tuple(self._loras),
        )
        self._workload.run(start, listener)
        if listener.pictures != self._task.rows:
            raise RuntimeError(f"{listener.pictures} pictures came, of {self._task.rows}")


def _lora(base: BaseModel, path: Path, *, seed: int) -> InputFile:
    spec = TrainSpec(model="owner/name", dataset="ds_1", seed=seed, rank=RANK, resolution=64)
    draw = torch.Generator().manual_seed(seed)
    with add_adapters(base, spec) as adapters:
        named = adapters.tensors().items()
        tensors = {name: value + 0.01 * torch.randn(value.shape, generator=draw) for name, value in named}
    facts = facts_of(spec, step=1, layers_per_block=1, family=base.family)
    write_lora("kohya", path, tensors, facts, dtype="float32")
    return InputFile(role="lora", path=path, sha256=hashlib.sha256(path.read_bytes()).hexdigest(), name=path.name)


def measure(task: Task, directory: Path, *, repetitions: int, clock: Callable[[], float]) -> list[Cell]:
    """Measure all cells, once in each repetition."""
    studio = Studio(task, directory)
    runs: dict[str, Callable[[], None]] = {
        "script": lambda: script(task, directory),
        "joined": lambda: studio.draw(with_loras=False),
        "loras": lambda: studio.draw(with_loras=True),
    }
    for warm_up in runs.values():
        warm_up()
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repetitions):
        for name, run in runs.items():
            began_s = clock()
            run()
            rates[name].append(task.rows / (clock() - began_s))
    return [Cell(name=name, pictures_per_s=tuple(found)) for name, found in rates.items()]


def ratios(cells: Sequence[Cell], name: str, of: str) -> list[float]:
    """Return one cell's rate as a ratio of another's, repetition by repetition."""
    found = {cell.name: cell.pictures_per_s for cell in cells}
    return [one / other for one, other in zip(found[name], found[of], strict=True)]


def table(cells: Sequence[Cell]) -> str:
    """Return the rates, and both ratios: median, least and largest."""
    lines = [f"{cell.name:8}{statistics.median(cell.pictures_per_s):9.2f} pictures/s" for cell in cells]
    for name, of in (("joined", "script"), ("loras", "joined")):
        found = ratios(cells, name, of)
        spread = f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"
        lines.append(f"{name} / {of}: {spread}")
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--side", type=int, default=64, help="of the pictures, in pixels")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--processor-time", action="store_true", help="steadier where others use the machine too")
    options = parser.parse_args()
    let_libraries_repeat(os.environ)
    fix_determinism(torch.get_num_threads())
    clock = time.process_time if options.processor_time else time.perf_counter
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        folder = build_tiny_model(directory / "tiny")
        task = Task(folder=folder, rows=options.rows, side_px=options.side, steps=options.steps)
        cells = measure(task, directory, repetitions=options.repetitions, clock=clock)
    print(table(cells))
    print(json.dumps([asdict(cell) for cell in cells]))


if __name__ == "__main__":
    main()
