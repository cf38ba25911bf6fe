"""Loads the frozen base model that adapters are trained on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from safetensors import SafetensorError
from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from giornata.diffusion.families import Family
from giornata.diffusion.hub import Hub, HuggingFaceHub, fetched_pipeline, fetched_vae, looks_like_path
from giornata.diffusion.model_folder import (
    FIELD,
    VAE_STEM,
    FolderFaults,
    check_model_folder,
    component_faults,
    family_of_folder,
    inspect_model_folder,
)
from giornata.domain.errors import Fault
from giornata.domain.reasons import Reason
from giornata.engine.workload import WorkloadFailed, in_short
from giornata.protocol.specs import TrainSpec, model_key

__all__ = ["BaseModel", "check_model_folder", "load_base"]

VAE_FIELD = "spec.pretrained_vae_model_name_or_path"
PREDICTIONS = ("epsilon", "v_prediction")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseModel:
    """A frozen base model: every module in eval mode, no parameter with a gradient.

    `key` is `giornata.protocol.specs.model_key` of the spec; `dtype` that of UNet and text encoders. The VAE's
    own dtype is `vae.dtype` (see `vae_dtype`).
    """

    family: Family
    unet: UNet2DConditionModel
    vae: AutoencoderKL
    text_encoders: tuple[CLIPTextModel | CLIPTextModelWithProjection, ...]
    tokenizers: tuple[CLIPTokenizer, ...]
    noise_scheduler: DDPMScheduler
    prediction_type: str
    key: str
    device: torch.device
    dtype: torch.dtype


def load_base(
    spec: TrainSpec, *, device: torch.device | str, dtype: torch.dtype, hub: Hub | None = None
) -> BaseModel:
    """Load the base that `spec` names onto `device`, from a folder or from `hub`.

    Raises WorkloadFailed: BAD_SPEC when there is no such model or none that can be trained, with all faults;
    NODE_DOWNLOAD when the hub is out of reach, or when files of this copy are cut short; NODE_DISK when the disk
    cannot be read.
    """
    hub = hub or HuggingFaceHub()
    device = torch.device(device)
    folder = _base_folder(spec, hub)
    _refuse(inspect_model_folder(folder, variant=spec.variant), folder)
    vae_folder = _vae_folder(spec, folder, hub)
    try:
        return _load(spec, folder, vae_folder, device, dtype)
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        if isinstance(error, RuntimeError) and _is_device_error(error):
            raise
        # Cut files were found before, so what does not load now will not load elsewhere either; unless it was
        # the disk: only the operating system's own errors carry a number.
        of_disk = isinstance(error, OSError) and error.errno is not None
        fault = Fault(where=FIELD, message=f"{folder} cannot be loaded: {error}", hint="is it a whole model?")
        raise WorkloadFailed(Reason.NODE_DISK if of_disk else Reason.BAD_SPEC, str(fault), (fault,)) from error


def vae_dtype(vae_config: dict[str, Any], dtype: torch.dtype) -> torch.dtype:
    """The precision the VAE runs in.

    SDXL's own VAE overflows in half precision and says so: `force_upcast` in its config. It then runs in fp32,
    in bf16 jobs too: bf16 does not overflow, but keeps 8 bits of each number, and since a picture is encoded
    once per job the exact encoding costs next to nothing. A VAE that was fixed for half precision has
    `force_upcast` false and follows the job. With mixed_precision "no" `dtype` is fp32 anyway.
    """
    return torch.float32 if vae_config.get("force_upcast", True) else dtype


def _base_folder(spec: TrainSpec, hub: Hub) -> Path:
    name = spec.pretrained_model_name_or_path
    local = Path(name).expanduser()
    if local.exists() or looks_like_path(name):
        return local
    return fetched_pipeline(hub, name, revision=spec.revision, variant=spec.variant, field=FIELD)


def _vae_folder(spec: TrainSpec, base: Path, hub: Hub) -> Path:
    name = spec.pretrained_vae_model_name_or_path
    if name is None:
        return base / "vae"
    local = Path(name).expanduser()
    folder = local if local.exists() or looks_like_path(name) else fetched_vae(hub, name, field=VAE_FIELD)
    if (folder / "vae" / "config.json").is_file():
        folder = folder / "vae"
    if not (folder / "config.json").is_file():
        hint = "give a hub id, or a folder with an AutoencoderKL in diffusers layout"
        fault = Fault(where=VAE_FIELD, message=f"{folder} holds no config.json of a VAE", hint=hint)
        _refuse(FolderFaults(layout=(fault,)), folder)
    layout, damage = component_faults(folder, stem=VAE_STEM, variant=None, field=VAE_FIELD)
    _refuse(FolderFaults(layout=tuple(layout), damage=tuple(damage)), folder)
    return folder


def _load(spec: TrainSpec, folder: Path, vae_folder: Path, device: torch.device, dtype: torch.dtype) -> BaseModel:
    files = {"use_safetensors": True, "local_files_only": True}
    scheduler = DDPMScheduler.from_pretrained(folder, subfolder="scheduler")
    vae_config = AutoencoderKL.load_config(vae_folder)
    family = family_of_folder(folder)
    _refuse(_semantic_faults(scheduler.config.prediction_type, vae_config, family), folder)
    vae = AutoencoderKL.from_pretrained(
        vae_folder,
        torch_dtype=vae_dtype(vae_config, dtype),
        variant=spec.variant if spec.pretrained_vae_model_name_or_path is None else None,
        **files,
    )
    common = {"torch_dtype": dtype, "variant": spec.variant, **files}
    unet = UNet2DConditionModel.from_pretrained(folder, subfolder="unet", **common)
    encoders = tuple(
        kind.from_pretrained(folder, subfolder=name, **_text_options(common))
        for kind, name in zip(family.encoder_classes(), family.encoder_names, strict=True)
    )
    for module in (unet, vae, *encoders):
        module.requires_grad_(False).eval().to(device)
    return BaseModel(
        family=family,
        unet=unet,
        vae=vae,
        text_encoders=encoders,
        tokenizers=tuple(CLIPTokenizer.from_pretrained(folder / each.tokenizer) for each in family.text_encoders),
        noise_scheduler=scheduler,
        prediction_type=scheduler.config.prediction_type,
        key=model_key("train", spec.model_dump()),
        device=device,
        dtype=dtype,
    )


def _text_options(common: dict[str, Any]) -> dict[str, Any]:
    """transformers says `dtype` where diffusers says `torch_dtype`."""
    return {"dtype": common["torch_dtype"], **{key: common[key] for key in common if key != "torch_dtype"}}


def _semantic_faults(prediction_type: str, vae_config: dict[str, Any], family: Family) -> FolderFaults:
    faults = []
    if prediction_type not in PREDICTIONS:
        message = f"the scheduler's prediction_type is {prediction_type!r}"
        faults.append(Fault(where=FIELD, message=message, hint="it has to be " + " or ".join(PREDICTIONS)))
    if vae_config.get("latent_channels") != 4 or len(vae_config.get("block_out_channels", ())) != 4:
        message = f"the VAE does not make 4 channels of an eighth of the picture's side, as {family.title}'s does"
        faults.append(Fault(where=VAE_FIELD, message=message, hint=f"use a VAE of {family.title}"))
    return FolderFaults(layout=tuple(faults))


def _refuse(faults: FolderFaults, folder: Path) -> None:
    """Raise for what was found, if anything. One layout fault makes it the job's fault, damaged or not."""
    found = tuple(faults)
    if not found:
        return
    reason = Reason.BAD_SPEC if faults.layout else Reason.NODE_DOWNLOAD
    raise WorkloadFailed(reason, f"{folder} cannot be used as a base model: {in_short(found)}", found)


def _is_device_error(error: RuntimeError) -> bool:
    """GPU faults and out of memory are for the workload to judge, not the model's fault."""
    return isinstance(error, torch.OutOfMemoryError) or "CUDA" in str(error)
