"""Captions of more than 75 tokens are read as kohya's sd-scripts read them.

The reference is written anew from what sd-scripts do at commit 231df197ddf4372b3d90751146927f33e1965d1a:
`_get_input_ids` in `library/strategy_base.py` makes the ids of the chunks, and `_get_hidden_states_sdxl` and
`_pool_workaround` in `library/strategy_sdxl.py` join what the text encoders make of them.
"""

from typing import Any

import numpy as np
import pytest
import torch
from diffusers import EulerDiscreteScheduler, StableDiffusionPipeline, StableDiffusionXLPipeline

from giornata.diffusion.adapter.lora import add_adapters
from giornata.diffusion.adapter.tokens import add_tokens, taught
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.base.recompute import Recompute
from giornata.diffusion.base.unet_layers import layers_of
from giornata.diffusion.encode.captions import Embedding, EmbeddingCache, encode
from giornata.diffusion.sampling.samples import PURPOSE, SamplerConfig, draw_samples, initial_noise, sample_image
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.train_fields import spoken
from giornata.workloads.train.device.memory_budget import sizes_of
from giornata.workloads.train.inputs.class_images import draw

TOKENS = [0, 3, 74, 75, 76, 149, 150, 151, 224, 225, 226, 400]


def caption_of(tokens: int) -> str:
    """A caption with so many tokens of the tiny model: letters, each of its own."""
    return " ".join("abcdefghijk"[number * 7 % 11] for number in range(tokens))


def kohyas_ids(tokenizer: Any, caption: str, room: int) -> torch.Tensor:
    """ids of N x 77: the whole caption is padded, cut into pieces of 75, and each piece gets marks."""
    whole = tokenizer(caption, padding="max_length", truncation=True, max_length=room + 2).input_ids
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    rows = []
    for first in range(1, room + 1, 75):
        row = [whole[0], *whole[first : first + 75], whole[-1]]
        if pad != end:
            row[-1] = row[-1] if row[-2] in {end, pad} else end
            row[1] = end if row[1] == pad else row[1]
        rows.append(row)
    return torch.tensor(rows)


def kohyas_states(encoder: Any, ids_NL: torch.Tensor, layer: int | None) -> tuple[torch.Tensor, Any]:
    """States of one caption, 1 x (75 N + 2) x D, and all that the text encoder says."""
    said = encoder(ids_NL, output_hidden_states=True)
    states_NLD = said.last_hidden_state if layer is None else said.hidden_states[layer]
    inner = [states_NLD[number, 1:76] for number in range(len(ids_NL))]
    return torch.cat([states_NLD[0, :1], *inner, states_NLD[-1, 76:]])[None], said


def kohyas(base: BaseModel, caption: str, room: int) -> Embedding:
    """As sd-scripts: hidden states next to the last, and the projected state of the first chunk's end mark."""
    states, pooled_BP = [], None
    for tokenizer, encoder in zip(base.tokenizers, base.text_encoders, strict=True):
        ids_NL = kohyas_ids(tokenizer, caption, room)
        one, said = kohyas_states(encoder, ids_NL, base.family.hidden_layer)
        states.append(one)
        if base.family.pooled and encoder is base.text_encoders[-1]:
            place = ids_NL[0].tolist().index(tokenizer.eos_token_id)
            pooled_BP = encoder.text_projection(said.last_hidden_state[0, place])[None]
    return Embedding(prompt_BLD=torch.cat(states, dim=-1), pooled_BP=pooled_BP)


def ours(base: BaseModel, captions: list[str], room: int, **options: Any) -> Embedding:
    return encode(base.tokenizers, base.text_encoders, captions, family=base.family, max_token_length=room, **options)


@pytest.fixture(params=["SDXL", "Stable Diffusion 1.5"])
def base(request: pytest.FixtureRequest) -> BaseModel:
    return request.getfixturevalue("tiny_base" if request.param == "SDXL" else "tiny_sd15_base")


@pytest.mark.parametrize("room", [150, 225])
@pytest.mark.parametrize("tokens", TOKENS)
@torch.no_grad()
def test_the_embeddings_are_those_of_sd_scripts(base: BaseModel, tokens: int, room: int) -> None:
    caption = caption_of(tokens)
    assert len(base.tokenizers[0](caption, add_special_tokens=False).input_ids) == tokens
    found, wanted = ours(base, [caption], room, truncation=True), kohyas(base, caption, room)
    assert found.prompt_BLD.shape[1] == room + 2
    torch.testing.assert_close(found.prompt_BLD, wanted.prompt_BLD, rtol=0, atol=1e-5)
    assert (found.pooled_BP is None) == (wanted.pooled_BP is None)
    if found.pooled_BP is not None:
        torch.testing.assert_close(found.pooled_BP, wanted.pooled_BP, rtol=0, atol=1e-5)


@torch.no_grad()
def test_captions_of_a_batch_do_not_mix(base: BaseModel) -> None:
    captions = [caption_of(tokens) for tokens in (3, 160, 75, 225)]
    together = ours(base, captions, 225)
    for number, caption in enumerate(captions):
        alone = ours(base, [caption], 225)
        torch.testing.assert_close(together.prompt_BLD[number], alone.prompt_BLD[0], rtol=0, atol=1e-5)
        if together.pooled_BP is not None:
            torch.testing.assert_close(together.pooled_BP[number], alone.pooled_BP[0], rtol=0, atol=1e-5)


@torch.no_grad()
def test_caption_within_75_tokens_is_encoded_unchanged_by_length_and_truncation_options(base: BaseModel) -> None:
    captions = [caption_of(tokens) for tokens in (0, 3, 75)]
    plain = encode(base.tokenizers, base.text_encoders, captions, family=base.family)
    for options in ({"max_token_length": 75}, {"max_token_length": 75, "truncation": True}):
        same = encode(base.tokenizers, base.text_encoders, captions, family=base.family, **options)
        assert torch.equal(same.prompt_BLD, plain.prompt_BLD)
        assert plain.pooled_BP is None or torch.equal(same.pooled_BP, plain.pooled_BP)


@torch.no_grad()
def test_caption_beyond_max_token_length_is_refused_unless_truncation_is_on(base: BaseModel) -> None:
    with pytest.raises(ValueError, match="151 tokens, and 150 fit"):
        ours(base, [caption_of(151)], 150)
    cut, whole = ours(base, [caption_of(151)], 150, truncation=True), ours(base, [caption_of(150)], 150)
    assert torch.equal(cut.prompt_BLD, whole.prompt_BLD)


@torch.no_grad()
def test_a_cache_keeps_them_as_they_are_encoded(base: BaseModel) -> None:
    cache = EmbeddingCache(
        tokenizers=base.tokenizers,
        text_encoders=base.text_encoders,
        encoder_key="e",
        family=base.family,
        max_token_length=150,
        truncation=True,
    )
    captions = [caption_of(3), caption_of(151)]
    cache.fill([*captions, ""])
    for caption in (*captions, ""):
        wanted = ours(base, [caption], 150, truncation=True)
        assert torch.equal(cache.batch([caption]).prompt_BLD, wanted.prompt_BLD)
    assert cache.batch(captions).prompt_BLD.shape[:2] == (2, 152)


# ---- what learns


def test_gradients_of_adapters_come_from_every_chunk(tiny_base: BaseModel) -> None:
    """The words of the second chunk alone move the text encoders' adapters as sd-scripts' states would."""
    fields = {"model": "m", "dataset": "ds_1", "seed": 3, "rank": 2, "train_text_encoder": True}
    caption = caption_of(100)
    weights_LD = torch.zeros(152, 1)
    weights_LD[80:95] = 1.0

    def gradients(embedding: Embedding, parameters: list[torch.nn.Parameter]) -> list[torch.Tensor]:
        loss = (embedding.prompt_BLD[0] * weights_LD).sin().sum()
        return list(torch.autograd.grad(loss, parameters, allow_unused=True))

    with add_adapters(tiny_base, TrainSpec.model_validate(fields)) as adapters:
        named = {name: one for name, one in adapters.parameters.items() if name.startswith("text_encoder")}
        found = gradients(ours(tiny_base, [caption], 150), list(named.values()))
        wanted = gradients(kohyas(tiny_base, caption, 150), list(named.values()))
    moved = [one for one in found if one is not None and bool(one.any())]
    assert len(moved) >= len(named) // 4
    for one, other in zip(found, wanted, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_new_tokens_learn_in_whatever_chunk_they_stand(tiny_base: BaseModel) -> None:
    fields = {"model": "m", "dataset": "ds_1", "seed": 3, "train_text_encoder_ti": True}
    spec = TrainSpec.model_validate(fields)
    base = taught(tiny_base, spec)
    caption = spoken(spec, f"{caption_of(80)} TOK {caption_of(10)}")
    with add_tokens(base, spec) as tokens:
        embedding = ours(base, [caption], 150)
        torch.testing.assert_close(embedding.prompt_BLD, kohyas(base, caption, 150).prompt_BLD, rtol=0, atol=1e-5)
        embedding.prompt_BLD[:, 76:].square().sum().backward()
        for rows_NE in tokens.rows.values():
            assert rows_NE.grad is not None
            assert bool(rows_NE.grad.any(dim=1).all())


# ---- pictures


def drawn(base: BaseModel, prompt: str, room: int) -> np.ndarray:
    sampler = SamplerConfig(side_px=64, steps=2, guidance_scale=5.0, max_token_length=room)
    return sample_image(base, prompt, initial_noise(base, 1, "t", 0, side_px=64), sampler).numpy().astype(int)


@torch.no_grad()
def test_pictures_are_drawn_with_the_whole_prompt(base: BaseModel) -> None:
    """Held to diffusers' pipeline, given the embeddings of the reference."""
    prompt, parts = caption_of(120), base.family.assemble
    pipeline = parts(
        unet=base.unet,
        vae=base.vae,
        text_encoders=base.text_encoders,
        tokenizers=base.tokenizers,
        scheduler=EulerDiscreteScheduler.from_config(base.noise_scheduler.config),
    )
    pipeline.set_progress_bar_config(disable=True)
    said, nothing = kohyas(base, prompt, 150), kohyas(base, "", 150)
    embeddings = {"prompt_embeds": said.prompt_BLD, "negative_prompt_embeds": nothing.prompt_BLD}
    if isinstance(pipeline, StableDiffusionXLPipeline):  # an empty prompt is zeros there
        embeddings["pooled_prompt_embeds"] = said.pooled_BP
        embeddings["negative_prompt_embeds"] = torch.zeros_like(said.prompt_BLD)
        embeddings["negative_pooled_prompt_embeds"] = torch.zeros_like(said.pooled_BP)
    else:
        assert isinstance(pipeline, StableDiffusionPipeline)
    noise_BCHW = initial_noise(base, 1, "t", 0, side_px=64)
    sizes = {"height": 64, "width": 64, "num_inference_steps": 2, "guidance_scale": 5.0}
    wanted = np.asarray(pipeline(**embeddings, latents=noise_BCHW, **sizes).images[0], dtype=int)
    found = drawn(base, prompt, 150)
    assert np.abs(found - wanted).max() <= 1
    assert np.abs(found - drawn(base, caption_of(75), 150)).max() > 1


def test_samples_and_class_pictures_are_drawn_with_whole_prompts(tiny_base: BaseModel) -> None:
    prompt = caption_of(120)
    fields = {"model": "m", "dataset": "ds_1", "seed": 1, "rank": 2, "resolution": 64, "max_token_length": 150}
    prior = {"with_prior_preservation": True, "class_prompt": prompt, "mixed_precision": "no"}
    spec = TrainSpec.model_validate({**fields, **prior, "sample_prompts": (prompt,), "sample_steps": 2})
    with add_adapters(tiny_base, spec) as adapters:
        (sample,) = draw_samples(tiny_base, spec, adapters, adapters.tensors(), tick=lambda done, total: None)
    noise_BCHW = initial_noise(tiny_base, 1, PURPOSE, 0, side_px=64)
    sampler = SamplerConfig(side_px=64, steps=2, guidance_scale=5.0, max_token_length=150)
    assert np.array_equal(np.asarray(sample.base), sample_image(tiny_base, prompt, noise_BCHW, sampler).numpy())
    assert not np.array_equal(
        np.asarray(sample.base), sample_image(tiny_base, caption_of(75), noise_BCHW, sampler).numpy()
    )
    cut = spec.model_copy(update={"class_prompt": caption_of(75)})
    assert not torch.equal(draw(tiny_base, spec, 0), draw(tiny_base, cut, 0))


# ---- what it takes


def test_memory_and_work_are_reckoned_with_the_length_of_prompts(tiny_base: BaseModel) -> None:
    fields = {"model": "m", "dataset": "ds_1", "seed": 3, "rank": 2, "resolution": 64, "train_text_encoder": True}
    plain, long = (TrainSpec.model_validate({**fields, "max_token_length": room}) for room in (75, 225))
    kept = [sizes_of(tiny_base, spec).kept_bytes[Recompute.OFF] for spec in (plain, long)]
    without = sizes_of(tiny_base, plain.model_copy(update={"train_text_encoder": False})).kept_bytes[Recompute.OFF]
    assert kept[1] > kept[0] + 2 * (kept[0] - without)  # three times the text, and more keys
    layers = [layers_of(tiny_base.unet, 64, max_token_length=room) for room in (75, 225)]
    keys = [{one.name: one.multiplies for one in found if ".attn2.to_k" in one.name} for found in layers]
    assert keys[0]
    assert {name: count * 227 // 77 for name, count in keys[0].items()} == keys[1]
