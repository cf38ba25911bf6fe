"""A picture's file tells the weights of models that have no sha256 of a file."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from diffusers import ControlNetModel
from PIL import Image
from safetensors.torch import load_file, save_file
from tests.fixtures.drawing import photo
from tests.fixtures.picture_leases import ORDER, CountedWorkload, lease, params, sha256_of
from tests.fixtures.train_rig import RecordingReporter

from giornata.diffusion.base.models import BaseModel, ModelLocation, load_model
from giornata.diffusion.base.weights_digest import base_sha256, tensors_digest
from giornata.protocol.generation.picture import ModelUse
from giornata.workloads.generate.warm_models import digests_of


def loaded(folder: Path) -> BaseModel:
    return load_model(ModelLocation(name=str(folder), key="k"), device="cpu", dtype=torch.float32)


def weights_in(drawn: RecordingReporter) -> Mapping[str, str]:
    path = drawn.pictures[ORDER, 0][0]
    assert path is not None
    with Image.open(path) as opened:
        made_with = json.loads(opened.info["giornata"])["made_with"]
    return {name.removeprefix("weights of "): told for name, told in made_with.items() if name.startswith("weights")}


@pytest.fixture
def other_folder(tiny_folder: Path, tmp_path: Path) -> Path:
    """The model with another UNet."""
    folder = tmp_path / "other"
    folder.mkdir()
    for part in tiny_folder.iterdir():
        (folder / part.name).symlink_to(part)
    (folder / "unet").unlink()
    (folder / "unet").mkdir()
    for file in (tiny_folder / "unet").iterdir():
        if file.suffix == ".safetensors":
            tensors = {name: tensor * 1.01 for name, tensor in load_file(file).items()}
            save_file(tensors, folder / "unet" / file.name, {"format": "pt"})
        else:
            (folder / "unet" / file.name).symlink_to(file)
    return folder


def test_models_of_folders_are_told_by_their_weights_also_in_swapped_modules(
    tiny_folder: Path, other_folder: Path, tmp_path: Path
) -> None:
    counted = CountedWorkload()
    told = [weights_in(counted.draw(lease(tmp_path, [params(each)]))) for each in (tiny_folder, other_folder)]
    assert told == [{"model": base_sha256(loaded(each))} for each in (tiny_folder, other_folder)]
    assert told[0] != told[1]


def test_refiner_and_controlnet_of_folders_are_told_and_files_are_not(
    tiny_folder: Path, other_folder: Path, tmp_path: Path
) -> None:
    control = tmp_path / "control.png"
    photo().save(control)
    net = ControlNetModel.from_unet(loaded(tiny_folder).unet)
    net.save_pretrained(tmp_path / "net", safe_serialization=True)
    file = tmp_path / "net.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in net.state_dict().items()}, file)
    use = {"image": sha256_of(control)}
    asked = params(
        tiny_folder,
        controlnets=[{"name": "n", "sha256": sha256_of(file), **use}, {"name": str(tmp_path / "net"), **use}],
        refiner={"model": {"name": str(other_folder)}, "switch_at": 0.5},
    )

    drawn = CountedWorkload().draw(lease(tmp_path, [asked], [("controlnet", file), ("picture", control)]))

    assert weights_in(drawn) == {
        "model": base_sha256(loaded(tiny_folder)),
        "refiner.model": base_sha256(loaded(other_folder)),
        "controlnets.1": tensors_digest(net),
    }


def test_a_file_is_told_by_its_sha256_alone_and_a_vae_beside_it_by_its_weights(tiny_folder: Path) -> None:
    base, file, folder = loaded(tiny_folder), ModelUse(name="f", sha256="0" * 64), ModelUse(name="owner/vae")
    assert digests_of(base, file) == digests_of(base, file, file) == {}
    assert digests_of(base, file, folder) == {"vae": tensors_digest(base.vae)}
