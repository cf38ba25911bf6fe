"""Pictures by a script that builds diffusers' pipeline for each, and by the warm workload in leases."""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import StableDiffusionXLImg2ImgPipeline

from benchmarks.rig.picture_sizes import PictureSize
from giornata.diffusion.adapter.lora import add_adapters
from giornata.diffusion.base.models import BaseModel, ModelLocation, load_model
from giornata.diffusion.families import SDXL
from giornata.diffusion.files.formats import write_lora
from giornata.diffusion.files.lora_facts import facts_of
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.generation.picture import PictureParams
from giornata.protocol.node.pipe import InputFile, Start
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.optimization import Compile
from giornata.workloads.generate.compiling import DrawingCompiler
from giornata.workloads.generate.warm_models import PLAIN
from giornata.workloads.generate.workload import GenerateWorkload
from giornata.workloads.interface import AgentRequest

COLORS = ("red", "green", "blue", "yellow", "purple", "orange", "pink", "cyan")
RANK = 8
ATTENTION = ("to_k", "to_q", "to_v", "to_out.0")
CONVOLUTIONS = ("conv1", "conv2", "conv_shortcut", "conv_in", "conv_out", "conv")
COMPILED = {
    "off": PLAIN,
    "on": DrawingCompiler(choice=Compile.ON),
    "graphs": DrawingCompiler(choice=Compile.ON, backend="eager", version_of=lambda _device: "graphs alone"),
}
"""What the workload compiles."""
ALL_LAYERS = (*ATTENTION, "ff.net.0.proj", "ff.net.2", "proj_in", "proj_out", "time_emb_proj", *CONVOLUTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureTask:
    """The pictures: `rows` of them at a time, drawn on `device` with the models in these folders. `compile` is one of
    COMPILED."""

    size: PictureSize
    base: Path
    refiner: Path | None
    rows: int
    device: str
    compile: str = "off"

    @property
    def dtype(self) -> torch.dtype:
        """Half precision on a GPU, as the workload has it."""
        return torch.float16 if self.device == "cuda" else torch.float32

    @property
    def base_share(self) -> float:
        """Return the share of the steps after which the refiner goes on."""
        return self.size.steps / (self.size.steps + self.size.refiner_steps)

    def spec(self) -> dict[str, Any]:
        """Return what all pictures share, as an order has it."""
        size = self.size
        told: dict[str, Any] = {"width": size.width, "height": size.height}
        told["num_inference_steps"] = size.steps + size.refiner_steps
        if self.refiner is not None:
            told["refiner"] = {"model": {"name": str(self.refiner)}, "switch_at": self.base_share}
        return told

    def params(self, place: int, loras: Sequence[dict[str, str]] = ()) -> dict[str, Any]:
        """Return the parameters of one picture."""
        own = {"model": {"name": str(self.base)}, "prompt": prompt(place), "seed": place, "loras": list(loras)}
        return PictureParams.model_validate({**self.spec(), **own}).model_dump(mode="json")


def prompt(place: int) -> str:
    """Return the prompt of a picture."""
    return f"a {COLORS[place % len(COLORS)]} circle"


class PictureCounter:
    """The engine's side: counts the pictures that come."""

    def __init__(self) -> None:
        self.pictures = 0

    def agent_request(self) -> AgentRequest:
        return AgentRequest.GO_ON

    def picture(self, *_given: object, **_named: object) -> None:
        self.pictures += 1

    def picture_failed(self, _order_id: str, number: int, reason: Reason, message: str) -> None:
        raise RuntimeError(f"picture {number} failed: {reason} {message}")

    def dropped_pictures(self) -> frozenset[tuple[str, int]]:
        return frozenset()

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_given, **_named: None


def script(task: PictureTask, directory: Path, pictures: int) -> None:
    """Draw each picture as a service that keeps nothing does it."""
    for place in range(pictures):
        shared = {
            "prompt": prompt(place),
            "num_inference_steps": task.size.steps + task.size.refiner_steps,
            "guidance_scale": task.params(place)["guidance_scale"],
        }
        pipeline = SDXL.load_pipeline(task.base, dtype=task.dtype).to(task.device)
        pipeline.set_progress_bar_config(disable=True)
        size = {"width": task.size.width, "height": task.size.height}
        generator = torch.Generator("cpu").manual_seed(place)
        if task.refiner is None:
            image = pipeline(**shared, **size, generator=generator).images[0]
        else:
            end = {"denoising_end": task.base_share, "output_type": "latent"}
            latents = pipeline(**shared, **size, **end, generator=generator).images
            del pipeline
            refiner = StableDiffusionXLImg2ImgPipeline.from_pretrained(task.refiner, dtype=task.dtype).to(task.device)
            refiner.set_progress_bar_config(disable=True)
            image = refiner(**shared, image=latents, denoising_start=task.base_share).images[0]
        image.save(directory / f"{place}.png")


class PictureWork:
    """A warm workload, and leases for it. `loras` are the cells whose LoRAs are made."""

    def __init__(self, task: PictureTask, directory: Path, loras: Sequence[str]) -> None:
        self._task, self._directory, self._leases = task, directory, 0
        self._workload = self._cold()
        self._loras = _loras(task, directory, loras)

    def draw(self, pictures: int, loras: str | None = None) -> None:
        """Draw so many pictures in one lease, each with another LoRA of this name or with none."""
        self._draw(self._workload, pictures, loras)

    def draw_cold(self) -> None:
        """Load the models into a workload that has none, and draw one picture."""
        self._draw(self._cold(), 1, None)

    def _cold(self) -> GenerateWorkload:
        compiler = COMPILED[self._task.compile]
        return GenerateWorkload(device=self._task.device, rows=self._task.rows, compiler=compiler)

    def _draw(self, workload: GenerateWorkload, pictures: int, loras: str | None) -> None:
        self._leases += 1
        directory = self._directory / str(self._leases)
        directory.mkdir()
        files = [] if loras is None else self._loras[loras]
        uses = [[{"name": each.name, "sha256": each.sha256}] for each in files] or [[]] * pictures
        asked = [
            {"order_id": "order_1", "number": place, "params": self._task.params(place, used)}
            for place, used in enumerate(uses[:pictures])
        ]
        listener = PictureCounter()
        start = Start(
            attempt=str(self._leases),
            job="",
            kind="generate",
            spec={"pictures": asked},
            directory=directory,
            inputs=tuple(files),
        )
        workload.run(start, listener)
        if listener.pictures != pictures:
            raise RuntimeError(f"{listener.pictures} pictures came, of {pictures}")


def _loras(task: PictureTask, directory: Path, names: Sequence[str]) -> dict[str, list[InputFile]]:
    """Write a LoRA for each row, for each of these cells."""
    layers = {"attention": ATTENTION, "convolutions": ALL_LAYERS}
    wanted = {name: layers[name] for name in names if name in layers}
    if not wanted:
        return {}
    base = load_model(ModelLocation(name=str(task.base), key="loras"), device=task.device, dtype=task.dtype)
    return {
        name: [_lora(base, directory / f"{name}-{seed}.safetensors", each, seed=seed) for seed in range(task.rows)]
        for name, each in wanted.items()
    }


def _lora(base: BaseModel, path: Path, targets: Sequence[str], *, seed: int) -> InputFile:
    fields = {"model": "owner/name", "dataset": "ds_1", "rank": RANK, "resolution": 64}
    spec = TrainSpec.model_validate({**fields, "seed": seed, "target_modules": targets})
    draw = torch.Generator().manual_seed(seed)
    with add_adapters(base, spec) as adapters:
        named = adapters.tensors().items()
        tensors = {name: value.cpu() + 0.01 * torch.randn(value.shape, generator=draw) for name, value in named}
    layers = int(base.unet.config.layers_per_block)
    facts = facts_of(spec, step=1, layers_per_block=layers, family=base.family)
    write_lora("kohya", path, tensors, facts, dtype=str(base.dtype).removeprefix("torch."))
    return InputFile(role="lora", path=path, sha256=hashlib.sha256(path.read_bytes()).hexdigest(), name=path.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureRun:
    """One run of a cell: its pictures, and what they took."""

    pictures: int
    clock_s: float
    cpu_s: float


def timed(run: Callable[[], None], pictures: int, others_cpu_s: Callable[[], float]) -> PictureRun:
    """Run, and return the seconds of the clock and of the processor, those of other processes included."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time() + others_cpu_s()
    run()
    cpu_s = time.process_time() + others_cpu_s() - began_cpu_s
    return PictureRun(pictures=pictures, clock_s=time.perf_counter() - began_s, cpu_s=cpu_s)
