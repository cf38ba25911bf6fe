"""Training and drawing in one engine share the weights of a base, and neither sees what the other does to it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.fixtures.picture_leases import ORDER, lease, params
from tests.fixtures.train_rig import RecordingReporter, TrainRig, draw_pictures, spec_for

from giornata.diffusion.base.models import BaseModel, load_base, load_model
from giornata.diffusion.base.shared_weights import SharedWeights
from giornata.workloads.generate.workload import GenerateWorkload
from giornata.workloads.train.workload import TrainWorkload

SIZED = {"max_train_steps": 2, "train_text_encoder": True, "text_encoder_lr": 1e-2, "learning_rate": 1e-1}


class EngineOfBases:
    """Both workloads, as one engine has them. `bases` are those that were loaded, by their loader."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder, self.root, self.bases = folder, root, dict[str, BaseModel]()
        shared = SharedWeights()
        self.training = TrainWorkload(device="cpu", load=self._noting("train", load_base), shared_weights=shared)
        self.drawing = GenerateWorkload(
            device="cpu", load=self._noting("generate", load_model), shared_weights=shared
        )
        self.train_rig = TrainRig(
            root=root / "train", spec=spec_for(folder, **SIZED), inputs=draw_pictures(root / "in", 2)
        )

    def _noting(self, name: str, load: Callable[..., BaseModel]) -> Callable[..., BaseModel]:
        def loading(*given: Any, **options: Any) -> BaseModel:
            self.bases[name] = load(*given, **options)
            return self.bases[name]

        return loading

    def train(self) -> dict[int, bytes]:
        return self.train_rig.run(workload=self.training).checkpoint_bytes

    def draw(self, folder: Path | None = None, *loras: Path) -> bytes:
        named = [{"name": str(each)} for each in loras]
        told = RecordingReporter()
        self.drawing.run(lease(self.root, [params(folder or self.folder, loras=named)]), told)
        path, *_ = told.pictures[ORDER, 0]
        assert path is not None
        return path.read_bytes()

    def lora(self) -> Path:
        """The LoRA of the training job, as a file that a picture names."""
        path = self.root / "lora.safetensors"
        told = self.train_rig.run(workload=self.training)
        path.write_bytes(next(data for name, data in told.artifacts.items() if name.endswith(".safetensors")))
        return path

    def weights(self, name: str) -> dict[str, torch.Tensor]:
        return dict(self.bases[name].unet.named_parameters())


@pytest.fixture
def engine(tiny_folder: Path, tmp_path: Path) -> EngineOfBases:
    return EngineOfBases(tiny_folder, tmp_path / "one")


def test_turns_of_training_and_drawing_leave_the_bytes_of_each_alone(
    engine: EngineOfBases, tiny_folder: Path, tmp_path: Path
) -> None:
    alone = EngineOfBases(tiny_folder, tmp_path / "alone")
    trained, picture = alone.train(), EngineOfBases(tiny_folder, tmp_path / "other").draw()

    assert engine.train() == trained
    assert engine.draw() == picture
    adapted = engine.draw(None, engine.lora())
    assert adapted != picture
    assert engine.train() == trained
    assert engine.draw() == picture
    ours, theirs = engine.weights("train"), engine.weights("generate")
    assert {name: each.data_ptr() for name, each in ours.items()} == {
        name: each.data_ptr() for name, each in theirs.items()
    }


def test_another_base_for_pictures_is_not_written_over_the_one_that_trains(
    engine: EngineOfBases, tmp_path: Path
) -> None:
    other = shutil.copytree(engine.folder, tmp_path / "other")
    (weights,) = (other / "unet").glob("*.safetensors")
    save_file({name: 1.01 * each for name, each in load_file(weights).items()}, weights)
    trained = engine.train()
    engine.draw()
    of_another = engine.draw(other)
    assert of_another != engine.draw()
    assert engine.train() == trained
    assert EngineOfBases(engine.folder, tmp_path / "fresh").draw(other) == of_another
