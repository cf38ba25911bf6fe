"""Jobs in one batch against one job at the same batch: `python -m benchmarks.joint`.

For K = 1, 2, 4, 8: K jobs of batch 1 jointly, each with its own adapter, clipping and optimizer, and as the control
one adapter at batch K. What the control gains over K = 1 is the gain of batching; what the joint run loses against
the control is the price of K adapters. A repetition goes through all cells before the next begins, so that ratios are
of runs under like conditions. Latents and embeddings are random and made once: only steps are timed. Prints a table,
then one JSON line. Another program may call `measure`.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

import torch
from diffusers import UNet2DConditionModel

from giornata.diffusion.adapter.slots import AdapterSlots
from giornata.diffusion.draws.determinism import fix_determinism, let_libraries_repeat
from giornata.diffusion.encode.captions import Embedding
from giornata.diffusion.optim.objective import answer
from giornata.diffusion.optim.slot_optimizer import SlotOptimizer
from giornata.protocol.specs import TrainSpec

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "block_out_channels": (32, 64),
        "layers_per_block": 1,
        "norm_num_groups": 8,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "transformer_layers_per_block": (1, 2),
        "attention_head_dim": (2, 4),
        "cross_attention_dim": 64,
        "projection_class_embeddings_input_dim": 80,
    },
    "medium": {
        "block_out_channels": (96, 192, 384),
        "layers_per_block": 2,
        "norm_num_groups": 32,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        "transformer_layers_per_block": (1, 2, 4),
        "attention_head_dim": (3, 6, 12),
        "cross_attention_dim": 256,
        "projection_class_embeddings_input_dim": 176,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JointCell:
    """What was measured: images per second of each repetition, `adapters` of them in a batch of `batch`."""

    size: str
    adapters: int
    batch: int
    images_per_s: tuple[float, ...]


def unet_of(size: str, *, device: torch.device, dtype: torch.dtype, side: int) -> UNet2DConditionModel:
    """A UNet of this size with random weights, frozen. `side` is that of the latents."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        unet = UNet2DConditionModel(
            sample_size=side,
            in_channels=4,
            out_channels=4,
            use_linear_projection=True,
            addition_embed_type="text_time",
            addition_time_embed_dim=8,
            **SIZES[size],
        )
    return unet.requires_grad_(False).eval().to(device=device, dtype=dtype)


def measure(
    unet: UNet2DConditionModel,
    size: str,
    *,
    counts: Sequence[int] = (1, 2, 4, 8),
    repetitions: int = 5,
    rounds: int = 10,
    side: int = 8,
    clock: Callable[[], float] = time.perf_counter,
) -> list[JointCell]:
    """A cell for each K jointly, and one for each batch K of a single adapter; interleaved."""
    shapes = [(count, count) for count in counts] + [(1, count) for count in counts if count > 1]
    found: dict[tuple[int, int], list[float]] = {shape: [] for shape in shapes}
    for _ in range(repetitions):
        for adapters, batch in shapes:
            seconds = _rounds_s(unet, adapters=adapters, batch=batch, rounds=rounds, side=side, clock=clock)
            found[adapters, batch].append(batch * rounds / seconds)
    return [
        JointCell(size=size, adapters=adapters, batch=batch, images_per_s=tuple(values))
        for (adapters, batch), values in found.items()
    ]


def _rounds_s(
    unet: UNet2DConditionModel,
    *,
    adapters: int,
    batch: int,
    rounds: int,
    side: int,
    clock: Callable[[], float],
) -> float:
    """Seconds of `rounds` steps after two that are not counted."""
    base: Any = SimpleNamespace(unet=unet, text_encoders=(), device=unet.device, dtype=unet.dtype)
    with ExitStack() as stack:
        specs = [
            TrainSpec(model="x", dataset="ds_1", seed=number, rank=16 - number)  # type: ignore[call-arg]
            for number in range(adapters)
        ]
        slots = stack.enter_context(AdapterSlots(base, specs[0], count=adapters, rank=16))
        optimizers = [SlotOptimizer(slots.assign(number, spec), spec) for number, spec in enumerate(specs)]
        slots.set_width(adapters)
        step = _step(unet, slots, optimizers, batch=batch, side=side)
        for number in range(2):
            step(number)
        _wait(unet.device)
        began_s = clock()
        for number in range(2, 2 + rounds):
            step(number)
        _wait(unet.device)
        return clock() - began_s


def _step(
    unet: UNet2DConditionModel, slots: AdapterSlots, optimizers: Sequence[SlotOptimizer], *, batch: int, side: int
) -> Callable[[int], None]:
    device, draw = unet.device, torch.Generator().manual_seed(0)
    noisy_BCHW = torch.randn((batch, 4, side, side), generator=draw).to(device=device, dtype=unet.dtype)
    pooled = int(unet.config.projection_class_embeddings_input_dim) - 6 * 8
    embedding = Embedding(
        prompt_BLD=torch.randn((batch, 77, int(unet.config.cross_attention_dim)), generator=draw).to(noisy_BCHW),
        pooled_BP=torch.randn((batch, pooled), generator=draw).to(noisy_BCHW),
    )
    timesteps_B = (torch.arange(batch) * 100 + 5).to(device)
    time_ids_B6 = torch.full((batch, 6), 64.0, device=device)

    def step(number: int) -> None:
        with slots.on():
            predicted_BCHW = answer(unet, noisy_BCHW, timesteps_B, time_ids_B6, embedding)
            predicted_BCHW.square().mean(dim=(1, 2, 3)).sum().backward()
        for optimizer in optimizers:
            optimizer.step(number)

    return step


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def table(cells: Sequence[JointCell]) -> str:
    """Each cell's rate, and its ratio to K = 1 repetition by repetition: median, least and largest."""
    lines = [f"{'size':8}{'adapters':>9}{'batch':>6}{'images/s':>10}   of K = 1"]
    for cell in cells:
        first = next(each for each in cells if each.size == cell.size and each.batch == 1)
        ratios = [rate / alone for rate, alone in zip(cell.images_per_s, first.images_per_s, strict=True)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        rate = statistics.median(cell.images_per_s)
        lines.append(f"{cell.size:8}{cell.adapters:9}{cell.batch:6}{rate:10.1f}   {spread}")
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", default="tiny,medium")
    parser.add_argument("--counts", default="1,2,4,8")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--side", type=int, default=8, help="of the latents")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    options = parser.parse_args()
    let_libraries_repeat(os.environ)
    fix_determinism(torch.get_num_threads())
    cells: list[JointCell] = []
    for size in options.sizes.split(","):
        dtype = getattr(torch, options.dtype)
        unet = unet_of(size, device=torch.device(options.device), dtype=dtype, side=options.side)
        counts = [int(count) for count in options.counts.split(",")]
        cells += measure(
            unet,
            size,
            counts=counts,
            repetitions=options.repetitions,
            rounds=options.rounds,
            side=options.side,
        )
    print(table(cells))
    print(json.dumps([asdict(cell) for cell in cells]))


if __name__ == "__main__":
    main()
