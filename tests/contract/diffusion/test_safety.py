"""The safety checker, on a tiny model with random weights."""

from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers.pipelines.stable_diffusion.safety_checker import StableDiffusionSafetyChecker
from transformers import CLIPConfig, CLIPImageProcessorPil

from giornata.diffusion.sampling.safety import SafetyChecker


def picture(level: int) -> np.ndarray:
    return np.full((40, 48, 3), level, dtype=np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checker that takes a picture for unsafe when it is nearer than that to the embedding of a white one."""
    torch.manual_seed(0)
    vision = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 8,
    }
    config = CLIPConfig(vision_config=vision, projection_dim=16)
    checker = StableDiffusionSafetyChecker(config).eval()
    processor = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    white = processor([picture(255)], return_tensors="pt").pixel_values
    with torch.no_grad():
        embedding = checker.visual_projection(checker.vision_model(white)[1])
        checker.concept_embeds.copy_(embedding.expand_as(checker.concept_embeds))
        checker.special_care_embeds.copy_(-embedding.expand_as(checker.special_care_embeds))
        checker.concept_embeds_weights.fill_(0.999)
    made = tmp_path_factory.mktemp("checker")
    checker.save_pretrained(made)
    processor.save_pretrained(made)
    return made


def test_checker_flags_the_picture_near_an_unsafe_concept_only(folder: Path) -> None:
    checker = SafetyChecker(folder, device="cpu")
    noise = np.random.default_rng(0).integers(0, 256, (40, 48, 3)).astype(np.uint8)
    assert checker.unsafe([picture(255), noise, picture(255)]) == [True, False, True]


def test_checked_pictures_keep_their_bytes(folder: Path) -> None:
    white = picture(255)
    SafetyChecker(folder, device="cpu").unsafe([white])
    assert white.min() == 255


def test_no_pictures_have_no_flags(folder: Path) -> None:
    assert SafetyChecker(folder, device="cpu").unsafe([]) == []


def test_checker_without_safetensors_is_refused(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "preprocessor_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04N.")
    with pytest.raises(OSError, match="safetensors"):
        SafetyChecker(tmp_path, device="cpu")
