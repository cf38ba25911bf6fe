"""Prior preservation without class pictures: under the class prompt the base model's own word is the target."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures.train_rig import draw_pictures, spec_for
from torch.nn import functional

from giornata.diffusion.adapter.batched_lora import adapters_off
from giornata.diffusion.adapter.lora import Adapters, add_adapters
from giornata.diffusion.base.models import BaseModel, load_base
from giornata.diffusion.optim.objective import Objective
from giornata.protocol.specs import TrainSpec
from giornata.workloads.train.inputs.encoding import CachedInputs, cache_inputs
from giornata.workloads.train.inputs.sample_set import load_samples
from giornata.workloads.train.inputs.sampling_plan import assemble
from giornata.workloads.train.steps import PassFeed, Stepper, optimizer_of

PRIOR = {
    "with_prior_preservation": True,
    "prior_prediction": True,
    "class_prompt": "a toy",
    "prior_loss_weight": 0.7,
    "train_batch_size": 2,
}


@pytest.fixture(scope="module")
def base(tiny_folder: Path) -> BaseModel:
    return load_base(TrainSpec.model_validate(spec_for(tiny_folder)), device="cpu", dtype=torch.float32)


def supplies_of(base: BaseModel, spec: TrainSpec, tmp_path: Path) -> CachedInputs:
    instances, classes = load_samples(draw_pictures(tmp_path / "pictures", 3), spec)
    assert classes is None
    return cache_inputs(base, spec, (instances,), seed=42, first_step=0, tick=lambda *_: None)


def first_loss(base: BaseModel, spec: TrainSpec, cached_inputs: CachedInputs, adapters: Adapters) -> torch.Tensor:
    """Of the first step, which moves the adapters."""
    objective = Objective.of(spec, base.noise_scheduler, prediction_type="epsilon")
    stepper = Stepper(
        base=base,
        spec=spec,
        learning=adapters.learning,
        objective=objective,
        embeddings=cached_inputs.embeddings,
        optimizer=optimizer_of(adapters, spec),
    )
    passes = {"first_step": 0, "end_step": 1, "rows": None, "pinned": False, "clock": lambda: 0.0}
    with PassFeed(cached_inputs, base.vae.config, **passes) as feed:
        return stepper.step(0, feed)[0]


def moved(adapters: Adapters) -> None:
    """As if they had learned something."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in adapters.parameters.values():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)


@pytest.mark.parametrize("train_text_encoder", [False, True])
def test_the_loss_is_what_it_says(
    base: BaseModel, tiny_folder: Path, tmp_path: Path, train_text_encoder: bool
) -> None:
    """Against a plain computation: the base without any adapter is asked before the adapters are put on."""
    spec = TrainSpec.model_validate(spec_for(tiny_folder, train_text_encoder=train_text_encoder, **PRIOR))
    cached_inputs = supplies_of(base, spec, tmp_path)
    drawn = cached_inputs.draws.micro_batch(0, 0)
    batch = assemble(cached_inputs.draws, drawn, cached_inputs.latents, base.vae.config)
    noisy_BCHW = base.noise_scheduler.add_noise(batch.latents_BCHW, batch.noise_BCHW, batch.timesteps_B)

    def answer(texts: list[str]) -> torch.Tensor:
        from giornata.diffusion.encode.captions import encode

        said = encode(base.tokenizers, base.text_encoders, texts)
        conditions = {"time_ids": batch.time_ids_B6, "text_embeds": said.pooled_BP}
        asked = (noisy_BCHW, batch.timesteps_B, said.prompt_BLD)
        return base.unet(*asked, added_cond_kwargs=conditions).sample

    with torch.no_grad():
        wanted_BCHW = answer(["a toy"] * 2)
        with add_adapters(base, spec) as adapters:
            moved(adapters)
            instance = functional.mse_loss(
                answer([cached_inputs.draws.caption(draw) for draw in drawn]), batch.noise_BCHW
            )
            prior = functional.mse_loss(answer(["a toy"] * 2), wanted_BCHW)
    assert float(prior) > 1e-6
    with add_adapters(base, spec) as adapters:
        moved(adapters)
        loss = first_loss(base, spec, cached_inputs, adapters)
    torch.testing.assert_close(loss, instance + 0.7 * prior, rtol=1e-4, atol=1e-6)


def test_at_the_start_there_is_nothing_to_hold_back(base: BaseModel, tiny_folder: Path, tmp_path: Path) -> None:
    """An adapter that does nothing yet answers as the base does: the loss is the instances' alone."""
    losses: list[Any] = []
    for weight in (0.0, 100.0):
        spec = TrainSpec.model_validate(spec_for(tiny_folder, **PRIOR | {"prior_loss_weight": weight}))
        cached_inputs = supplies_of(base, spec, tmp_path)
        with add_adapters(base, spec) as adapters:
            losses.append(first_loss(base, spec, cached_inputs, adapters))
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=1e-6)


def test_within_the_base_speaks_and_afterwards_all_is_as_it_was(base: BaseModel, tiny_folder: Path) -> None:
    spec = TrainSpec.model_validate(spec_for(tiny_folder, train_text_encoder=True))
    tokens_BL = base.tokenizers[0](["a toy"], padding="max_length", return_tensors="pt").input_ids
    encoder = base.text_encoders[0]
    plain = encoder(tokens_BL).last_hidden_state
    with add_adapters(base, spec) as adapters:
        moved(adapters)
        frozen = next(iter(adapters.parameters.values())).requires_grad_(False)
        adapted = encoder(tokens_BL).last_hidden_state
        with adapters_off((base.unet, *base.text_encoders)):
            within = encoder(tokens_BL).last_hidden_state
            assert not within.requires_grad
        assert torch.equal(within, plain)
        assert not torch.equal(adapted, plain)
        assert torch.equal(encoder(tokens_BL).last_hidden_state, adapted)
        assert not frozen.requires_grad
        assert (
            sum(parameter.requires_grad for parameter in adapters.parameters.values()) == len(adapters.parameters) - 1
        )


def test_adapters_come_back_when_something_breaks(base: BaseModel, tiny_folder: Path) -> None:
    spec = TrainSpec.model_validate(spec_for(tiny_folder, train_text_encoder=True))
    tokens_BL = base.tokenizers[0](["a toy"], padding="max_length", return_tensors="pt").input_ids
    with add_adapters(base, spec) as adapters:
        moved(adapters)
        adapted = base.text_encoders[0](tokens_BL).last_hidden_state
        with pytest.raises(ZeroDivisionError), adapters_off(base.text_encoders):
            raise ZeroDivisionError
        assert torch.equal(base.text_encoders[0](tokens_BL).last_hidden_state, adapted)
