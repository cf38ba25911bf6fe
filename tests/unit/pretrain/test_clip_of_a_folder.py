"""CLIP as it is loaded from a folder, against transformers' own forward pass."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import CLIPConfig, CLIPModel

from giornata.diffusion.families.vocabulary import clip_tokenizer
from giornata.domain.errors import InvalidInput
from giornata.pretrain.evaluation.scores import Clip

TEXTS = ("a red circle", "a blue star on a yellow background")


def tiny_clip(folder: Path) -> Path:
    """A CLIP of no size with the real tokenizer."""
    width = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**width, "vocab_size": 49408, "eos_token_id": 49407}
    vision = {**width, "image_size": 32, "patch_size": 16}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8))
    model.save_pretrained(folder)
    clip_tokenizer(pad_token="<|endoftext|>").save_pretrained(folder)
    return folder


def test_likeness_is_that_of_transformers(tmp_path: Path) -> None:
    folder = tiny_clip(tmp_path)
    clip, model = Clip(str(folder)), CLIPModel.from_pretrained(folder).eval()
    pictures = [Image.new("RGB", (40, 32), "red"), Image.new("RGB", (32, 32), "blue")]
    words = clip_tokenizer(pad_token="<|endoftext|>")(list(TEXTS), padding=True, return_tensors="pt")
    # The published mean and deviation of CLIP's pictures, of plain ones that look alike at every size
    mean, deviation = (
        torch.tensor([0.48145466, 0.4578275, 0.40821073]),
        torch.tensor([0.26862954, 0.26130258, 0.27577711]),
    )
    colors_N3 = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    pixels_NCHW = ((colors_N3 - mean) / deviation)[:, :, None, None].expand(-1, -1, 32, 32)
    with torch.no_grad():
        theirs = model(**words, pixel_values=pixels_NCHW)
    ours_NM = clip.pictures(pictures) @ clip.texts(TEXTS).T * model.logit_scale.exp()
    assert torch.allclose(ours_NM, theirs.logits_per_image, atol=1e-5)


def test_pictures_are_cut_in_their_middle(tmp_path: Path) -> None:
    clip = Clip(str(tiny_clip(tmp_path)))
    picture = Image.new("RGB", (80, 40), "white")
    picture.paste("black", (0, 0, 10, 40))
    picture.paste("black", (70, 0, 80, 40))
    whole, middle = clip.pictures([picture, Image.new("RGB", (40, 40), "white")])
    assert torch.allclose(whole, middle)
    picture.paste("black", (30, 0, 50, 40))
    assert not torch.allclose(clip.pictures([picture])[0], middle)


def test_clip_folder_without_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="--clip"):
        Clip(str(tmp_path))
