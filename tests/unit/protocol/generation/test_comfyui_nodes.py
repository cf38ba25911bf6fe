"""Workflows hold to what ComfyUI's own nodes take. The facts here are of its `nodes.py`, apart from our tables."""

from collections.abc import Iterator
from typing import Any

import pytest

from giornata.protocol.generation.picture import PictureParams
from giornata.protocol.generation.schedulers import all_schedulers
from giornata.protocol.generation.texts.comfyui_workflow import comfyui_workflow

SHA = "0" * 64
TEXT = "a text"
"""An input that takes any text. Others take an output of a type, a number within bounds, or one of some words."""
COUNT, SEED, SIDE = (1, 10_000), (0, 2**64 - 1), (16, 8192)
SAMPLERS = frozenset(
    {
        *("euler", "euler_ancestral", "heun", "dpm_2", "dpm_2_ancestral", "lms", "ddim", "ddpm", "lcm", "deis"),
        *("dpmpp_sde", "dpmpp_2m", "dpmpp_2m_sde", "dpmpp_2m_sde_heun", "dpmpp_3m_sde", "uni_pc", "uni_pc_bh2"),
    }
)
SCHEDULES = frozenset(["simple", "sgm_uniform", "karras", "exponential", "ddim_uniform", "beta", "normal"])
SWITCH = frozenset({"enable", "disable"})
SAMPLED = {"model": "MODEL", "positive": "CONDITIONING", "negative": "CONDITIONING", "latent_image": "LATENT"}
CHOSEN = {"steps": COUNT, "cfg": (0, 100), "sampler_name": SAMPLERS, "scheduler": SCHEDULES}
NODES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "CheckpointLoaderSimple": ({"ckpt_name": TEXT}, ("MODEL", "CLIP", "VAE")),
    "VAELoader": ({"vae_name": TEXT}, ("VAE",)),
    "LoraLoader": (
        {
            **{"model": "MODEL", "clip": "CLIP", "lora_name": TEXT},
            **{"strength_model": (-20, 20), "strength_clip": (-20, 20)},
        },
        ("MODEL", "CLIP"),
    ),
    "CLIPSetLastLayer": ({"clip": "CLIP", "stop_at_clip_layer": (-24, -1)}, ("CLIP",)),
    "CLIPTextEncode": ({"clip": "CLIP", "text": TEXT}, ("CONDITIONING",)),
    "ControlNetLoader": ({"control_net_name": TEXT}, ("CONTROL_NET",)),
    "ControlNetApplyAdvanced": (
        {
            **{"positive": "CONDITIONING", "negative": "CONDITIONING", "control_net": "CONTROL_NET"},
            **{"image": "IMAGE", "strength": (0, 10), "start_percent": (0, 1), "end_percent": (0, 1)},
        },
        ("CONDITIONING", "CONDITIONING"),
    ),
    "EmptyLatentImage": ({"width": SIDE, "height": SIDE, "batch_size": (1, 64)}, ("LATENT",)),
    "LoadImage": ({"image": TEXT}, ("IMAGE", "MASK")),
    "LoadImageMask": ({"image": TEXT, "channel": frozenset({"alpha", "red", "green", "blue"})}, ("MASK",)),
    "VAEEncode": ({"pixels": "IMAGE", "vae": "VAE"}, ("LATENT",)),
    "SetLatentNoiseMask": ({"samples": "LATENT", "mask": "MASK"}, ("LATENT",)),
    "LatentUpscale": (
        {
            "samples": "LATENT",
            "upscale_method": frozenset({"nearest-exact", "bilinear", "area", "bicubic", "bislerp"}),
            **{"width": SIDE, "height": SIDE, "crop": frozenset({"disabled", "center"})},
        },
        ("LATENT",),
    ),
    "KSampler": ({**SAMPLED, **CHOSEN, "seed": SEED, "denoise": (0, 1)}, ("LATENT",)),
    "KSamplerAdvanced": (
        {
            **SAMPLED,
            **CHOSEN,
            **{"add_noise": SWITCH, "noise_seed": SEED, "return_with_leftover_noise": SWITCH},
            **{"start_at_step": (0, 10_000), "end_at_step": (0, 10_000)},
        },
        ("LATENT",),
    ),
    "VAEDecode": ({"samples": "LATENT", "vae": "VAE"}, ("IMAGE",)),
    "SaveImage": ({"images": "IMAGE", "filename_prefix": TEXT}, ()),
}


def faults_of(prompt: dict[str, Any]) -> Iterator[str]:
    """Yield what ComfyUI would refuse in a prompt of its API."""
    for number, node in prompt.items():
        if node["class_type"] not in NODES:
            yield f"{number}: there is no {node['class_type']}"
            continue
        wanted, _ = NODES[node["class_type"]]
        if set(node["inputs"]) != set(wanted):
            yield f"{number}: {sorted(set(node['inputs']) ^ set(wanted))}"
        for name, value in node["inputs"].items():
            if name in wanted and not fits(value, wanted[name], prompt):
                yield f"{number}: {name} is {value!r}"
    if not any(node["class_type"] == "SaveImage" for node in prompt.values()):
        yield "nothing is saved"


def fits(value: Any, wanted: Any, prompt: dict[str, Any]) -> bool:
    if isinstance(wanted, tuple):
        least, most = wanted
        return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
    if isinstance(wanted, frozenset):
        return value in wanted
    if wanted == TEXT:
        return isinstance(value, str) and value != ""
    source, slot = value
    _, outputs = NODES[prompt[source]["class_type"]]
    return outputs[slot] == wanted


def prompt_of(**changes: Any) -> dict[str, Any]:
    usual = {"model": {"name": "base"}, "prompt": "a (fox:1.2)", "negative_prompt": "rain", "width": 64, "height": 72}
    return comfyui_workflow(PictureParams.model_validate({**usual, "seed": 2**53 - 1, **changes})).as_prompt()


CONTROL = {"name": "net", "image": SHA, "weight": 10, "start": 0.25, "end": 1}
LORA = {"name": "ink", "weight": -10, "text_encoder_weight": 0.5}
LARGER = {"width": 2048, "height": 2048, "num_inference_steps": 150, "strength": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {"vae": {"name": "vae"}, "loras": [LORA, LORA], "clip_skip": 11, "controlnets": [CONTROL, CONTROL]},
        {"image": SHA, "mask": SHA, "strength": 0.3, "guidance_scale": 50},
        {"image": SHA},
        {"refiner": {"model": {"name": "refiner"}, "switch_at": 0.8}, "num_inference_steps": 150},
        {"high_resolution": LARGER, "guidance_scale": 0, "num_inference_steps": 1},
    ],
)
def test_every_mode_is_a_prompt_that_comfyui_takes(changes: dict[str, Any]) -> None:
    assert list(faults_of(prompt_of(**changes))) == []


@pytest.mark.parametrize("name", all_schedulers())
def test_every_scheduler_has_a_sampler_and_a_schedule_of_comfyui(name: str) -> None:
    assert list(faults_of(prompt_of(scheduler=name))) == []


def test_wrong_names_types_and_values_are_found() -> None:
    prompt = prompt_of()
    sampler = next(node["inputs"] for node in prompt.values() if node["class_type"] == "KSampler")
    sampler["scheduler"], sampler["positive"] = "linspace", sampler["model"]
    sampler["negativ"] = sampler.pop("negative")
    found = " ".join(faults_of(prompt))
    assert "scheduler is 'linspace'" in found and "positive is" in found and "negativ" in found
