"""EDM-style training is that of diffusers' script: the same question, the same comparison, the same weighting."""

from typing import Any

import pytest
import torch
from diffusers import DDPMScheduler, EulerDiscreteScheduler
from tests.unit.diffusion.test_objective import EMBEDDING, RecordingUNet, batch_of, noise_schedule, objective_of

from giornata.diffusion.draws.randomness import normal
from giornata.diffusion.optim.objective import NoisyBatch, edm_sigmas
from giornata.protocol.specs import TrainSpec

TYPES = ("epsilon", "v_prediction")


def euler(prediction_type: str = "epsilon") -> EulerDiscreteScheduler:
    return EulerDiscreteScheduler.from_config(noise_schedule().config, prediction_type=prediction_type)


def sigmas_of(scheduler: EulerDiscreteScheduler, timesteps_B: torch.Tensor) -> torch.Tensor:
    """As the script finds them: by looking the timestep up in the scheduler's own."""
    places = [int((scheduler.timesteps == timestep).nonzero().item()) for timestep in timesteps_B]
    return scheduler.sigmas[places].view(-1, 1, 1, 1)


def edm_batch() -> NoisyBatch:
    batch = batch_of(4)
    return NoisyBatch(
        latents_BCHW=batch.latents_BCHW,
        noise_BCHW=batch.noise_BCHW,
        timesteps_B=torch.tensor([0, 137, 500, 999]),
        time_ids_B6=batch.time_ids_B6,
    )


def test_sigmas_are_those_of_the_euler_scheduler() -> None:
    timesteps_B = edm_batch().timesteps_B
    found = edm_sigmas(noise_schedule().alphas_cumprod, timesteps_B)
    torch.testing.assert_close(found, sigmas_of(euler(), timesteps_B), rtol=1e-5, atol=0)


@pytest.mark.parametrize("prediction_type", TYPES)
def test_the_question_is_the_euler_schedulers_model_input(prediction_type: str) -> None:
    batch, scheduler = edm_batch(), euler()
    unet = RecordingUNet(torch.zeros_like(batch.noise_BCHW))
    objective_of(do_edm_style_training=True, prediction_type=prediction_type).loss(unet, batch, EMBEDDING)
    noisy = scheduler.add_noise(batch.latents_BCHW, batch.noise_BCHW, batch.timesteps_B.float())
    for place, timestep in enumerate(batch.timesteps_B):
        scheduler._step_index = None
        scheduler.is_scale_input_called = False
        wanted = scheduler.scale_model_input(noisy[place : place + 1], timestep.float())
        torch.testing.assert_close(unet.asked["noisy"][place : place + 1], wanted, rtol=1e-4, atol=1e-5)
    assert torch.equal(unet.asked["timesteps"], batch.timesteps_B)


@pytest.mark.parametrize("prediction_type", TYPES)
def test_answers_stand_for_the_latents_that_the_euler_scheduler_sees_in_them(prediction_type: str) -> None:
    batch, scheduler = edm_batch(), euler(prediction_type)
    answer = normal(3, "answer", shape=tuple(batch.noise_BCHW.shape))
    objective = objective_of(do_edm_style_training=True, prediction_type=prediction_type)
    found = objective.compared(answer, batch)
    noisy = scheduler.add_noise(batch.latents_BCHW, batch.noise_BCHW, batch.timesteps_B.float())
    for place, timestep in enumerate(batch.timesteps_B):
        row = slice(place, place + 1)
        scheduler._step_index = None
        scheduler.is_scale_input_called = True
        wanted = scheduler.step(answer[row], timestep.float(), noisy[row]).pred_original_sample
        torch.testing.assert_close(found[row], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("prediction_type", TYPES)
@pytest.mark.parametrize("prior", [False, True])
def test_the_loss_is_the_scripts(prediction_type: str, prior: bool) -> None:
    """(denoised - latents)² / sigma², by its formulas; with prior preservation over the halves apart."""
    batch = edm_batch()
    answer = normal(4, "answer", shape=tuple(batch.noise_BCHW.shape))
    fields: dict[str, Any] = {"with_prior_preservation": True, "class_prompt": "a toy"} if prior else {}
    objective = objective_of(do_edm_style_training=True, prediction_type=prediction_type, **fields)
    found = float(objective.loss(RecordingUNet(answer), batch, EMBEDDING))

    sigma = sigmas_of(euler(), batch.timesteps_B)
    noisy = batch.latents_BCHW + sigma * batch.noise_BCHW
    if prediction_type == "epsilon":
        denoised = answer * (-sigma) + noisy
    else:
        denoised = answer * (-sigma / (sigma**2 + 1) ** 0.5) + noisy / (sigma**2 + 1)
    each = (sigma**-2.0 * (denoised - batch.latents_BCHW) ** 2).flatten(1).mean(1)
    wanted = float(each[:2].mean() + each[2:].mean()) if prior else float(each.mean())
    assert found == pytest.approx(wanted, rel=1e-3)


def test_edm_loss_equals_plain_loss_for_epsilon_and_alpha_weighted_loss_for_v_prediction() -> None:
    """(x + s·e - s·p - x)² / s² = (e - p)²; and a velocity's error counts 1 / (1 + sigma²)."""
    batch = edm_batch()
    answer = normal(5, "answer", shape=tuple(batch.noise_BCHW.shape))
    plain, edm_style = (objective_of(do_edm_style_training=each) for each in (False, True))
    assert float(edm_style.loss(RecordingUNet(answer), batch, EMBEDDING)) == pytest.approx(
        float(plain.loss(RecordingUNet(answer), batch, EMBEDDING)), rel=1e-3
    )
    plain, edm_style = (
        objective_of(do_edm_style_training=each, prediction_type="v_prediction") for each in (False, True)
    )
    there = {field: getattr(batch, field) for field in NoisyBatch.__dataclass_fields__}
    one = NoisyBatch(**{field: value[2:3] for field, value in there.items() if value is not None})
    alpha = float(noise_schedule().alphas_cumprod[500])
    assert float(edm_style.loss(RecordingUNet(answer[2:3]), one, EMBEDDING)) == pytest.approx(
        alpha * float(plain.loss(RecordingUNet(answer[2:3]), one, EMBEDDING)), rel=1e-3
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("snr_gamma", 5.0),
        ("debiased_estimation_loss", True),
        ("loss_type", "huber"),
        ("loss_type", "l1"),
        ("rescale_betas_zero_snr", True),
    ],
)
def test_spec_field_conflicting_with_edm_training_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        TrainSpec.model_validate(
            {
                "pretrained_model_name_or_path": "m",
                "dataset": "ds_1",
                "prediction_type": "v_prediction",
                "do_edm_style_training": True,
                field: value,
            }
        )


def test_a_half_precision_unet_is_compared_in_full_precision() -> None:
    """x0 is a difference of numbers up to 14 times as large."""
    batch = edm_batch()
    unet = RecordingUNet(batch.noise_BCHW.to(torch.bfloat16))
    found = float(objective_of(do_edm_style_training=True).loss(unet, batch, EMBEDDING))
    rounding = (batch.noise_BCHW.to(torch.bfloat16).float() - batch.noise_BCHW).square().mean()
    assert found == pytest.approx(float(rounding), rel=1e-2)


def test_the_schedule_is_the_bases_own() -> None:
    schedule = DDPMScheduler(num_train_timesteps=1000, beta_schedule="linear")
    batch = edm_batch()
    unet = RecordingUNet(torch.zeros_like(batch.noise_BCHW))
    objective_of(schedule, do_edm_style_training=True).loss(unet, batch, EMBEDDING)
    wanted = schedule.add_noise(batch.latents_BCHW, batch.noise_BCHW, batch.timesteps_B)
    torch.testing.assert_close(unet.asked["noisy"], wanted, rtol=1e-4, atol=1e-5)
