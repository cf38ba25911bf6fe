"""The ControlNet that comes with the package makes figures follow edges, through the whole workload."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.fixtures.picture_leases import ORDER, lease, params, sha256_of
from tests.fixtures.train_rig import RecordingReporter
from tools.tiny_shapes.controlnet import control_picture, iou
from tools.tiny_shapes.evaluate import GUIDANCE, STEPS

from giornata.diffusion.shapes.shipped import CONTROLNET, copy_drawing_model
from giornata.workloads.generate.workload import GenerateWorkload

DRAWN = 32
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def test_figures_lie_where_the_edges_of_pictures_that_were_never_trained_on_say(tmp_path: Path) -> None:
    model = copy_drawing_model(tmp_path / "model")
    asked = [control_picture(index, seed=20_000) for index in range(DRAWN)]
    files = [tmp_path / f"{number}.png" for number in range(DRAWN)]
    for file, (picture, _) in zip(files, asked, strict=True):
        picture.save(file)
    pictures = [
        params(
            model,
            prompt=caption,
            seed=number,
            num_inference_steps=STEPS,
            guidance_scale=GUIDANCE,
            controlnets=[{"name": str(CONTROLNET), "image": sha256_of(file), "annotator": "canny"}],
        )
        for number, (file, (_, caption)) in enumerate(zip(files, asked, strict=True))
    ]
    told = RecordingReporter()

    GenerateWorkload(device="cpu").run(lease(tmp_path, pictures, [("picture", file) for file in files]), told)

    found = []
    for number, (picture, _) in enumerate(asked):
        path, _, _ = told.pictures[ORDER, number]
        assert path is not None
        found.append(iou(picture, Image.open(path).convert("RGB")))
    assert np.mean(found) >= 0.75


def test_shipped_files_are_no_larger_than_three_megabytes() -> None:
    assert sum(file.stat().st_size for file in CONTROLNET.iterdir()) <= 3_000_000
