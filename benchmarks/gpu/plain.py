"""What a training script without further ado does: peft's LoRA under autocast, AdamW, one picture at a time.

Stands beside the example script of diffusers, and for it where that cannot run. Pictures and captions are encoded
before, which the script does only when asked to, so that the script is not quicker than this.
"""

import copy
import time
from collections.abc import Callable

import torch
from torch.nn import functional

from benchmarks.gpu.settings import GpuSettings
from giornata.diffusion.adapter.lora import add_adapters
from giornata.diffusion.base.models import BaseModel
from giornata.protocol.specs import TrainSpec


def plain_ms(base: BaseModel, spec: TrainSpec, settings: GpuSettings) -> float:
    """Milliseconds of a step, over all that count. Kernels need not repeat themselves, as in the script."""
    deterministic, cudnn = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False
    try:
        with add_adapters(base, spec) as adapters:
            parameters = list(adapters.parameters.values())
            step = _step(base, parameters, torch.optim.AdamW(parameters, lr=1e-4), settings.resolution // 8)
            return 1000 * seconds(step, base.device, warm=settings.warm, count=settings.steps)
    finally:
        torch.use_deterministic_algorithms(deterministic)
        torch.backends.cudnn.deterministic = cudnn


def _step(
    base: BaseModel, parameters: list[torch.nn.Parameter], optimizer: torch.optim.Optimizer, side: int
) -> Callable[[], None]:
    """Shapes: B = 1; C = 4; L = 77 tokens; D, P widths of the text and the pooled text."""
    device, dtype, config = base.device, base.dtype, base.unet.config

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=dtype)

    pooled = int(config.projection_class_embeddings_input_dim) - 6 * int(config.addition_time_embed_dim)
    latents_BCHW, noise_BCHW = drawn(1, 4, side, side), drawn(1, 4, side, side)
    prompt_BLD, pooled_BP = drawn(1, 77, int(config.cross_attention_dim)), drawn(1, pooled)
    scheduler = copy.deepcopy(base.noise_scheduler)  # it keeps its numbers on the device that asks first
    time_ids_B6, timesteps_B = torch.full((1, 6), 8.0 * side, device=device), torch.full((1,), 500, device=device)

    def step() -> None:
        conditions = {"text_embeds": pooled_BP, "time_ids": time_ids_B6}
        with torch.autocast(device.type, dtype=torch.bfloat16):
            noisy_BCHW = scheduler.add_noise(latents_BCHW, noise_BCHW, timesteps_B)
            answer_BCHW = base.unet(noisy_BCHW, timesteps_B, prompt_BLD, added_cond_kwargs=conditions).sample
        functional.mse_loss(answer_BCHW.float(), noise_BCHW.float()).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def seconds(work: Callable[[], object], device: torch.device, *, warm: int, count: int) -> float:
    """Of one call, on average over `count` calls after `warm` ones; the device is waited for at both ends."""
    for _ in range(warm):
        work()
    _wait(device)
    began_s = time.perf_counter()
    for _ in range(count):
        work()
    _wait(device)
    return (time.perf_counter() - began_s) / count


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
