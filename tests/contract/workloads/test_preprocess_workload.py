"""The kind `preprocess`: annotations by models, without diffusers."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.fixtures.drawing import photo
from tests.fixtures.picture_leases import ORDER, lease, sha256_of
from tests.fixtures.train_rig import RecordingReporter

from giornata.domain.jobs.reasons import Reason
from giornata.protocol.generation.annotators import annotation_key
from giornata.protocol.generation.preprocess import AnnotationParams, annotator_base_key
from giornata.workloads.generate.control_pictures import ControlPictures
from giornata.workloads.generate.preprocess_workload import PreprocessWorkload
from giornata.workloads.interface import AgentRequest, Stopped

CPU = torch.device("cpu")
WITHOUT = ("diffusers", "peft", "accelerate", "bitsandbytes", "schedulefree", "tensorboardX", "ray", "prodigyopt")
"""Packages of other extras."""
IMPORTS = """
import sys
for name in {names}:
    sys.modules[name] = None  # as if it were not installed
from giornata.engine.kinds import make_workloads
import giornata.diffusion.annotators.by_model
print(list(make_workloads(["preprocess", "canary"], "cpu")))
"""


class Inverting:
    """Annotates by inverting the picture."""

    def annotate(self, pixels_HW3: np.ndarray, _params: Mapping[str, Any]) -> np.ndarray:
        return 255 - pixels_HW3


def load(_name: str, _device: torch.device) -> Inverting:
    return Inverting()


@pytest.fixture
def control(tmp_path: Path) -> Path:
    file = tmp_path / "photo.png"
    photo().save(file)
    return file


def depth(image: str) -> dict[str, Any]:
    return AnnotationParams(image=image, annotator="depth").model_dump(mode="json")


def workload() -> PreprocessWorkload:
    return PreprocessWorkload(device="cpu", control_pictures=ControlPictures(CPU, load=load))


def test_annotations_are_written_and_offered_and_the_model_stays_warm(control: Path, tmp_path: Path) -> None:
    annotates, told = workload(), RecordingReporter()
    key = annotation_key(sha256_of(control), "depth", {})
    pictures = [depth(sha256_of(control)), depth("0" * 64)]

    outcome = annotates.run(lease(tmp_path, pictures, [("picture", control)], wanted_annotations=[key]), told)

    path, media_type, _ = told.pictures[ORDER, 0]
    assert path is not None and media_type == "image/png"
    assert (np.asarray(Image.open(path)) == 255 - np.asarray(photo())).all()
    assert told.puts == [f"annotation:{key}"]
    assert told.failed_pictures[ORDER, 1][0] is Reason.BAD_DATA
    assert outcome.summary == {"pictures": 1, "failed": 1}
    assert annotates.held() == (annotator_base_key("depth"),)


def test_annotating_stops_between_two_pictures(control: Path, tmp_path: Path) -> None:
    told = RecordingReporter(agent_requests={1: AgentRequest.STOP})

    with pytest.raises(Stopped):
        workload().run(lease(tmp_path, [depth(sha256_of(control))] * 2, [("picture", control)]), told)

    assert list(told.pictures) == [(ORDER, 0)]


def test_node_that_annotates_needs_no_package_of_those_that_draw_and_train() -> None:
    command = [sys.executable, "-c", IMPORTS.format(names=WITHOUT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "['preprocess', 'canary']\n", done.stderr
