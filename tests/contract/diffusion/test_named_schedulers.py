"""Every scheduler of the table is one that diffusers makes from the configs of SDXL and SD 1.5."""

import diffusers
import pytest
import torch
from diffusers import SchedulerMixin

from giornata.diffusion.sampling.row_schedule import RowSchedule, make_scheduler
from giornata.protocol.generation.samplers import SAMPLERS
from giornata.protocol.generation.schedulers import NamedScheduler, all_schedulers

SDXL = {
    "num_train_timesteps": 100,  # SDXL has 1000, which takes some classes long to set up
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "prediction_type": "epsilon",
    "timestep_spacing": "leading",
    "steps_offset": 1,
}
SD15 = {**SDXL, "set_alpha_to_one": False, "skip_prk_steps": True, "clip_sample": False}
STEPS = 5
PLAIN = [sampler.name for sampler in SAMPLERS]
CASES = [*((name, SDXL) for name in all_schedulers()), *((name, SD15) for name in PLAIN)]


def made(named: NamedScheduler, config: dict[str, object]) -> SchedulerMixin:
    return getattr(diffusers, named.class_name).from_config({**config, **named.settings})


@pytest.mark.parametrize(("name", "config"), CASES)
def test_scheduler_takes_its_settings_and_denoises(name: str, config: dict[str, object]) -> None:
    named = all_schedulers()[name]
    scheduler = made(named, config)
    assert {key: scheduler.config[key] for key in named.settings} == dict(named.settings)
    assert not [key for key in scheduler.config["_use_default_values"] if key in named.settings]
    scheduler.set_timesteps(STEPS)
    evaluations = 2 * STEPS - 1 if named.second_order else STEPS + (named.class_name == "PNDMScheduler")
    assert len(scheduler.timesteps) == evaluations
    sample_NCHW = torch.randn(1, 4, 4, 4, generator=torch.Generator().manual_seed(1)) * scheduler.init_noise_sigma
    drew = draws_noise(scheduler, sample_NCHW)
    assert drew == named.ancestral


def draws_noise(scheduler: SchedulerMixin, sample_NCHW: torch.Tensor) -> bool:
    """Step through all timesteps with an invented prediction; say whether a generator was used."""
    generator = torch.Generator().manual_seed(2)
    before = generator.get_state()
    takes = {"generator": generator} if "generator" in scheduler.step.__code__.co_varnames else {}
    for timestep in scheduler.timesteps:
        scaled_NCHW = scheduler.scale_model_input(sample_NCHW, timestep)
        sample_NCHW = scheduler.step(scaled_NCHW * 0.1, timestep, sample_NCHW, **takes).prev_sample
        assert torch.isfinite(sample_NCHW).all()
    return not torch.equal(before, generator.get_state())


BEGIN = 2


def test_lms_of_diffusers_is_wrong_after_the_first_step() -> None:
    """If this fails, diffusers counts derivatives: `RowSchedule` needs no order of its own any more."""
    scheduler, sample_NCHW, constant_NCHW = _lms_with_a_constant_derivative()
    scheduler.set_begin_index(BEGIN)
    moved_NCHW = sample_NCHW
    for timestep in scheduler.timesteps[BEGIN:]:
        scheduler.scale_model_input(moved_NCHW, timestep)
        moved_NCHW = scheduler.step(constant_NCHW, timestep, moved_NCHW).prev_sample

    exact_NCHW = sample_NCHW - scheduler.sigmas[BEGIN] * constant_NCHW
    assert (moved_NCHW - exact_NCHW).abs().max() > 0.05


def test_lms_in_the_middle_integrates_a_constant_derivative_exactly() -> None:
    scheduler, sample_NCHW, constant_NCHW = _lms_with_a_constant_derivative()
    strength = 1 - BEGIN / STEPS
    schedule = RowSchedule.by_strength(scheduler, STEPS, strength, generator=torch.Generator())
    moved_NCHW = sample_NCHW
    while not schedule.is_done:
        schedule.model_input(moved_NCHW)
        moved_NCHW = schedule.step(constant_NCHW, moved_NCHW)

    exact_NCHW = sample_NCHW - scheduler.sigmas[BEGIN] * constant_NCHW
    torch.testing.assert_close(moved_NCHW, exact_NCHW, atol=1e-5, rtol=1e-5)


def _lms_with_a_constant_derivative() -> tuple[SchedulerMixin, torch.Tensor, torch.Tensor]:
    """A scheduler, a sample and a prediction of noise that stays the same: then each step is exact, of any order."""
    scheduler = make_scheduler(SDXL, "LMSDiscreteScheduler", {})
    scheduler.set_timesteps(STEPS)
    generator = torch.Generator().manual_seed(1)
    return scheduler, torch.randn(1, 4, 4, 4, generator=generator), torch.randn(1, 4, 4, 4, generator=generator)
