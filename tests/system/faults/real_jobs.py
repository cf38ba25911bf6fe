"""Jobs for the real engine: three pictures and the tiny model."""

from typing import Any

import pytest
from PIL import Image
from tests.system.faults.rig import Rig

# Loading torch takes its time.
PATIENCE_S = 200.0
NODE: dict[str, Any] = {"kinds": ["train"], "workloads": {}, "device": "cpu"}


def real_spec(rig: Rig, folders: pytest.TempPathFactory, **fields: Any) -> dict[str, Any]:
    """A small job on pictures that are uploaded now."""
    # Here: a process that runs other tests need not load torch.
    from giornata.diffusion.tiny.tiny_model import build_tiny_model

    folder = folders.mktemp("pictures")
    for number in range(3):
        picture = Image.effect_mandelbrot((64, 64), (-2, -1.5, 1, 1.5), 10 + number).convert("RGB")
        picture.save(folder / f"{number}.png")
    return {
        "pretrained_model_name_or_path": str(build_tiny_model(folders.mktemp("model") / "tiny")),
        "dataset": rig.client.dataset_from_folder(folder, instance_prompt="a photo of a sks shape").id,
        "instance_prompt": "a photo of a sks shape",
        "resolution": 64,
        "mixed_precision": "no",
        **fields,
    }
