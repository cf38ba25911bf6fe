"""A trainer's steps on synthetic latents, and encoders on synthetic pictures, in a process of their own:
`python pretraining_steps.py WORK`.

WORK is JSON: what (a way of STEPS, or "encoders"), size, resolution, rows, warm, steps, device, precision, model,
folder, threads. Prints seconds of each step or batch, of the clock and of this process's CPU.

Shapes: B rows; C = 4, side = pixels / 8; L = 77 tokens; D, P widths of the text; H, W in pixels.
"""

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import distributed

from giornata.diffusion.base.regional import compiled
from giornata.diffusion.base.unet_layers import matmul_flops_per_s
from giornata.diffusion.encode.captions import Embedding
from giornata.diffusion.optim.objective import NoisyBatch, Objective
from giornata.pretrain.encoding.encoder import open_encoder
from giornata.pretrain.feeding.examples import Example
from giornata.pretrain.feeding.feed import TOKENS
from giornata.pretrain.run_state.peers import Channel
from giornata.pretrain.training.models import (
    flops_per_picture,
    new_unet,
    noise_scheduler,
    peak_flops_per_s,
    widths,
)
from giornata.pretrain.training.optimizer import TrainingOptimizer, whole
from giornata.pretrain.training.parallel import shard_model
from giornata.pretrain.training.step import Passes
from giornata.protocol.pretraining import LATENT_SIDE_PX, Parallel, Precision, PretrainConfig

ENCODERS = "encoders"
BASELINE = {"fsdp2": False, "compile": False, "channels_last": False, "fused": False}
STEPS: Mapping[str, Mapping[str, bool]] = {
    "baseline": BASELINE,
    "+ FSDP2": {**BASELINE, "fsdp2": True},
    "+ compile": {**BASELINE, "fsdp2": True, "compile": True},
    "+ channels-last": {**BASELINE, "fsdp2": True, "compile": True, "channels_last": True},
    "+ fused AdamW": {"fsdp2": True, "compile": True, "channels_last": True, "fused": True},
    "all but FSDP2": {"fsdp2": False, "compile": True, "channels_last": True, "fused": True},
}
"""Each adds to the one before; the last is what is left on one GPU, which has nothing to shard: a replicated model
under autocast, whose weights can be channels-last too (FSDP2's cannot)."""


@contextmanager
def alone(device: torch.device) -> Iterator[None]:
    """A group of one, in which a single process can shard too: FSDP2's bfloat16 is faster than autocast's."""
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def steps_told(work: Mapping[str, Any]) -> dict[str, Any]:
    """Of one way. The average of the weights is left out, as in the first 96 % of sd2_base's schedule."""
    config, device = _config(work), torch.device(work["device"])
    way = STEPS[work["what"]]
    train = replace(
        config.train,
        parallel=Parallel.FSDP2 if way["fsdp2"] else Parallel.DDP,
        mixed_precision=Precision(work["precision"]),
        channels_last=way["channels_last"],
    )
    with ExitStack() as stack:
        if way["fsdp2"]:
            stack.enter_context(alone(device))
        channel = Channel()
        unet = new_unet(config.model.architecture, 0).to(device)
        if way["compile"]:
            stack.enter_context(compiled(unet))
        placed = shard_model(unet, train, channel, device)
        optimizer = TrainingOptimizer(placed.parameters(), train, fused=way["fused"])
        kind = config.model.prediction_type
        objective = Objective(scheduler=noise_scheduler(kind), prediction_type=kind, snr_gamma=config.train.snr_gamma)
        passes = Passes(placed, objective, channel)
        example = synthetic(work["rows"], work["resolution"], widths(unet))

        def step() -> None:
            passes.train([example], rows=work["rows"])
            norm = optimizer.norm()
            whole(norm)
            optimizer.update(norm, 1e-4)
            optimizer.forget_gradients()
            _wait(device)

        laps = _laps(step, work)
    return {
        **laps,
        "flops_per_picture": flops_per_picture(config.model.architecture, work["resolution"]),
        "peak_flops_per_s": peak_flops_per_s(device),
        "flops_per_cpu_s": _flops_per_cpu_s(device, train.mixed_precision),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "peak_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
    }


def _flops_per_cpu_s(device: torch.device, precision: Precision) -> float | None:
    """What a CPU does of matrix products in a second of its time, whatever else runs there; None for a GPU."""
    if device.type != "cpu":
        return None
    dtype = torch.bfloat16 if precision is Precision.BF16 else torch.float32
    return matmul_flops_per_s(device, dtype, side=1024, clock=time.process_time)


def synthetic(rows: int, resolution: int, text: tuple[int, int | None]) -> Example:
    """Numbers of the right sizes; `text` is (D, P)."""
    chance, side = torch.Generator().manual_seed(0), resolution // LATENT_SIDE_PX
    wide, pooled = text

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=chance)

    noisy = NoisyBatch(
        latents_BCHW=drawn(rows, 4, side, side),
        noise_BCHW=drawn(rows, 4, side, side),
        timesteps_B=torch.randint(0, 1000, (rows,), generator=chance),
        time_ids_B6=torch.full((rows, 6), float(resolution)),
    )
    pooled_BP = None if pooled is None else drawn(rows, pooled)
    return Example(noisy=noisy, embedding=Embedding(prompt_BLD=drawn(rows, TOKENS, wide), pooled_BP=pooled_BP))


def encoders_told(work: Mapping[str, Any]) -> dict[str, Any]:
    """VAE and text tower, each by itself, as an encoder runs them: pictures come and go through the host."""
    config, device = _config(work), torch.device(work["device"])
    encoder = open_encoder(config.model, seed=0, device=device)
    side, rows = work["resolution"], work["rows"]
    pixels_BHWC = np.random.default_rng(0).integers(0, 256, (rows, side, side, 3), dtype=np.uint8)
    captions = [f"a red circle on a white background, number {number}" for number in range(rows)]
    return {
        "vae": _laps(lambda: encoder.encode_images(pixels_BHWC), work),
        "text": _laps(lambda: encoder.encode_text(captions), work),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    }


def _config(work: Mapping[str, Any]) -> PretrainConfig:
    from benchmarks.rig.pretraining_sizes import config_of

    return config_of({**work, "mode": "offline", "samples": work["rows"]})


def _laps(step: Callable[[], object], work: Mapping[str, Any]) -> dict[str, list[float]]:
    """Seconds of each step after those that warm up, and of all of those together (`warm_cpu_s`, compilers too)."""
    begun_s = _used_s()
    for _ in range(work["warm"]):
        step()
    warm_s, wall_s, cpu_s = _used_s() - begun_s, list[float](), list[float]()
    for _ in range(work["steps"]):
        wall, cpu = time.monotonic(), time.process_time()
        step()
        wall_s.append(time.monotonic() - wall)
        cpu_s.append(time.process_time() - cpu)
    return {"wall_s": wall_s, "cpu_s": cpu_s, "warm_cpu_s": [warm_s]}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _used_s() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in both)


def main(arguments: Sequence[str]) -> None:
    """The process."""
    work = json.loads(arguments[0])
    torch.set_num_threads(work["threads"])
    print(json.dumps(encoders_told(work) if work["what"] == ENCODERS else steps_told(work)))


if __name__ == "__main__":
    main(sys.argv[1:])
