"""Writes the table of `docs/gpus.md`: what the memory estimate of the trainer says of SDXL on GPUs of several sizes.

`python -m tools.gpu_table` prints the table, and `--write` puts it between the marks of the page. Only shapes are
computed: no weights are loaded, and nothing was measured on a GPU.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from giornata.diffusion.base.eight_bits import hold
from giornata.diffusion.base.memory import GIB
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.base.recompute import Recompute
from giornata.diffusion.families import LAYOUTS, SDXL
from giornata.domain.errors import WorkloadFailed
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.base_model import BaseQuantization
from giornata.workloads.train.device.memory_budget import MemoryBudget, MemoryPlan, fitted, sizes_of

PAGE = Path(__file__).parents[1] / "docs" / "gpus.md"
GPUS_GB = (8, 12, 16, 24, 80)
COMMON = {"model": "a/b", "dataset": "ds_1", "seed": 1, "rank": 16, "mixed_precision": "bf16"}
JOBS: dict[str, dict[str, Any]] = {
    "LoRA, 1024 px": {"resolution": 1024},
    "LoRA, 1024 px, base in 8 bits": {"resolution": 1024, "base_quantization": "int8"},
    "LoRA, 768 px": {"resolution": 768},
    "LoRA, 1024 px, batch 4": {"resolution": 1024, "train_batch_size": 4},
    "LoRA, 1024 px, text encoders too": {"resolution": 1024, "train_text_encoder": True},
    "DoRA, 1024 px": {"resolution": 1024, "use_dora": True},
}
LAYOUT = LAYOUTS / "sdxl"


def full_sdxl() -> BaseModel:
    """SDXL in its published shapes, on the device `meta`: tensors without numbers."""
    with torch.device("meta"):
        unet: Any = UNet2DConditionModel.from_config(UNet2DConditionModel.load_config(LAYOUT / "unet"))
        vae: Any = AutoencoderKL.from_config(AutoencoderKL.load_config(LAYOUT / "vae"))
        texts: list[Any] = [
            CLIPTextModel(CLIPTextConfig.from_pretrained(str(LAYOUT / "text_encoder"))),
            CLIPTextModelWithProjection(CLIPTextConfig.from_pretrained(str(LAYOUT / "text_encoder_2"))),
        ]
    for module in (unet, *texts):
        module.to(torch.bfloat16)
    for module in (unet, vae, *texts):
        module.requires_grad_(False)
    absent: Any = None
    return BaseModel(
        family=SDXL,
        unet=unet,
        vae=vae,
        text_encoders=tuple(texts),
        tokenizers=(),
        noise_scheduler=absent,
        prediction_type="epsilon",
        key="a/b",
        device=torch.device("cpu"),
        dtype=torch.bfloat16,
    )


def cells(job: dict[str, Any]) -> Iterator[str]:
    """The expected peak on each of GPUS_GB, and the gradient checkpointing that the trainer chooses for it."""
    spec = TrainSpec.model_validate(COMMON | job)
    base = full_sdxl()
    if spec.base_quantization is not BaseQuantization.NONE:
        hold(base.unet, spec.base_quantization)
    sizes = sizes_of(base, spec)
    for gigabytes in GPUS_GB:
        budget = MemoryBudget(total_bytes=gigabytes * GIB)
        try:
            plan = fitted(spec, sizes, budget, MemoryPlan.asked_for(spec))
        except WorkloadFailed:
            yield "no"
            continue
        recompute = "" if plan.recompute is Recompute.OFF else f", {plan.recompute}"
        yield f"{sizes.peak_bytes(plan) / GIB:.1f} GiB{recompute}"


def table() -> str:
    """The table in Markdown."""
    lines = [f"| job | {' | '.join(f'{size} GB' for size in GPUS_GB)} |", "|---" * (len(GPUS_GB) + 1) + "|"]
    return "\n".join([*lines, *(f"| {name} | {' | '.join(cells(job))} |" for name, job in JOBS.items())])


if __name__ == "__main__":
    made = table()
    print(made)
    if "--write" in sys.argv:
        marks = re.compile(r"(<!-- gpus:begin -->\n).*?(<!-- gpus:end -->)", re.DOTALL)
        text = marks.sub(lambda found: f"{found[1]}{made}\n{found[2]}", PAGE.read_text(encoding="utf-8"))
        PAGE.write_text(text, encoding="utf-8")
