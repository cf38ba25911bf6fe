"""A base in 8 bits against the same base as it was loaded: `python -m benchmarks.eight_bits`.

For the drawing model, the tiny and the medium model, with LoRA of rank 16 on the attention: what the UNet's weights
take; what autograd holds between forward and backward pass, in all and without the base's weights; how far the UNet's
answer and the LoRA's gradient are from those of the plain base in float32, |one - plain| / |plain|, on random latents
and embeddings; and, interleaved, the time of both passes against the plain base's. Prints a table and a JSON line.
"""

import argparse
import copy
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from benchmarks.rig import medium_model
from giornata.diffusion.adapter.lora import Adapters, add_adapters
from giornata.diffusion.base.eight_bits import held_base
from giornata.diffusion.base.models import BaseModel, load_base
from giornata.diffusion.draws.determinism import fix_determinism
from giornata.diffusion.draws.randomness import normal
from giornata.diffusion.shapes.shipped import copy_drawing_model
from giornata.diffusion.tiny.tiny_model import build_tiny_model
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.base_model import BaseQuantization

BUILDERS: dict[str, Callable[[Path], Path]] = {
    "drawing": copy_drawing_model,
    "tiny": build_tiny_model,
    "medium": medium_model.build,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatRow:
    """What was measured of one model in one format. `step`: median of both passes, over that of the plain base."""

    model: str
    held_as: str
    weights_bytes: int
    held_for_backward_bytes: int
    of_that_activations_bytes: int
    answer_off: float
    gradient_off: float
    step: float


def spec_of(model: Path) -> TrainSpec:
    return TrainSpec(pretrained_model_name_or_path=str(model), dataset="ds_1", seed=0, resolution=64)


def answer(base: BaseModel, side: int) -> torch.Tensor:
    """noise_BCHW of one picture."""

    def drawn(name: str, *shape: int) -> torch.Tensor:
        return normal(0, name, shape=shape).to(base.dtype)

    pooled_BP = drawn("pooled", 1, base.text_encoders[1].config.projection_dim)
    kwargs = {"text_embeds": pooled_BP, "time_ids": torch.full((1, 6), 8.0 * side)}
    prompt_BLD = drawn("prompt", 1, 77, base.unet.config.cross_attention_dim)
    noisy_BCHW = drawn("noisy", 1, 4, side, side)
    found: torch.Tensor = base.unet(noisy_BCHW, torch.tensor([500]), prompt_BLD, added_cond_kwargs=kwargs).sample
    return found


def stirred(adapters: Adapters) -> None:
    """B is zero at first, and then A has no gradient."""
    with torch.no_grad():
        for name, parameter in adapters.parameters.items():
            parameter.add_(normal(0, "stir", name, shape=tuple(parameter.shape)) * 0.02)


def passes(base: BaseModel, spec: TrainSpec, side: int) -> tuple[torch.Tensor, torch.Tensor, tuple[int, int], float]:
    """(answer, gradient of all A and B as one vector, (bytes held, without the base's), seconds)."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*base.unet.parameters(), *base.unet.buffers())}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with add_adapters(base, spec) as adapters:
        stirred(adapters)
        began_s = time.perf_counter()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output = answer(base, side)
        held = sum(storage.nbytes() for storage in kept.values())
        activations = sum(storage.nbytes() for place, storage in kept.items() if place not in own)
        output.square().mean().backward()
        took_s = time.perf_counter() - began_s
        grads = [parameter.grad.flatten() for parameter in adapters.parameters.values() if parameter.grad is not None]
    return output.detach(), torch.cat(grads), (held, activations), took_s


def measure(model: str, folder: Path, *, side: int, repetitions: int) -> list[FormatRow]:
    spec = spec_of(folder)
    plain = load_base(spec, device="cpu", dtype=torch.float32)
    bases = {
        kind: held_base(replace(plain, unet=copy.deepcopy(plain.unet)), kind, plain.device)
        for kind in BaseQuantization
    }
    seconds: dict[BaseQuantization, list[float]] = {kind: [] for kind in bases}
    for _ in range(repetitions):
        for kind, base in bases.items():
            seconds[kind].append(passes(base, spec, side)[3])
    wanted, gradient, _, _ = passes(plain, spec, side)
    rows = []
    for kind, base in bases.items():
        found, grad, (held, activations), _ = passes(base, spec, side)
        rows.append(
            FormatRow(
                model=model,
                held_as=kind,
                weights_bytes=sum(t.nbytes for t in (*base.unet.parameters(), *base.unet.buffers())),
                held_for_backward_bytes=held,
                of_that_activations_bytes=activations,
                answer_off=float((found - wanted).norm() / wanted.norm()),
                gradient_off=float((grad - gradient).norm() / gradient.norm()),
                step=statistics.median(seconds[kind]) / statistics.median(seconds[BaseQuantization.NONE]),
            )
        )
    return rows


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=tuple(BUILDERS), default=tuple(BUILDERS))
    parser.add_argument("--side", type=int, default=8, help="of the latents")
    parser.add_argument("--repetitions", type=int, default=5)
    given = parser.parse_args()
    fix_determinism(threads=1)
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        for model in given.models:
            folder = BUILDERS[model](Path(scratch) / model)
            for row in measure(model, folder, side=given.side, repetitions=given.repetitions):
                found.append(row)
                mib = [f"{size / 2**20:8.2f}" for size in (row.weights_bytes, row.held_for_backward_bytes)]
                off = f"{row.answer_off:.2e} {row.gradient_off:.2e}"
                print(
                    f"{row.model:8s} {row.held_as:5s} MiB {' '.join(mib)}   off {off}   step {row.step:.2f}",
                    flush=True,
                )
    print(json.dumps([asdict(row) for row in found]))


if __name__ == "__main__":
    main()
