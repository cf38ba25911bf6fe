"""Every scheduler of the table is one that diffusers makes from the configs of SDXL and SD 1.5."""

import diffusers
import pytest
import torch
from diffusers import SchedulerMixin

from giornata.protocol.generation.schedulers import NamedScheduler, all_schedulers

SDXL = {
    "num_train_timesteps": 1000,
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "prediction_type": "epsilon",
    "timestep_spacing": "leading",
    "steps_offset": 1,
}
SD15 = {**SDXL, "set_alpha_to_one": False, "skip_prk_steps": True, "clip_sample": False}
STEPS = 7


def made(named: NamedScheduler, config: dict[str, object]) -> SchedulerMixin:
    return getattr(diffusers, named.class_name).from_config({**config, **named.settings})


@pytest.mark.parametrize("config", [SDXL, SD15], ids=["sdxl", "sd15"])
@pytest.mark.parametrize("name", all_schedulers())
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
