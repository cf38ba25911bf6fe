"""Captions are encoded as the pipeline does it, to the letter, and never cut."""

import pytest
import torch
from diffusers import StableDiffusionXLPipeline

from giornata.diffusion import captions
from giornata.diffusion.captions import EmbeddingCache
from giornata.diffusion.models import BaseModel

CAPTIONS = ["a photo of a sks toy", "a \"quoted\"  toy, 'so'", "ein grünes Spielzeug — 玩具 🙂", "", " a toy "]


@pytest.fixture(scope="module")
def pipeline(tiny_base: BaseModel) -> StableDiffusionXLPipeline:
    return StableDiffusionXLPipeline(
        vae=tiny_base.vae,
        text_encoder=tiny_base.text_encoders[0],
        text_encoder_2=tiny_base.text_encoders[1],
        tokenizer=tiny_base.tokenizers[0],
        tokenizer_2=tiny_base.tokenizers[1],
        unet=tiny_base.unet,
        scheduler=tiny_base.noise_scheduler,
        add_watermarker=False,
    )


@pytest.mark.parametrize("caption", CAPTIONS)
def test_it_equals_the_pipeline(tiny_base: BaseModel, pipeline: StableDiffusionXLPipeline, caption: str) -> None:
    with torch.no_grad():
        prompt_BLD, _, pooled_BP, _ = pipeline.encode_prompt(caption, do_classifier_free_guidance=False)
        ours = captions.encode(tiny_base.tokenizers, tiny_base.text_encoders, [caption])
    assert torch.equal(ours.prompt_BLD, prompt_BLD)
    assert torch.equal(ours.pooled_BP, pooled_BP)


def test_captions_that_differ_in_quotes_or_script_differ(tiny_base: BaseModel) -> None:
    """D58 of the ancestor: quoting for a shell got into the prompt. What is typed is what is encoded."""
    cache = EmbeddingCache(tokenizers=tiny_base.tokenizers, text_encoders=tiny_base.text_encoders, encoder_key="e")
    cache.fill(["a toy", '"a toy"', "a töy"])
    plain, quoted, umlaut = (cache.batch([text]).prompt_BLD for text in ("a toy", '"a toy"', "a töy"))
    assert not torch.equal(plain, quoted)
    assert not torch.equal(plain, umlaut)


def test_a_cached_batch_is_its_members(tiny_base: BaseModel) -> None:
    cache = EmbeddingCache(tokenizers=tiny_base.tokenizers, text_encoders=tiny_base.text_encoders, encoder_key="e")
    ticks: list[int] = []
    cache.fill([*CAPTIONS, CAPTIONS[0]], lambda: ticks.append(1))
    assert len(cache) == len(ticks) == len(CAPTIONS)
    batch = cache.batch([CAPTIONS[2], CAPTIONS[0], CAPTIONS[2]])
    assert torch.equal(batch.prompt_BLD[0], batch.prompt_BLD[2])
    assert torch.equal(batch.prompt_BLD[1:2], cache.batch([CAPTIONS[0]]).prompt_BLD)
    assert batch.prompt_BLD.shape[:2] == (3, 77)
    assert not batch.prompt_BLD.requires_grad


def test_what_fits_exactly_is_allowed_and_one_token_more_is_named(tiny_base: BaseModel) -> None:
    tokenizer = tiny_base.tokenizers[0]
    fits = " ".join(["a"] * 75)  # and the start and end marks
    assert len(tokenizer(fits).input_ids) == 77
    assert captions.too_long([("fits.png", fits)], tiny_base.tokenizers) == []
    faults = captions.too_long(
        [("one.png", fits + " a"), ("ok.png", "a toy"), ("two.png", fits + " a a")], tiny_base.tokenizers
    )
    assert [fault.where for fault in faults] == ["one.png", "two.png"]
    assert faults[0].message == "has 76 tokens; at most 75 fit"
    assert faults[1].message == "has 77 tokens; at most 75 fit"
    assert "set max_token_length to 150" in faults[0].hint
    assert "truncate_captions" in faults[0].hint
    assert captions.too_long([("one.png", fits + " a")], tiny_base.tokenizers, max_token_length=150) == []
