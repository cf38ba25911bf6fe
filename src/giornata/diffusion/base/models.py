"""Loads the frozen base model that adapters are trained on."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from safetensors import SafetensorError
from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer
from transformers.utils import logging

from giornata.diffusion.base.hub import HuggingFaceHub, ModelHub, fetched_file, fetched_pipeline, fetched_vae
from giornata.diffusion.base.model_folder import (
    FIELD,
    VAE_STEM,
    FolderFaults,
    check_model_folder,
    component_faults,
    family_of_folder,
    inspect_model_folder,
)
from giornata.diffusion.base.single_file import (
    SHA256_FIELD,
    Parts,
    inspect_single_file,
    layout_vae_config,
    load_single_file,
    sha256_faults,
)
from giornata.diffusion.families import LAYOUTS, SD15, Family
from giornata.domain.errors import Fault, WorkloadFailed, in_short
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.specs import TrainSpec, model_key
from giornata.protocol.training.model_names import hub_file, is_single_file, looks_like_path

__all__ = ["BaseModel", "ModelLocation", "check_model_folder", "load_base", "load_model"]

VAE_FIELD = "spec.pretrained_vae_model_name_or_path"
PREDICTIONS = ("epsilon", "v_prediction")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseModel:
    """A frozen base model: every module in eval mode, no parameter with a gradient.

    `key` is `giornata.protocol.specs.model_key` of the spec; `dtype` that of UNet and text encoders. The VAE's
    own dtype is `vae.dtype` (see `vae_dtype`). With `half_vae` nothing says that the VAE overflows in half precision.
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
    half_vae: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLocation:
    """The place of a base model: a name, as `TrainSpec.pretrained_model_name_or_path` has it, or a file.

    `path` and `vae_path` are verified `.safetensors` files on this machine; then the names are words for faults only.
    `key` becomes that of the base. Faults are at `field` and `vae_field`. With `refiner` a folder may hold SDXL's
    refiner, and with `inpainting` the UNet may take a mask.
    """

    name: str
    key: str
    revision: str | None = None
    variant: str | None = None
    sha256: str | None = None
    vae: str | None = None
    path: Path | None = None
    vae_path: Path | None = None
    field: str = FIELD
    vae_field: str = VAE_FIELD
    refiner: bool = False
    inpainting: bool = False

    @classmethod
    def of(cls, spec: TrainSpec) -> Self:
        """Return the source that a training job names."""
        return cls(
            name=spec.pretrained_model_name_or_path,
            key=model_key("train", spec.model_dump()),
            revision=spec.revision,
            variant=spec.variant,
            sha256=spec.pretrained_model_sha256,
            vae=spec.pretrained_vae_model_name_or_path,
        )


def load_base(
    spec: TrainSpec,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    hub: ModelHub | None = None,
    layouts: Path = LAYOUTS,
    path: Path | None = None,
) -> BaseModel:
    """Load the base that a training job names, from `path` if the file came with the lease. Otherwise as
    `load_model`."""
    source = replace(ModelLocation.of(spec), path=path)
    return load_model(source, device=device, dtype=dtype, hub=hub, layouts=layouts)


def load_model(
    source: ModelLocation,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    hub: ModelHub | None = None,
    layouts: Path = LAYOUTS,
) -> BaseModel:
    """Load a base model onto `device`, from a folder, a single file or from `hub`.

    `layouts` holds the configs of single files (see giornata.diffusion.base.single_file). Raises WorkloadFailed:
    BAD_SPEC when there is no such model, none that can be trained, or not the content asked for, with all faults;
    NODE_DOWNLOAD when the hub is out of reach, or when files of this copy are cut short; NODE_DISK when the disk
    cannot be read.
    """
    logging.disable_progress_bar()  # its bars would be lines of the job's log
    hub = hub or HuggingFaceHub()
    place = _located(source, hub)
    family = _inspected(source, place)
    vae_place = _vae_place(source, hub)
    try:
        vae = None if vae_place is None else _load_other_vae(vae_place, family, dtype, layouts)
        load = _parts_of_file if place.is_file() else _parts_of_folder
        parts = load(place, family, dtype, own_vae=vae is None, variant=source.variant, layouts=layouts)
        vae = parts.vae if vae is None else vae
        half_vae = family is SD15 or (place if vae_place is None else vae_place).is_file()
        frozen = _frozen(source, family, parts, vae=vae, device=torch.device(device), dtype=dtype)
        return replace(frozen, half_vae=half_vae)
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        if isinstance(error, RuntimeError) and _is_device_error(error):
            raise
        # Cut files were found before, so what does not load now will not load elsewhere either; unless it was
        # the disk: only the operating system's own errors carry a number.
        of_disk = isinstance(error, OSError) and error.errno is not None
        fault = Fault(where=source.field, message=f"{place} cannot be loaded: {error}", hint="is it a whole model?")
        raise WorkloadFailed(Reason.NODE_DISK if of_disk else Reason.BAD_SPEC, str(fault), (fault,)) from error


def vae_dtype(vae_config: dict[str, Any], dtype: torch.dtype) -> torch.dtype:
    """Return the precision the VAE runs in.

    SDXL's own VAE overflows in half precision and says so: `force_upcast` in its config. It then runs in fp32,
    in bf16 jobs too: bf16 does not overflow, but keeps 8 bits of each number, and since a picture is encoded
    once per job the exact encoding costs next to nothing. A VAE that was fixed for half precision has
    `force_upcast` false and follows the job. With mixed_precision "no" `dtype` is fp32 anyway.

    Where the config says nothing, as that of SD 1.5, and where there is none, as of a file, it is fp32 too. Pictures
    are then decoded in half precision if that goes well (giornata.diffusion.sampling.picture_decoder).
    """
    return torch.float32 if vae_config.get("force_upcast", True) else dtype


def _located(source: ModelLocation, hub: ModelHub) -> Path:
    """Return the folder or the file of the base model on this machine, or a path where nothing lies."""
    if source.path is not None:
        return source.path
    name = source.name
    local = Path(name).expanduser()
    if local.exists():
        return local
    if (file := hub_file(name)) is not None:
        return fetched_file(hub, file, revision=file.revision or source.revision, field=source.field)
    if looks_like_path(name) or is_single_file(name):
        return local
    return fetched_pipeline(hub, name, revision=source.revision, variant=source.variant, field=source.field)


def _inspected(source: ModelLocation, place: Path) -> Family:
    """Return the family of the model that lies there. Raises WorkloadFailed with all that is wrong with it."""
    if place.is_dir() or not is_single_file(place.name):
        if source.sha256 is not None:
            message = "applies only to a single .safetensors file, or a registered model"
            _refuse(FolderFaults(layout=(Fault(where=SHA256_FIELD, message=message, hint="leave it out"),)), place)
        allowed = {"refiner": source.refiner, "inpainting": source.inpainting}
        _refuse(inspect_model_folder(place, variant=source.variant, field=source.field, **allowed), place)
        return family_of_folder(place, refiner=source.refiner)
    family, faults = inspect_single_file(
        place, field=source.field, own_vae=source.vae is None, inpainting=source.inpainting
    )
    if not faults.damage and place.is_file():
        wrong = sha256_faults(place, source.sha256)
        faults = FolderFaults(layout=(*faults.layout, *wrong), damage=faults.damage)
    _refuse(faults, place)
    if family is None:
        raise ValueError(f"{place} has no fault and no family")
    return family


def _vae_place(source: ModelLocation, hub: ModelHub) -> Path | None:
    """Return the folder or the file of another VAE; None when the model's own is wanted."""
    name = source.vae
    if name is None or source.vae_path is not None:
        return source.vae_path
    local = Path(name).expanduser()
    folder = local if local.exists() or looks_like_path(name) else fetched_vae(hub, name, field=source.vae_field)
    if (folder / "vae" / "config.json").is_file():
        folder = folder / "vae"
    if not (folder / "config.json").is_file():
        hint = "give a hub id, or a folder with an AutoencoderKL in diffusers layout"
        fault = Fault(where=source.vae_field, message=f"{folder} holds no config.json of a VAE", hint=hint)
        _refuse(FolderFaults(layout=(fault,)), folder)
    layout, damage = component_faults(folder, stem=VAE_STEM, variant=None, field=source.vae_field)
    _refuse(FolderFaults(layout=tuple(layout), damage=tuple(damage)), folder)
    return folder


def _load_other_vae(place: Path, family: Family, dtype: torch.dtype, layouts: Path) -> AutoencoderKL:
    if not place.is_file():
        return _load_vae(place, family, dtype, variant=None)
    options = {"config": str(layouts / family.name), "subfolder": "vae", "local_files_only": True}
    own = vae_dtype(layout_vae_config(family, layouts), dtype)
    return AutoencoderKL.from_single_file(str(place), torch_dtype=own, **options)


def _load_vae(folder: Path, family: Family, dtype: torch.dtype, *, variant: str | None) -> AutoencoderKL:
    config = AutoencoderKL.load_config(folder)
    if config.get("latent_channels") != 4 or len(config.get("block_out_channels", ())) != 4:
        message = f"the VAE does not make 4 channels of an eighth of the picture's side, as {family.title}'s does"
        fault = Fault(where=VAE_FIELD, message=message, hint=f"use a VAE of {family.title}")
        _refuse(FolderFaults(layout=(fault,)), folder)
    options = {"variant": variant, "use_safetensors": True, "local_files_only": True}
    return AutoencoderKL.from_pretrained(folder, torch_dtype=vae_dtype(config, dtype), **options)


def _parts_of_file(
    path: Path, family: Family, dtype: torch.dtype, *, own_vae: bool, variant: str | None, layouts: Path
) -> Parts:
    del variant
    own = vae_dtype(layout_vae_config(family, layouts), dtype) if own_vae else None
    return load_single_file(path, family, dtype=dtype, vae_dtype=own, layouts=layouts)


def _parts_of_folder(
    folder: Path, family: Family, dtype: torch.dtype, *, own_vae: bool, variant: str | None, layouts: Path
) -> Parts:
    del layouts
    _refuse(_schedule_faults(DDPMScheduler.load_config(folder, subfolder="scheduler")), folder)
    scheduler = DDPMScheduler.from_pretrained(folder, subfolder="scheduler")
    _refuse(_prediction_faults(scheduler), folder)
    vae = _load_vae(folder / "vae", family, dtype, variant=variant) if own_vae else None
    common = {"torch_dtype": dtype, "variant": variant, "use_safetensors": True, "local_files_only": True}
    encoders = tuple(
        kind.from_pretrained(folder, subfolder=name, **_text_options(common))
        for kind, name in zip(family.encoder_classes(), family.encoder_names, strict=True)
    )
    return Parts(
        unet=UNet2DConditionModel.from_pretrained(folder, subfolder="unet", **common),
        vae=vae,
        text_encoders=encoders,
        tokenizers=tuple(CLIPTokenizer.from_pretrained(folder / each.tokenizer) for each in family.text_encoders),
        noise_scheduler=scheduler,
    )


def _frozen(
    source: ModelLocation, family: Family, parts: Parts, *, vae: Any, device: torch.device, dtype: torch.dtype
) -> BaseModel:
    for module in (parts.unet, vae, *parts.text_encoders):
        off_the_file(module.requires_grad_(False).eval().to(device))
    return BaseModel(
        family=family,
        unet=parts.unet,
        vae=vae,
        text_encoders=parts.text_encoders,
        tokenizers=parts.tokenizers,
        noise_scheduler=parts.noise_scheduler,
        prediction_type=parts.noise_scheduler.config.prediction_type,
        key=source.key,
        device=device,
        dtype=dtype,
    )


def off_the_file(module: torch.nn.Module) -> None:
    """Copy weights that still lie in a mapped file into memory of their own.

    There they would change with the file; and where they begin in it, which is not always a multiple of a vector's
    width, decides how a CPU multiplies them: the same weights saved anew would give other bits.
    """
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.device.type == "cpu":
            tensor.data = tensor.data.clone()


def _text_options(common: dict[str, Any]) -> dict[str, Any]:
    """Return the options in the words of transformers, which says `dtype` where diffusers says `torch_dtype`."""
    return {"dtype": common["torch_dtype"], **{key: common[key] for key in common if key != "torch_dtype"}}


def _schedule_faults(config: dict[str, Any]) -> FolderFaults:
    """Return a fault for a model of EDM's formulation (Karras et al., 2022). Such a model was taught other noise, and
    another answer to it, than its config would mean here; Playground 2.5 is one."""
    name = str(config.get("_class_name"))
    if not name.startswith("EDM"):
        return FolderFaults()
    message = f"the scheduler is {name}: the model was trained in EDM's formulation, with other noise"
    hint = "choose a base that predicts epsilon or velocities; do_edm_style_training is for those too"
    return FolderFaults(layout=(Fault(where=FIELD, message=message, hint=hint),))


def _prediction_faults(scheduler: DDPMScheduler) -> FolderFaults:
    found = scheduler.config.prediction_type
    if found in PREDICTIONS:
        return FolderFaults()
    hint = "it has to be " + " or ".join(PREDICTIONS)
    message = f"the scheduler's prediction_type is {found!r}"
    return FolderFaults(layout=(Fault(where=FIELD, message=message, hint=hint),))


def _refuse(faults: FolderFaults, folder: Path) -> None:
    """Raise WorkloadFailed for the faults found, if any. One layout fault makes it the job's fault, damaged or
    not."""
    found = tuple(faults)
    if not found:
        return
    reason = Reason.BAD_SPEC if faults.layout else Reason.NODE_DOWNLOAD
    raise WorkloadFailed(reason, f"{folder} cannot be used as a base model: {in_short(found)}", found)


def _is_device_error(error: RuntimeError) -> bool:
    """Return True for GPU faults and out of memory: these are for the workload to judge, not the model's fault."""
    return isinstance(error, torch.OutOfMemoryError) or "CUDA" in str(error)
