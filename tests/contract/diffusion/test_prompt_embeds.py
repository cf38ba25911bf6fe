"""Prompts are encoded as diffusers' pipelines encode them, and as captions where diffusers would cut."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.base.weights_digest import described
from giornata.diffusion.encode.captions import encode
from giornata.diffusion.encode.prompt_embeds import PromptEmbeds, PromptEncoder
from giornata.diffusion.files.textual_inversion import read_textual_inversion
from giornata.domain.errors import InvalidInput

LONG = " ".join("abcdefghijk"[number * 7 % 11] for number in range(130))


@pytest.fixture(params=["SDXL", "Stable Diffusion 1.5"])
def base(request: pytest.FixtureRequest) -> BaseModel:
    return request.getfixturevalue("tiny_base" if request.param == "SDXL" else "tiny_sd15_base")


def pipeline_of(base: BaseModel) -> Any:
    parts = {"unet": base.unet, "vae": base.vae, "text_encoders": base.text_encoders, "tokenizers": base.tokenizers}
    return base.family.assemble(**parts, scheduler=base.noise_scheduler)


def of_diffusers(base: BaseModel, prompt: str, negative: str | None, clip_skip: int | None = None) -> PromptEmbeds:
    pipeline = pipeline_of(base)
    said = pipeline.encode_prompt(
        prompt,
        device=base.device,
        num_images_per_prompt=1,
        do_classifier_free_guidance=True,
        negative_prompt=negative,
        clip_skip=clip_skip,
    )
    prompt_LD, negative_LD, pooled_P, negative_pooled_P = (
        (each[0].detach() for each in said)
        if base.family.pooled
        else (
            said[0][0].detach(),
            said[1][0].detach(),
            None,
            None,
        )
    )
    return PromptEmbeds(
        prompt_LD=prompt_LD, pooled_P=pooled_P, negative_LD=negative_LD, negative_pooled_P=negative_pooled_P
    )


def tensors_of(embeds: PromptEmbeds) -> list[torch.Tensor]:
    every = (embeds.prompt_LD, embeds.pooled_P, embeds.negative_LD, embeds.negative_pooled_P)
    return [each for each in every if each is not None]


def same(one: PromptEmbeds, other: PromptEmbeds) -> bool:
    pairs = zip(tensors_of(one), tensors_of(other), strict=True)
    return all(left.shape == right.shape and torch.equal(left, right) for left, right in pairs)


@contextmanager
def left_as_it_was(base: BaseModel) -> Iterator[None]:
    """The text encoders keep their bytes and modules, and the tokenizers their words."""

    def state() -> list[Any]:
        encoders = [dict(each.named_modules()) for each in base.text_encoders]
        tensors = [described(*item) for each in base.text_encoders for item in each.state_dict().items()]
        hooks = [len(layer._forward_hooks) for each in encoders for layer in each.values()]
        return [encoders, tensors, hooks, [len(each) for each in base.tokenizers]]

    PromptEncoder(base).encode("a")  # at its first call transformers adds hooks of its own, for good
    before = state()
    yield
    assert state() == before


# ---- diffusers' bytes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("negative", [None, "a blue car", "Grün, „x“"])
@pytest.mark.parametrize("prompt", ["a photo of a red star", "", "Ein rotes Stück"])
def test_prompt_without_weights_gives_the_bytes_of_diffusers(
    base: BaseModel, prompt: str, negative: str | None
) -> None:
    with left_as_it_was(base):
        ours = PromptEncoder(base).encode(prompt, negative)
    assert same(ours, of_diffusers(base, prompt, negative))
    assert not any(each.requires_grad for each in tensors_of(ours))


def test_prompt_of_75_tokens_gives_the_bytes_of_diffusers(base: BaseModel) -> None:
    prompt = " ".join(LONG.split()[:75])
    assert same(PromptEncoder(base).encode(prompt), of_diffusers(base, prompt, None))


@pytest.mark.parametrize("skipped", [0, 1])
def test_skipped_layers_are_those_that_diffusers_skips(base: BaseModel, skipped: int) -> None:
    skipped += not base.family.pooled  # SD 1.5 begins to count at the last layer
    ours = PromptEncoder(base).encode("a red star", "a car", clip_skip=skipped)
    if base.family.pooled:
        assert same(ours, of_diffusers(base, "a red star", "a car", skipped))
        return
    # diffusers looks for a level of names that this version of transformers does not have.
    (encoder,), (tokenizer,) = base.text_encoders, base.tokenizers
    tokens = tokenizer("a red star", padding="max_length", max_length=77, return_tensors="pt").input_ids
    states = encoder(tokens, output_hidden_states=True).hidden_states[-(skipped + 1)]
    final = next(layer for name, layer in encoder.named_modules() if name.endswith("final_layer_norm"))
    assert torch.equal(ours.prompt_LD, final(states)[0])


def test_more_skipped_layers_than_there_are_is_refused(base: BaseModel) -> None:
    with pytest.raises(InvalidInput, match="skips 9 layers") as refusal:
        PromptEncoder(base).encode("a", clip_skip=9)
    assert refusal.value.faults[0].where == "clip_skip"


# ---- beyond 75 tokens --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [76, 130])
def test_long_prompt_is_read_as_a_caption_of_its_length(base: BaseModel, tokens: int) -> None:
    prompt = " ".join(LONG.split()[:tokens])
    ours = PromptEncoder(base).encode(prompt, "a car")
    captions = [
        encode(base.tokenizers, base.text_encoders, [text], family=base.family, max_token_length=150)
        for text in (prompt, "a car")
    ]
    expected = [captions[0].prompt_BLD, captions[0].pooled_BP, captions[1].prompt_BLD, captions[1].pooled_BP]
    assert all(
        torch.equal(mine, its[0])
        for mine, its in zip(tensors_of(ours), [each for each in expected if each is not None], strict=True)
    )
    assert ours.prompt_LD.shape == ours.negative_LD.shape == (152, captions[0].prompt_BLD.shape[-1])


def test_longer_negative_prompt_pads_the_prompt(base: BaseModel) -> None:
    ours = PromptEncoder(base).encode("a red star", LONG)
    assert ours.prompt_LD.shape == ours.negative_LD.shape
    assert ours.prompt_LD.shape[0] == 152


def test_break_begins_a_chunk(base: BaseModel) -> None:
    broken = PromptEncoder(base).encode("a red star BREAK a blue car")
    parts = [PromptEncoder(base).encode(text).prompt_LD for text in ("a red star", "a blue car")]
    expected = torch.cat([parts[0][:76], parts[1][1:]])
    assert broken.prompt_LD.shape == (152, parts[0].shape[1])
    assert torch.allclose(broken.prompt_LD, expected, atol=1e-6)


# ---- weights -----------------------------------------------------------------------------------------------------


def with_shifted_states(base: BaseModel) -> BaseModel:
    """A model whose hidden states have a mean, as those of CLIP have."""
    (encoder,) = copy.deepcopy(base.text_encoders)
    next(layer for name, layer in encoder.named_modules() if name.endswith("final_layer_norm")).bias.data += 0.5
    return replace(base, text_encoders=(encoder,))


def test_weight_multiplies_its_tokens_and_the_mean_comes_back(tiny_sd15_base: BaseModel) -> None:
    encoder = PromptEncoder(with_shifted_states(tiny_sd15_base))
    plain, ours = (encoder.encode(text).prompt_LD for text in ("a red star", "a (red:1.4) star"))
    changed = plain.clone()
    changed[2] *= 1.4
    assert torch.allclose(ours, changed * (plain.mean() / changed.mean()), atol=1e-6)
    assert torch.allclose(ours.mean(), plain.mean())
    assert not torch.allclose(ours[1], plain[1], atol=1e-4)


def test_mean_that_is_nearly_zero_does_not_come_back(tiny_sd15_base: BaseModel) -> None:
    plain, ours = (
        PromptEncoder(tiny_sd15_base).encode(text).prompt_LD for text in ("a red star", "a (red:1.4) star")
    )
    assert plain.mean().abs() < 1e-3
    assert torch.equal(ours[:2], plain[:2])
    assert torch.allclose(ours[2], 1.4 * plain[2])


def test_weight_leaves_the_pooled_embedding(tiny_base: BaseModel) -> None:
    plain, weighted = (PromptEncoder(tiny_base).encode(text) for text in ("a red star", "a (red:1.4) star"))
    assert plain.pooled_P is not None
    assert weighted.pooled_P is not None
    assert torch.equal(plain.pooled_P, weighted.pooled_P)


def test_weights_of_one_chunk_leave_the_others(base: BaseModel) -> None:
    plain = PromptEncoder(base).encode("a red star BREAK a blue car").prompt_LD
    weighted = PromptEncoder(base).encode("a red star BREAK a (blue:0.5) car").prompt_LD
    assert torch.equal(plain[:76], weighted[:76])
    assert not torch.equal(plain[76:], weighted[76:])


def test_escaped_bracket_is_text(base: BaseModel) -> None:
    escaped = PromptEncoder(base).encode(r"a \(red\) star")
    assert same(escaped, of_diffusers(base, "a (red) star", None))


def test_broken_bracket_is_refused(base: BaseModel) -> None:
    with pytest.raises(InvalidInput):
        PromptEncoder(base).encode("a (red star")


# ---- the cache ---------------------------------------------------------------------------------------------------


def test_repeated_prompt_is_encoded_once_within_the_bound(tiny_sd15_base: BaseModel) -> None:
    one_bytes = PromptEncoder(tiny_sd15_base).encode("a").prompt_LD.nbytes
    encoder = PromptEncoder(tiny_sd15_base, memory_bytes=3 * one_bytes)
    first = encoder.encode("a red star")
    assert encoder.encode("a red star").prompt_LD is first.prompt_LD
    for word in ("dog", "cat", "bird", "house"):
        encoder.encode(f"a {word}")
    assert len(encoder) == 3
    assert encoder.in_memory_bytes == 3 * one_bytes
    assert encoder.encode("a red star").prompt_LD is not first.prompt_LD
    encoder.clear()
    assert (len(encoder), encoder.in_memory_bytes) == (0, 0)


# ---- textual inversions ------------------------------------------------------------------------------------------


def vectors(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn((count, 32), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("count", [1, 3])
def test_textual_inversion_gives_what_diffusers_gives(
    tiny_sd15_folder: Path, tiny_sd15_base: BaseModel, tmp_path: Path, count: int
) -> None:
    path = tmp_path / "word.safetensors"
    save_file({"emb_params": vectors(count)}, path)
    base = tiny_sd15_base
    inversion = read_textual_inversion(path, "<thing>", base)
    with left_as_it_was(base):
        ours = PromptEncoder(base).encode("a red <thing> star", embeddings=[inversion])
    pipeline = base.family.load_pipeline(tiny_sd15_folder, dtype=torch.float32)
    pipeline.load_textual_inversion(str(path), token="<thing>")
    theirs, _ = pipeline.encode_prompt("a red <thing> star", "cpu", 1, False)
    assert torch.allclose(ours.prompt_LD, theirs[0], atol=1e-6)


def test_textual_inversion_of_sdxl_gives_what_diffusers_gives(
    tiny_folder: Path, tiny_base: BaseModel, tmp_path: Path
) -> None:
    path = tmp_path / "word.safetensors"
    rows = {"clip_l": vectors(2, 1), "clip_g": vectors(2, 2)}
    save_file(rows, path)
    inversion = read_textual_inversion(path, "<thing>", tiny_base)
    with left_as_it_was(tiny_base):
        ours = PromptEncoder(tiny_base).encode("a red <thing> star", embeddings=[inversion])
    pipeline = tiny_base.family.load_pipeline(tiny_folder, dtype=torch.float32)
    for name, encoder, tokenizer in (
        ("clip_l", pipeline.text_encoder, pipeline.tokenizer),
        ("clip_g", pipeline.text_encoder_2, pipeline.tokenizer_2),
    ):
        pipeline.load_textual_inversion(rows[name], token="<thing>", text_encoder=encoder, tokenizer=tokenizer)
    states, _, _, _ = pipeline.encode_prompt("a red <thing> star", do_classifier_free_guidance=False)
    assert torch.allclose(ours.prompt_LD, states[0], atol=1e-6)


def test_textual_inversion_does_not_affect_prompts_encoded_without_it(tiny_base: BaseModel, tmp_path: Path) -> None:
    path = tmp_path / "word.safetensors"
    save_file({"clip_l": vectors(2, 1), "clip_g": vectors(2, 2)}, path)
    inversion = read_textual_inversion(path, "zoom", tiny_base)
    encoder = PromptEncoder(tiny_base)
    before = encoder.encode("a zoom star")
    seen = encoder.encode("a zoom star", embeddings=[inversion])
    assert not torch.equal(before.prompt_LD, seen.prompt_LD)
    fresh = PromptEncoder(tiny_base)
    assert torch.equal(fresh.encode("a zoom star").prompt_LD, before.prompt_LD)
    inside = fresh.encode("a zoomed star", embeddings=[inversion])
    assert torch.equal(inside.prompt_LD, encoder.encode("a zoomed star").prompt_LD)


def test_vectors_of_a_word_stay_in_one_chunk(tiny_sd15_base: BaseModel, tmp_path: Path) -> None:
    path = tmp_path / "word.safetensors"
    save_file({"emb_params": vectors(4)}, path)
    inversion = read_textual_inversion(path, "zoom", tiny_sd15_base)
    start = " ".join(LONG.split()[:73])
    ours = PromptEncoder(tiny_sd15_base).encode(f"{start} zoom", embeddings=[inversion])
    parted = PromptEncoder(tiny_sd15_base).encode(f"{start} BREAK zoom", embeddings=[inversion])
    assert ours.prompt_LD.shape[0] == 152
    assert torch.equal(ours.prompt_LD, parted.prompt_LD)
