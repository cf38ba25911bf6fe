"""Every architecture's frozen parts: as diffusers has them, row by row, of the right sizes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL, StableDiffusionXLPipeline
from transformers import CLIPTextConfig, CLIPTextModel

from giornata.diffusion.families import SD15, Family
from giornata.diffusion.shapes.shipped import WEIGHTS
from giornata.diffusion.tiny.tiny_model import build_tiny_model, tiny_pipeline
from giornata.domain.errors import InvalidInput
from giornata.pretrain.encoding.encoder import Encoder, open_encoder
from giornata.pretrain.encoding.frozen_encoder import SD2_TEXT, load_frozen, sd2_vae_config
from giornata.protocol.pretraining import Architecture, Model

CAPTIONS = ["a red circle on a white background", "", "ein grünes Spielzeug — 玩具"]


def tiny(**options: object) -> Encoder:
    return open_encoder(Model(architecture=Architecture.SDXL_TINY), seed=0, device="cpu", **options)  # type: ignore[arg-type]


def noise(count: int, side: int = 32) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def pipeline() -> StableDiffusionXLPipeline:
    return tiny_pipeline()


def test_pictures_are_what_diffusers_makes_of_them(pipeline: StableDiffusionXLPipeline) -> None:
    pixels_BHWC = noise(3)
    ours = tiny(text=False).encode_images(pixels_BHWC)
    assert ours.mean_BChw.shape == ours.logvar_BChw.shape == (3, 4, 4, 4)
    assert ours.mean_BChw.dtype == ours.logvar_BChw.dtype == np.float16
    pixels_BCHW = torch.from_numpy(pixels_BHWC).permute(0, 3, 1, 2).float() / 127.5 - 1
    with torch.no_grad():
        theirs = pipeline.vae.encode(pixels_BCHW).latent_dist
    np.testing.assert_allclose(ours.mean_BChw, theirs.mean.numpy(), rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(ours.logvar_BChw, theirs.logvar.numpy(), rtol=2e-3, atol=2e-3)


def test_captions_are_what_diffusers_makes_of_them(pipeline: StableDiffusionXLPipeline) -> None:
    ours = tiny(images=False).encode_text(CAPTIONS)
    with torch.no_grad():
        prompt_NLD, _, pooled_NP, _ = pipeline.encode_prompt(CAPTIONS, do_classifier_free_guidance=False)
    assert ours.prompt_BLD.shape == (3, 77, 64)
    assert ours.pooled_BP is not None
    np.testing.assert_allclose(ours.prompt_BLD, prompt_NLD.numpy(), rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(ours.pooled_BP, pooled_NP.numpy(), rtol=2e-3, atol=2e-3)


def test_a_row_does_not_depend_on_its_batch() -> None:
    """On a CPU to the bit."""
    encoder, pixels_BHWC = tiny(), noise(5)
    together, text = encoder.encode_images(pixels_BHWC), encoder.encode_text(CAPTIONS)
    for place in range(5):
        alone = encoder.encode_images(pixels_BHWC[place : place + 1])
        assert alone.mean_BChw[0].tobytes() == together.mean_BChw[place].tobytes()
        assert alone.logvar_BChw[0].tobytes() == together.logvar_BChw[place].tobytes()
    for place, caption in enumerate(CAPTIONS):
        assert torch.equal(encoder.encode_text([caption]).prompt_BLD[0], text.prompt_BLD[place])


def test_a_caption_that_is_too_long_is_cut() -> None:
    encoder = tiny(images=False)
    long = encoder.encode_text(["red " * 200])
    assert long.prompt_BLD.shape == (1, 77, 64)
    assert np.array_equal(long.prompt_BLD, encoder.encode_text(["red " * 300]).prompt_BLD)
    assert not np.array_equal(long.prompt_BLD, encoder.encode_text(["red red"]).prompt_BLD)


def test_encoder_without_image_or_text_half_refuses_to_encode_it() -> None:
    with pytest.raises(RuntimeError, match="without its image half"):
        tiny(images=False).encode_images(noise(1))
    with pytest.raises(RuntimeError, match="without its text half"):
        tiny(text=False).encode_text(["a"])


def test_digests_are_of_the_weights() -> None:
    shapes = open_encoder(Model(architecture=Architecture.SHAPES), seed=0, device="cpu")
    assert tiny().digest == tiny().digest
    assert len({tiny().digest, tiny(text=False).digest, tiny(dtype=torch.float16).digest, shapes.digest}) == 4


def test_the_drawing_model_keeps_its_scale() -> None:
    encoder = open_encoder(Model(architecture=Architecture.SHAPES), seed=0, device="cpu")
    factor = json.loads((WEIGHTS / "vae" / "config.json").read_text())["scaling_factor"]
    assert encoder.scaling == (0.0, factor)
    assert encoder.encode_text(["a red circle"]).prompt_BLD.shape == (1, 77, 128)


def test_a_folder_is_read_as_it_was_saved(tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path / "tiny")
    model = Model(architecture=Architecture.SDXL_TINY, pretrained_model_name_or_path=str(folder))
    read = open_encoder(model, seed=0, device="cpu")
    assert np.array_equal(read.encode_images(noise(2)).mean_BChw, tiny().encode_images(noise(2)).mean_BChw)
    assert np.array_equal(read.encode_text(CAPTIONS).prompt_BLD, tiny().encode_text(CAPTIONS).prompt_BLD)


def test_stable_diffusion_2_is_read_from_the_folders_of_its_repository(tmp_path: Path) -> None:
    """The real loading code on a repository of its layout, at a small size: only the parts that are needed are
    asked for, and the last hidden states are normed, as its pipeline has them."""
    build_tiny_model(tmp_path / "repository", SD15)
    asked: list[tuple[str, Family]] = []

    def fetch(name: str, family: Family) -> Path:
        asked.append((name, family))
        return tmp_path / "repository"

    model = Model(architecture=Architecture.SD2, pretrained_model_name_or_path="owner/name")
    frozen = load_frozen(model, seed=0, dtype=torch.float16, fetch=fetch)
    assert asked == [("owner/name", frozen.family)]
    assert frozen.family.hidden_layer is None
    assert frozen.vae is not None
    assert frozen.vae.dtype == frozen.text_encoders[0].dtype == torch.float16  # SD2's VAE does not overflow
    tiny_vae = load_frozen(Model(architecture=Architecture.SDXL_TINY), seed=0, dtype=torch.float16).vae
    assert tiny_vae is not None
    assert tiny_vae.dtype == torch.float32  # SDXL's does


def test_all_that_is_wrong_with_a_folder(tmp_path: Path) -> None:
    build_tiny_model(tmp_path / "m", SD15)
    (tmp_path / "m" / "vae" / "config.json").unlink()
    weights = tmp_path / "m" / "text_encoder" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    model = Model(architecture=Architecture.SD2, pretrained_model_name_or_path=str(tmp_path / "m"))
    with pytest.raises(InvalidInput) as refused:
        open_encoder(model, seed=0, device="cpu")
    assert len(refused.value.faults) == 2
    with pytest.raises(InvalidInput, match="is needed for sd2"):
        open_encoder(Model(architecture=Architecture.SD2), seed=0, device="cpu")


def test_random_parts_of_stable_diffusion_2_have_its_sizes() -> None:
    """Parameters of the published repository: 83,653,863 in the VAE, 340,387,840 in the text encoder."""
    with torch.device("meta"):
        vae, text = AutoencoderKL.from_config(sd2_vae_config()), CLIPTextModel(CLIPTextConfig(**SD2_TEXT))
    assert sum(each.numel() for each in vae.parameters()) == 83_653_863
    assert sum(each.numel() for each in text.parameters()) == 340_387_840


def test_random_weights_are_the_seeds() -> None:
    model = Model(architecture=Architecture.SD2, random_encoders=True)
    before = torch.random.get_rng_state()
    one, same, other = (load_frozen(model, seed=seed, dtype=torch.float16, text=False) for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    first, second, third = (each.vae.encoder.conv_in.weight for each in (one, same, other))  # type: ignore[union-attr]
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
