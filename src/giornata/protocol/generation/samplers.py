"""Samplers and noise schedules that A1111, ComfyUI and diffusers have in common. Data only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

Setting = str | int | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """A way to step. `schedules` are the noise schedules that its diffusers class can follow.

    `ancestral`: a step draws noise. `second_order`: most steps have two evaluations of the UNet, so the diffusers
    object has more timesteps than steps. `a1111` and `comfyui` are the names there; empty where there is none.
    """

    name: str
    class_name: str
    settings: Mapping[str, Setting] = field(default_factory=dict)
    ancestral: bool = False
    second_order: bool = False
    a1111: str = ""
    comfyui: str = ""
    also: tuple[str, ...] = ()
    schedules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseSchedule:
    """A way to place the noise levels of the steps."""

    name: str
    settings: Mapping[str, Setting]
    a1111: str
    comfyui: str
    also: tuple[str, ...] = ()


OWN = "normal"
SCHEDULES = {
    each.name: each
    for each in (
        NoiseSchedule(name=OWN, settings={}, a1111="Automatic", comfyui="normal", also=("automatic",)),
        NoiseSchedule(name="karras", settings={"use_karras_sigmas": True}, a1111="Karras", comfyui="karras"),
        NoiseSchedule(
            name="exponential", settings={"use_exponential_sigmas": True}, a1111="Exponential", comfyui="exponential"
        ),
        NoiseSchedule(name="beta", settings={"use_beta_sigmas": True}, a1111="Beta", comfyui="beta"),
        NoiseSchedule(
            name="sgm_uniform",
            settings={"timestep_spacing": "trailing"},
            a1111="SGM Uniform",
            comfyui="sgm_uniform",
            also=("simple", "trailing"),
        ),
        NoiseSchedule(
            name="ddim_uniform",
            settings={"timestep_spacing": "leading"},
            a1111="DDIM",
            comfyui="ddim_uniform",
            also=("leading",),
        ),
        NoiseSchedule(name="linspace", settings={"timestep_spacing": "linspace"}, a1111="Uniform", comfyui="normal"),
    )
}
SPACINGS = ("sgm_uniform", "ddim_uniform", "linspace")
SIGMAS = ("karras", "exponential", "beta")
EVERY = (*SIGMAS, *SPACINGS)
SAMPLERS = (
    Sampler(name="euler", class_name="EulerDiscreteScheduler", a1111="Euler", comfyui="euler", schedules=EVERY),
    Sampler(
        name="euler_ancestral",
        class_name="EulerAncestralDiscreteScheduler",
        ancestral=True,
        a1111="Euler a",
        comfyui="euler_ancestral",
        schedules=SPACINGS,
    ),
    Sampler(
        name="heun",
        class_name="HeunDiscreteScheduler",
        second_order=True,
        a1111="Heun",
        comfyui="heun",
        schedules=EVERY,
    ),
    Sampler(
        name="dpm_2",
        class_name="KDPM2DiscreteScheduler",
        second_order=True,
        a1111="DPM2",
        comfyui="dpm_2",
        schedules=EVERY,
    ),
    Sampler(
        name="dpm_2_ancestral",
        class_name="KDPM2AncestralDiscreteScheduler",
        ancestral=True,
        second_order=True,
        a1111="DPM2 a",
        comfyui="dpm_2_ancestral",
        schedules=EVERY,
    ),
    Sampler(
        name="dpmpp_2m",
        class_name="DPMSolverMultistepScheduler",
        settings={"algorithm_type": "dpmsolver++", "solver_order": 2},
        a1111="DPM++ 2M",
        comfyui="dpmpp_2m",
        schedules=EVERY,
    ),
    Sampler(
        name="dpmpp_2m_sde",
        class_name="DPMSolverMultistepScheduler",
        settings={"algorithm_type": "sde-dpmsolver++", "solver_order": 2},
        ancestral=True,
        a1111="DPM++ 2M SDE",
        comfyui="dpmpp_2m_sde",
        also=("dpmpp_2m_sde_gpu",),
        schedules=EVERY,
    ),
    Sampler(
        name="dpmpp_2m_sde_heun",
        class_name="DPMSolverMultistepScheduler",
        settings={"algorithm_type": "sde-dpmsolver++", "solver_order": 2, "solver_type": "heun"},
        ancestral=True,
        a1111="DPM++ 2M SDE Heun",
        comfyui="dpmpp_2m_sde_heun",
        also=("dpmpp_2m_sde_heun_gpu",),
        schedules=EVERY,
    ),
    Sampler(
        name="dpmpp_3m_sde",
        class_name="DPMSolverMultistepScheduler",
        settings={"algorithm_type": "sde-dpmsolver++", "solver_order": 3},
        ancestral=True,
        a1111="DPM++ 3M SDE",
        comfyui="dpmpp_3m_sde",
        also=("dpmpp_3m_sde_gpu",),
        schedules=EVERY,
    ),
    Sampler(
        name="dpmpp_sde",
        class_name="DPMSolverSinglestepScheduler",
        settings={"algorithm_type": "sde-dpmsolver++", "solver_order": 2},
        ancestral=True,
        a1111="DPM++ SDE",
        comfyui="dpmpp_sde",
        also=("dpmpp_sde_gpu",),
        schedules=SIGMAS,
    ),
    Sampler(
        name="dpmpp_2s",
        class_name="DPMSolverSinglestepScheduler",
        settings={"algorithm_type": "dpmsolver++", "solver_order": 2},
        also=("DPM++ 2S",),
        schedules=SIGMAS,
    ),
    Sampler(name="ddim", class_name="DDIMScheduler", a1111="DDIM", comfyui="ddim", schedules=SPACINGS),
    Sampler(name="ddpm", class_name="DDPMScheduler", ancestral=True, comfyui="ddpm", schedules=SPACINGS),
    Sampler(
        name="pndm",
        class_name="PNDMScheduler",
        settings={"skip_prk_steps": True},
        a1111="PLMS",
        also=("plms",),
        schedules=SPACINGS,
    ),
    Sampler(  # solver_type bh1 divides by zero at the last step of diffusers 0.42
        name="uni_pc",
        class_name="UniPCMultistepScheduler",
        settings={"solver_type": "bh2"},
        a1111="UniPC",
        comfyui="uni_pc",
        also=("unipc", "uni_pc_bh2"),
        schedules=EVERY,
    ),
    Sampler(name="lms", class_name="LMSDiscreteScheduler", a1111="LMS", comfyui="lms", schedules=EVERY),
    Sampler(name="deis", class_name="DEISMultistepScheduler", comfyui="deis", schedules=EVERY),
    Sampler(name="lcm", class_name="LCMScheduler", ancestral=True, a1111="LCM", comfyui="lcm", schedules=SPACINGS),
)
NOT_OFFERED: Mapping[str, str] = MappingProxyType(
    {
        "dpmpp_2s_ancestral": "diffusers has none; dpmpp_2s is the same method without noise",
        "dpmpp_2s_a": "diffusers has none; dpmpp_2s is the same method without noise",
        "dpm_adaptive": "diffusers has none, because its number of steps is not fixed; use dpmpp_2m",
        "dpm_fast": "diffusers has none; use dpmpp_2m",
        "restart": "diffusers has none; use dpmpp_2m_sde",
        "align_your_steps": "this noise schedule is not offered; use karras",
        "kl_optimal": "this noise schedule is not offered; use karras",
    }
)
"""Samplers and noise schedules of A1111 and ComfyUI that have no counterpart here, with what to use instead."""
