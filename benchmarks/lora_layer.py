"""A job that trains alone by the lean layer against the same by peft's: `python -m benchmarks.lora_layer`.

For each option, CPU milliseconds of a step (forward, backward, optimizer) on random latents and embeddings, with LoRA
of rank 16 on the attention. Both layers are on one and the same base by turns, a repetition through all options
before the next begins; told is the ratio pair by pair. Prints a table and a JSON line.
"""

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.rig import medium_model
from benchmarks.rig.figures import conclude, machine, spread, spread_words
from giornata.diffusion.adapter.batched_lora import adapters_off
from giornata.diffusion.adapter.lora import Adapters, add_adapters
from giornata.diffusion.base.models import BaseModel, load_base
from giornata.diffusion.draws.determinism import fix_determinism
from giornata.diffusion.draws.randomness import normal
from giornata.diffusion.encode.captions import Embedding
from giornata.diffusion.optim.objective import answer
from giornata.diffusion.optim.optimizer import JobOptimizer
from giornata.diffusion.tiny.tiny_model import build_tiny_model
from giornata.protocol.node.pipe import Start
from giornata.protocol.specs import TrainSpec
from giornata.workloads.train.attach_adapter import LEAN, PEFT, attach_adapter
from giornata.workloads.train.steps import optimizer_of

BUILDERS: Mapping[str, Callable[[Path], Path]] = {"tiny": build_tiny_model, "medium": medium_model.build}
PRIOR = {"with_prior_preservation": True, "prior_prediction": True, "class_prompt": "a toy"}
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "AdamW": {},
    "8-bit AdamW": {"optimizer": "adamw_8bit"},
    "Prodigy": {"optimizer": "prodigy", "learning_rate": 1.0},
    "Adafactor": {"optimizer": "adafactor"},
    "ranks by layer": {"rank_pattern": {"to_q": 8, "to_out.0": 32}},
    "prior prediction": PRIOR,
    "bf16": {"mixed_precision": "bf16"},
}


@contextmanager
def swapped_in(base: BaseModel, spec: TrainSpec, layer: str, folder: Path) -> Iterator[tuple[Adapters, JobOptimizer]]:
    """The adapter on the base, and its optimizer."""
    if layer == PEFT:
        with add_adapters(base, spec) as adapters:
            yield adapters, optimizer_of(adapters, spec)
        return
    start = Start(attempt="at_1", job="jb_1", kind="train", spec={}, directory=folder)
    with attach_adapter(base, spec, start) as found:
        yield found


def step_of(base: BaseModel, spec: TrainSpec, adapters: Adapters, optimizer: JobOptimizer) -> Callable[[int], None]:
    """One picture at 64 px; with prior prediction it is looked at twice, and once more without the adapter."""
    rows = 2 if spec.prior_prediction else 1
    latents_BCHW = normal(0, "latents", shape=(rows, 4, 8, 8)).to(base.dtype)
    embedding = Embedding(
        prompt_BLD=normal(0, "prompt", shape=(rows, 77, base.unet.config.cross_attention_dim)).to(base.dtype),
        pooled_BP=normal(0, "pooled", shape=(rows, base.text_encoders[1].config.projection_dim)).to(base.dtype),
    )
    one = Embedding(prompt_BLD=embedding.prompt_BLD[:1], pooled_BP=embedding.pooled_BP[:1])
    timesteps_B, ids_B6 = torch.full((rows,), 500), torch.full((rows, 6), 64.0)

    def step(number: int) -> None:
        with adapters.learning():
            if spec.prior_prediction:
                with adapters_off((base.unet, *base.text_encoders)):
                    answer(base.unet, latents_BCHW[:1], timesteps_B[:1], ids_B6[:1], one)
            answer(base.unet, latents_BCHW, timesteps_B, ids_B6, embedding).square().mean().backward()
        optimizer.step(number)

    return step


def step_ms(base: BaseModel, spec: TrainSpec, layer: str, folder: Path, *, steps: int) -> float:
    """CPU milliseconds of this process for each of `steps` steps, after two that are not counted."""
    with swapped_in(base, spec, layer, folder) as (adapters, optimizer):
        step = step_of(base, spec, adapters, optimizer)
        step(0)
        step(1)
        gc.collect()
        began_s = time.process_time()
        for number in range(2, 2 + steps):
            step(number)
        return (time.process_time() - began_s) / steps * 1e3


def measure(
    model: str, options: Sequence[str], folder: Path, *, steps: int, repetitions: int
) -> list[dict[str, Any]]:
    """A row for each option."""
    path = BUILDERS[model](folder / model)
    specs = {
        name: TrainSpec.model_validate(
            {"mixed_precision": "no", "model": str(path), "dataset": "ds_1", "seed": 0, "rank": 16, **OPTIONS[name]}
        )
        for name in options
    }
    dtypes = {"no": torch.float32, "bf16": torch.bfloat16}
    bases = {
        mixed: load_base(spec, device="cpu", dtype=dtypes[mixed])
        for mixed, spec in {spec.mixed_precision: spec for spec in specs.values()}.items()
    }
    found: dict[str, dict[str, list[float]]] = {name: {LEAN: [], PEFT: []} for name in specs}
    for number in range(repetitions):
        for name, spec in specs.items():
            for layer in (LEAN, PEFT) if number % 2 else (PEFT, LEAN):
                base = bases[spec.mixed_precision]
                found[name][layer].append(step_ms(base, spec, layer, folder, steps=steps))
    return [_row(model, name, each[LEAN], each[PEFT]) for name, each in found.items()]


def _row(model: str, option: str, lean: Sequence[float], peft: Sequence[float]) -> dict[str, Any]:
    ratios = [one / other for one, other in zip(lean, peft, strict=True)]
    return {
        "model": model,
        "option": option,
        "lean_ms": spread(lean),
        "peft_ms": spread(peft),
        "lean_over_peft": spread(ratios),
        "of_medians": round(statistics.median(lean) / statistics.median(peft), 3),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """In Markdown, as docs/benchmark-log.md has it."""
    lines = ["| model | option | lean, CPU ms | peft, CPU ms | lean ÷ peft, pair by pair |", "|---|---|---|---|---|"]
    for row in rows:
        cells = [spread_words(row[key]) for key in ("lean_ms", "peft_ms", "lean_over_peft")]
        lines.append(f"| {row['model']} | {row['option']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["tiny", "medium"], choices=list(BUILDERS))
    parser.add_argument("--options", nargs="+", default=list(OPTIONS), choices=list(OPTIONS))
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(arguments)
    before = machine()
    fix_determinism(1)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="giornata-layer-") as name:
        for model in options.models:
            steps, repetitions = options.steps, options.repetitions
            rows += measure(model, options.options, Path(name), steps=steps, repetitions=repetitions)
    print(table(rows))
    conclude({"benchmark": "lora_layer", "machine": before, **vars(options), "found": rows})


if __name__ == "__main__":
    main()
