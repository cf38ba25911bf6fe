"""The drawing model before training: the same weights every time, silent at first, words as single tokens."""

import pytest
import torch

from giornata.diffusion.draws.randomness import normal
from giornata.diffusion.encode.captions import encode
from giornata.diffusion.shapes.model import new_unet, new_vae, text_parts
from giornata.diffusion.shapes.pictures import FORMS, PALETTE, captions
from giornata.diffusion.tiny.drawings import SUBJECTS


def test_weights_are_functions_of_their_names_and_leave_the_random_state_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    first = [new_vae(), new_unet(), *text_parts().encoders]
    assert torch.equal(torch.rand(2), expected)
    torch.manual_seed(99)
    second = [new_vae(), new_unet(), *text_parts().encoders]
    for one, other in zip(first, second, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    drawn = dict(first[1].named_parameters())
    assert not torch.equal(
        drawn["down_blocks.0.resnets.0.conv1.weight"], drawn["up_blocks.1.resnets.1.conv1.weight"][:, :64]
    )


def test_half_precision_weights_fit_into_eight_megabytes() -> None:
    models = [new_vae(), new_unet(), *text_parts().encoders]
    assert sum(parameter.numel() for model in models for parameter in model.parameters()) * 2 < 7_900_000


def test_the_unet_answers_nothing_at_first_and_resnets_pass_on_what_they_get() -> None:
    unet = new_unet()
    latents_BCHW = normal(0, "test", shape=(2, 4, 8, 8))
    conditions = {"time_ids": torch.zeros(2, 6), "text_embeds": torch.zeros(2, 64)}
    with torch.no_grad():
        answer = unet(latents_BCHW, 5, torch.zeros(2, 77, 128), added_cond_kwargs=conditions).sample
        hidden_BCHW = normal(1, "test", shape=(1, 64, 8, 8))
        passed = unet.down_blocks[0].resnets[0](hidden_BCHW, torch.zeros(1, 256))
    assert not answer.any()
    assert torch.equal(passed, hidden_BCHW)


def test_the_vae_is_nearly_sure_at_first() -> None:
    with torch.no_grad():
        posterior = new_vae().encode(normal(0, "test", shape=(1, 3, 64, 64))).latent_dist
    assert posterior.logvar.mean() < -4


@pytest.mark.parametrize("word", [*FORMS, *PALETTE, "shape", "sks", *(noun for _, noun in SUBJECTS.values())])
def test_every_word_that_matters_is_one_token(word: str) -> None:
    for tokenizer in text_parts().tokenizers:
        assert tokenizer.tokenize(f"a {word} on") == ["a</w>", f"{word}</w>", "on</w>"]


def test_prompts_are_far_apart_for_the_unet() -> None:
    text = text_parts()
    with torch.no_grad():
        embedding = encode(text.tokenizers, text.encoders, captions()[:40])
    prompt_BN = embedding.prompt_BLD.flatten(1)
    apart = torch.cdist(prompt_BN, prompt_BN) + 1e9 * torch.eye(len(prompt_BN))
    assert apart.min() > 1.0
    assert torch.cdist(embedding.pooled_BP, embedding.pooled_BP)[0, 1:].min() > 0.5
