"""What the UNet is trained to predict."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from diffusers import DDPMScheduler
from diffusers.training_utils import compute_snr

from giornata.diffusion.draws.randomness import normal
from giornata.diffusion.encode.captions import Embedding
from giornata.diffusion.optim.objective import NoisyBatch, Objective, scheduler_of
from giornata.protocol.specs import TrainSpec


def batch_of(count: int) -> NoisyBatch:
    return NoisyBatch(
        latents_BCHW=normal(1, "latents", shape=(count, 4, 8, 8)),
        noise_BCHW=normal(1, "noise", shape=(count, 4, 8, 8)),
        timesteps_B=torch.arange(count) * 200 + 50,
        time_ids_B6=torch.arange(6.0).repeat(count, 1) + 3001.0,
    )


class RecordingUNet:
    """A UNet that gives a fixed answer, and remembers the question."""

    dtype = torch.float32

    def __init__(self, answer: torch.Tensor) -> None:
        self.answer, self.asked = answer, {}

    def __call__(
        self, noisy_BCHW: torch.Tensor, timesteps_B: torch.Tensor, prompt_BLD: torch.Tensor, **rest: Any
    ) -> Any:
        self.asked = {"noisy": noisy_BCHW, "timesteps": timesteps_B, "prompt": prompt_BLD, **rest}
        return (self.answer,)


EMBEDDING = Embedding(prompt_BLD=torch.ones(4, 77, 8), pooled_BP=torch.ones(4, 3))


def noise_schedule() -> DDPMScheduler:
    return DDPMScheduler(num_train_timesteps=1000, beta_schedule="scaled_linear")


def loss(
    unet: RecordingUNet, batch: NoisyBatch, *, prediction_type: str = "epsilon", prior: float | None = None
) -> float:
    objective = Objective(scheduler=noise_schedule(), prediction_type=prediction_type, prior_loss_weight=prior)
    return float(objective.loss(unet, batch, EMBEDDING))


def objective_of(scheduler: DDPMScheduler | None = None, **fields: Any) -> Objective:
    """Of a spec with these fields."""
    spec = TrainSpec(pretrained_model_name_or_path="base", dataset="ds_1", **fields)
    scheduler = scheduler_of(spec, scheduler or noise_schedule())
    return Objective.of(spec, scheduler, prediction_type=spec.prediction_type or "epsilon")


def test_epsilon_wants_the_noise() -> None:
    batch = batch_of(4)
    assert loss(RecordingUNet(batch.noise_BCHW), batch) == 0.0
    assert loss(RecordingUNet(batch.noise_BCHW + 2.0), batch) == pytest.approx(4.0, rel=1e-5)


def test_v_prediction_wants_the_velocity() -> None:
    batch = batch_of(4)
    scheduler = DDPMScheduler(num_train_timesteps=1000, beta_schedule="scaled_linear")
    alphas_B111 = scheduler.alphas_cumprod[batch.timesteps_B].view(-1, 1, 1, 1)
    velocity = alphas_B111.sqrt() * batch.noise_BCHW - (1 - alphas_B111).sqrt() * batch.latents_BCHW
    assert loss(RecordingUNet(velocity), batch, prediction_type="v_prediction") == pytest.approx(0.0, abs=1e-10)
    spec = TrainSpec(pretrained_model_name_or_path="base", dataset="ds_1")
    with pytest.raises(ValueError, match="sample"):
        Objective.of(spec, scheduler, prediction_type="sample")


def test_the_question_is_the_noisy_latents_with_sdxls_conditions_unrounded() -> None:
    batch = batch_of(4)
    unet = RecordingUNet(batch.noise_BCHW)
    loss(unet, batch)
    scheduler = DDPMScheduler(num_train_timesteps=1000, beta_schedule="scaled_linear")
    alphas_B111 = scheduler.alphas_cumprod[batch.timesteps_B].view(-1, 1, 1, 1)
    noisy = alphas_B111.sqrt() * batch.latents_BCHW + (1 - alphas_B111).sqrt() * batch.noise_BCHW
    torch.testing.assert_close(unet.asked["noisy"], noisy)
    assert unet.asked["added_cond_kwargs"]["time_ids"].dtype is torch.float32
    assert unet.asked["added_cond_kwargs"]["time_ids"][0].tolist() == [3001.0 + n for n in range(6)]
    assert torch.equal(unet.asked["added_cond_kwargs"]["text_embeds"], EMBEDDING.pooled_BP)


def test_prior_preservation_averages_the_halves_apart() -> None:
    batch = batch_of(4)
    wrong = batch.noise_BCHW.clone()
    wrong[:2] += 1.0
    wrong[2:] += 3.0
    assert loss(RecordingUNet(wrong), batch, prior=0.5) == pytest.approx(1.0 + 0.5 * 9.0, rel=1e-5)
    assert loss(RecordingUNet(wrong), batch) == pytest.approx(5.0, rel=1e-5)


# ---- weightings

TIMESTEPS_B = torch.tensor([0, 1, 200, 500, 999])


@pytest.mark.parametrize("prediction_type", ["epsilon", "v_prediction"])
def test_min_snr_as_in_the_paper(prediction_type: str) -> None:
    """min(SNR, 5) / SNR for noise, / (SNR + 1) for velocities; the SNR by diffusers' own function."""
    objective = objective_of(snr_gamma=5.0, prediction_type=prediction_type)
    snr_B = compute_snr(objective.scheduler, TIMESTEPS_B)
    wanted_B = snr_B.clamp(max=5.0) / (snr_B + (prediction_type == "v_prediction"))
    torch.testing.assert_close(objective.weight(TIMESTEPS_B), wanted_B, rtol=1e-3, atol=1e-6)
    weights = objective.weight(TIMESTEPS_B).tolist()
    if prediction_type == "epsilon":
        assert weights[0] < weights[2] < weights[-1] == 1.0


@pytest.mark.parametrize("prediction_type", ["epsilon", "v_prediction"])
def test_debiased_estimation_as_in_kohya(prediction_type: str) -> None:
    objective = objective_of(debiased_estimation_loss=True, prediction_type=prediction_type)
    snr_B = compute_snr(objective.scheduler, TIMESTEPS_B).clamp(max=1000.0)
    wanted_B = 1 / (snr_B + 1) if prediction_type == "v_prediction" else 1 / snr_B.sqrt()
    torch.testing.assert_close(objective.weight(TIMESTEPS_B), wanted_B, rtol=1e-3, atol=1e-6)


def test_each_picture_has_the_weight_of_its_own_timestep() -> None:
    batch = batch_of(4)
    wrong = batch.noise_BCHW.clone()
    wrong[0] += 2.0
    objective = objective_of(snr_gamma=5.0)
    weight = float(objective.weight(batch.timesteps_B)[0])
    assert weight < 0.5
    assert float(objective.loss(RecordingUNet(wrong), batch, EMBEDDING)) == pytest.approx(4.0 * weight / 4, rel=1e-5)


def test_loss_weight_is_one_at_every_timestep_by_default() -> None:
    assert objective_of().weight(TIMESTEPS_B).tolist() == [1.0] * 5


# ---- distances


@pytest.mark.parametrize(
    ("fields", "of_a_difference"),
    [
        ({"loss_type": "l1"}, lambda d, _: d),
        ({"loss_type": "l2"}, lambda d, _: d**2),
        ({"loss_type": "huber", "huber_schedule": "constant", "huber_c": 0.3}, lambda d, _: huber(d, 0.3)),
        ({"loss_type": "smooth_l1", "huber_schedule": "constant", "huber_c": 0.3}, lambda d, _: huber(d, 0.3) / 0.3),
        ({"loss_type": "huber", "huber_schedule": "exponential"}, lambda d, t: huber(d, 0.1 ** (t / 1000))),
        ({"loss_type": "huber"}, lambda d, t: huber(d, 0.9 / (1 + sigma(t)) ** 2 + 0.1)),
    ],
)
@pytest.mark.parametrize("difference", [0.01, 3.0])
def test_loss_types_and_huber_schedules_give_their_formulas(
    fields: dict[str, Any], of_a_difference: Callable[[float, int], float], difference: float
) -> None:
    batch = batch_of(2)
    wanted = sum(of_a_difference(difference, int(t)) for t in batch.timesteps_B) / 2
    found = objective_of(**fields).loss(RecordingUNet(batch.noise_BCHW + difference), batch, EMBEDDING)
    assert float(found) == pytest.approx(wanted, rel=1e-3)


def huber(difference: float, c: float) -> float:
    return 2 * c * ((difference**2 + c**2) ** 0.5 - c)


def sigma(timestep: int) -> float:
    return float(compute_snr(noise_schedule(), torch.tensor([timestep]))[0]) ** -0.5


def test_a_pseudo_huber_loss_forgives_what_is_far_off() -> None:
    near, far = (
        [
            float(
                objective_of(loss_type=kind).loss(RecordingUNet(batch_of(2).noise_BCHW + d), batch_of(2), EMBEDDING)
            )
            for kind in ("huber", "l2")
        ]
        for d in (0.01, 10.0)
    )
    assert near[0] == pytest.approx(near[1], rel=0.1)
    assert far[0] < 0.2 * far[1]


# ---- zero terminal SNR


def test_zero_terminal_snr_makes_last_timestep_pure_noise() -> None:
    objective = objective_of(rescale_betas_zero_snr=True, prediction_type="v_prediction", snr_gamma=5.0)
    assert float(objective.scheduler.alphas_cumprod[-1]) == pytest.approx(0.0, abs=1e-6)
    assert float(objective_of().scheduler.alphas_cumprod[-1]) > 1e-4
    batch = batch_of(2)
    last = NoisyBatch(
        latents_BCHW=batch.latents_BCHW,
        noise_BCHW=batch.noise_BCHW,
        timesteps_B=torch.tensor([999, 999]),
        time_ids_B6=batch.time_ids_B6,
    )
    unet = RecordingUNet(torch.zeros_like(batch.noise_BCHW))
    assert bool(torch.isfinite(objective.loss(unet, last, EMBEDDING)))
    torch.testing.assert_close(unet.asked["noisy"], batch.noise_BCHW, atol=2e-3, rtol=0)


def test_the_bases_own_schedule_is_left_alone() -> None:
    own = noise_schedule()
    assert objective_of(own).scheduler is own
    assert objective_of(own, rescale_betas_zero_snr=True, prediction_type="v_prediction").scheduler is not own
    assert not own.config.rescale_betas_zero_snr


@pytest.mark.parametrize("edm_style", [False, True])
def test_a_perturbed_input_is_shown_while_the_target_stays(edm_style: bool) -> None:
    noisy = NoisyBatch(
        latents_BCHW=torch.ones(2, 4, 2, 2),
        noise_BCHW=torch.zeros(2, 4, 2, 2),
        timesteps_B=torch.tensor([10, 500]),
        time_ids_B6=torch.zeros(2, 6),
    )
    shown_noise = normal(1, "perturbation", shape=(2, 4, 2, 2))
    perturbed = replace(noisy, shown_noise_BCHW=shown_noise)
    made = Objective(scheduler=DDPMScheduler(), prediction_type="epsilon", edm_style=edm_style)
    as_if = replace(noisy, noise_BCHW=shown_noise)
    assert torch.equal(made.question(perturbed), made.question(as_if))
    assert not torch.equal(made.question(perturbed), made.question(noisy))
    assert torch.equal(made.target(perturbed), made.target(noisy))
