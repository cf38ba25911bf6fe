"""The tiny SDXL: the same bytes every time, loadable by anybody, alive."""

import hashlib
from pathlib import Path

import pytest
import torch
from diffusers import StableDiffusionXLPipeline

from giornata.diffusion.tiny.tiny_model import build_tiny_model, main
from giornata.domain.errors import InvalidInput


def hashes(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def pipeline(tiny_folder: Path) -> StableDiffusionXLPipeline:
    loaded = StableDiffusionXLPipeline.from_pretrained(tiny_folder)
    loaded.set_progress_bar_config(disable=True)
    return loaded


def test_two_builds_have_the_same_bytes_whatever_the_random_state_and_threads(
    tiny_folder: Path, tmp_path: Path
) -> None:
    threads = torch.get_num_threads()
    torch.manual_seed(12345)
    torch.set_num_threads(2 if threads == 1 else 1)
    try:
        other = build_tiny_model(tmp_path / "other")
    finally:
        torch.set_num_threads(threads)
    assert hashes(other) == hashes(tiny_folder)
    assert len(hashes(other)) == 14


def test_building_leaves_the_random_state_alone(tmp_path: Path) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    build_tiny_model(tmp_path / "model")
    assert torch.equal(torch.rand(3), expected)


def test_a_complete_model_is_kept_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    model = build_tiny_model(tmp_path / "deep" / "model")
    (model / "note.txt").write_text("mine")
    assert build_tiny_model(model) == model
    assert (model / "note.txt").read_text() == "mine"
    assert list(model.parent.iterdir()) == [model]


def test_something_else_in_the_way_is_refused_and_kept(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "thesis.txt").write_text("irreplaceable")
    with pytest.raises(InvalidInput, match="is there already"):
        build_tiny_model(taken)
    assert hashes(taken).keys() == {"thesis.txt"}
    with pytest.raises(SystemExit) as exit_info:
        main([str(taken)])
    assert exit_info.value.code == 2


def test_plain_diffusers_draws_with_it(pipeline: StableDiffusionXLPipeline) -> None:
    images = [
        pipeline(prompt, generator=torch.Generator().manual_seed(0), num_inference_steps=4).images[0]
        for prompt in ("a red house", "a red house", "a blue dog")
    ]
    assert images[0].size == (64, 64)
    assert images[0].tobytes() == images[1].tobytes()
    assert images[0].tobytes() != images[2].tobytes()


def test_tiny_sdxl_has_sdxl_architecture_and_under_2m_parameters(pipeline: StableDiffusionXLPipeline) -> None:
    assert pipeline.unet.config.addition_embed_type == "text_time"
    assert pipeline.vae_scale_factor == 8
    assert type(pipeline.text_encoder_2).__name__ == "CLIPTextModelWithProjection"
    models = (pipeline.unet, pipeline.vae, pipeline.text_encoder, pipeline.text_encoder_2)
    assert sum(parameter.numel() for model in models for parameter in model.parameters()) < 2_000_000


@pytest.mark.parametrize(
    "text", ["a photo of sks dog", "", "héllo  «wörld» 你好 🎨🏽", "\u0000\u202e\uffff", "x" * 500]
)
def test_tiny_tokenizers_encode_any_text_without_unknown_tokens(
    pipeline: StableDiffusionXLPipeline, text: str
) -> None:
    for tokenizer in (pipeline.tokenizer, pipeline.tokenizer_2):
        padded = tokenizer(text, padding="max_length", max_length=77, truncation=True).input_ids
        assert len(padded) == 77
        assert padded[0] == tokenizer.bos_token_id
        whole = tokenizer(text).input_ids[1:-1]
        assert tokenizer.unk_token_id not in whole
        assert tokenizer.decode(whole).replace(" ", "") == "".join(text.lower().split())


def test_known_words_are_one_token_each(pipeline: StableDiffusionXLPipeline) -> None:
    assert len(pipeline.tokenizer("a photo of sks dog").input_ids) == 7


def test_the_unet_listens_to_the_words_and_to_the_pooled_embedding(pipeline: StableDiffusionXLPipeline) -> None:
    latents_BCHW = torch.randn((1, 4, 8, 8), generator=torch.Generator().manual_seed(0))
    words_BLD, _, pooled_BD, _ = pipeline.encode_prompt("a red cat", do_classifier_free_guidance=False)
    others_BLD, _, other_BD, _ = pipeline.encode_prompt("a red dog", do_classifier_free_guidance=False)

    def noise(tokens_BLD: torch.Tensor, embedding_BD: torch.Tensor) -> torch.Tensor:
        ids = {"text_embeds": embedding_BD, "time_ids": torch.tensor([[64.0, 64, 0, 0, 64, 64]])}
        with torch.no_grad():
            return pipeline.unet(latents_BCHW, 500, tokens_BLD, added_cond_kwargs=ids).sample

    said = noise(words_BLD, pooled_BD)
    assert (noise(others_BLD, pooled_BD) - said).abs().max() > 0.01
    assert (noise(words_BLD, other_BD) - said).abs().max() > 0.01


def test_the_unet_is_a_crude_denoiser(pipeline: StableDiffusionXLPipeline) -> None:
    """What it takes for noise is mostly the noisy input: a start that a LoRA can improve on in few steps."""
    latents_BCHW = torch.randn((2, 4, 8, 8), generator=torch.Generator().manual_seed(0))
    words_BLD, _, pooled_BD, _ = pipeline.encode_prompt(["a red cat"] * 2, do_classifier_free_guidance=False)
    ids = {"text_embeds": pooled_BD, "time_ids": torch.tensor([[64.0, 64, 0, 0, 64, 64]] * 2)}
    with torch.no_grad():
        noise_BCHW = pipeline.unet(latents_BCHW, 900, words_BLD, added_cond_kwargs=ids).sample
    assert torch.nn.functional.mse_loss(noise_BCHW, latents_BCHW) < 0.3


def test_the_vae_keeps_a_thumbnail(pipeline: StableDiffusionXLPipeline) -> None:
    thumbnail_BCHW = torch.rand((1, 3, 8, 8), generator=torch.Generator().manual_seed(3)) * 1.6 - 0.8
    picture_BCHW = torch.nn.functional.interpolate(thumbnail_BCHW, scale_factor=8)
    with torch.no_grad():
        latents = pipeline.vae.encode(picture_BCHW).latent_dist
        back_BCHW = pipeline.vae.decode(latents.mean).sample
    centers_BCHW = latents.mean[:, :3] / 12
    assert torch.allclose(centers_BCHW, thumbnail_BCHW, atol=0.05)
    smooth_BCHW = torch.nn.functional.interpolate(thumbnail_BCHW, scale_factor=8, mode="bilinear")
    inner = (..., slice(8, -8), slice(8, -8))
    assert (back_BCHW - smooth_BCHW)[inner].abs().mean() < 0.15
    assert 0.5 < (latents.mean * pipeline.vae.config.scaling_factor).std() < 2
    assert latents.std.max() < 0.05
