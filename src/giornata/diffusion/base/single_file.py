"""A base model in one `.safetensors` file, in the layout of the model's authors, as most fine-tunes are shared.

Such a file holds weights only. The family's published configs, which are shipped with the package
(`families/layouts`), describe the modules; the tokenizers' vocabulary is shipped too: nothing is fetched for it. The
conversion itself is diffusers' (`from_single_file`).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from torch import nn
from transformers import CLIPTokenizer

from giornata.diffusion.base.model_folder import FIELD, MASKED_CHANNELS, ONLY_THESE, FolderFaults, damaged
from giornata.diffusion.families import FAMILIES, LAYOUTS, Family
from giornata.diffusion.families.vocabulary import END, clip_tokenizer
from giornata.domain.errors import Fault

SHA256_FIELD = "spec.pretrained_model_sha256"
# Written by trainers of such fine-tunes into the file, as tensors without a meaning of their own.
VELOCITY_KEY, ZERO_SNR_KEY = "v_pred", "ztsnr"
HASHED_AT_ONCE_BYTES = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A base model's modules as they were loaded, on the CPU. `vae` is None when another one was wanted."""

    unet: Any
    vae: Any
    text_encoders: tuple[Any, ...]
    tokenizers: tuple[CLIPTokenizer, ...]
    noise_scheduler: DDPMScheduler


def inspect_single_file(
    path: Path, *, field: str = FIELD, own_vae: bool = True, inpainting: bool = False
) -> tuple[Family | None, FolderFaults]:
    """Return the family of a checkpoint, and everything that keeps it from being used. Reads the header only.

    Without `own_vae` the file need not hold one. With `inpainting` its UNet may take a mask.
    """
    if not path.is_file():
        hint = "give the path of a file on the node, or owner/name/file.safetensors on the hub"
        return None, FolderFaults(layout=(Fault(where=field, message=f"there is no file {path}", hint=hint),))
    if damage := damaged(path):
        return None, FolderFaults(damage=tuple(damage))
    shapes = _shapes(path)
    family = _nearest(shapes)
    faults = []
    lacking = [part for part, key in family.single_file_keys.items() if key not in shapes]
    if not own_vae:
        lacking = [part for part in lacking if part != "VAE"]
    if lacking:
        hint = f"a whole checkpoint holds UNet, VAE and text encoders; {ONLY_THESE}"
        message = f"{path.name} holds no {', no '.join(lacking)} of {family.title}"
        faults.append(Fault(where=field, message=message, hint=hint))
    first = shapes.get(family.input_key)
    allowed = {family.unet_settings["in_channels"], *([MASKED_CHANNELS] if inpainting else [])}
    if first is not None and first[1] not in allowed:
        message = f"the UNet in {path.name} takes {first[1]} channels, where {family.title} has 4"
        faults.append(Fault(where=field, message=message, hint="inpainting models cannot be trained"))
    return family, FolderFaults(layout=tuple(faults))


def sha256_faults(path: Path, expected: str | None) -> list[Fault]:
    """Return a fault when the file's content is not the expected one. Reads all of it."""
    if expected is None:
        return []
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(HASHED_AT_ONCE_BYTES):
            digest.update(chunk)
    if digest.hexdigest() == expected:
        return []
    message = f"{path.name} has the sha256 {digest.hexdigest()}, not {expected}"
    return [Fault(where=SHA256_FIELD, message=message, hint="give the right hash, or the file that has this one")]


def load_single_file(
    path: Path,
    family: Family,
    *,
    dtype: torch.dtype,
    vae_dtype: torch.dtype | None,
    layouts: Path = LAYOUTS,
) -> Parts:
    """Load a checkpoint that was found to be fine; `dtype` is that of UNet and text encoders, and with `vae_dtype`
    None its VAE is left alone. `layouts` holds a folder of configs for each family, by its name.

    Raises ValueError when weights are missing, and what diffusers raises when they do not fit the configs.
    """
    layout = layouts / family.name
    given = {"config": str(layout), "local_files_only": True}
    tokenizers = _tokenizers(family, layout)
    named: dict[str, Any] = {
        each.tokenizer: tokenizer for each, tokenizer in zip(family.text_encoders, tokenizers, strict=True)
    }
    vae = None
    try:
        if vae_dtype is not None:
            vae = AutoencoderKL.from_single_file(str(path), subfolder="vae", torch_dtype=vae_dtype, **given)
        if _input_channels(path, family) == MASKED_CHANNELS:  # the layout's config is that of a UNet without a mask
            options = {"subfolder": "unet", "torch_dtype": dtype, "in_channels": MASKED_CHANNELS, **given}
            named["unet"] = UNet2DConditionModel.from_single_file(str(path), **options)
        pipeline = family.pipeline_class().from_single_file(
            str(path), torch_dtype=dtype, vae=vae or _no_vae(), **named, **given, **family.pipeline_options
        )
    except NotImplementedError as error:  # weights that the file does not hold were given no memory
        raise ValueError("it lacks some of the model's weights") from error
    encoders = tuple(getattr(pipeline, name) for name in family.encoder_names)
    _refuse_missing(dict(zip(family.encoder_names, encoders, strict=True)))
    return Parts(
        unet=pipeline.unet,
        vae=vae,
        text_encoders=encoders,
        tokenizers=tokenizers,
        noise_scheduler=_scheduler(layout, _shapes(path)),
    )


def layout_vae_config(family: Family, layouts: Path = LAYOUTS) -> dict[str, Any]:
    """Return the config of the family's own VAE."""
    config: dict[str, Any] = AutoencoderKL.load_config(layouts / family.name / "vae")
    return config


def _input_channels(path: Path, family: Family) -> int | None:
    shape = _shapes(path).get(family.input_key)
    return None if shape is None else shape[1]


def _no_vae() -> AutoencoderKL:
    """Return an empty VAE: the pipeline wants one, if only to be put together; its weights take no memory."""
    with torch.device("meta"):
        return AutoencoderKL(block_out_channels=(32,) * 4)


def _tokenizers(family: Family, layout: Path) -> tuple[CLIPTokenizer, ...]:
    """Return the tokenizers of the layout's folder where it has some, else the published ones. The second of two is
    padded with an exclamation mark."""
    pads = (END, "!")
    return tuple(
        CLIPTokenizer.from_pretrained(layout / each.tokenizer)
        if (layout / each.tokenizer).is_dir()
        else clip_tokenizer(pad_token=pad)
        for each, pad in zip(family.text_encoders, pads, strict=False)
    )


def _scheduler(layout: Path, shapes: Mapping[str, list[int]]) -> DDPMScheduler:
    scheduler = DDPMScheduler.from_pretrained(layout / "scheduler")
    if VELOCITY_KEY not in shapes:
        return scheduler
    changes = {"prediction_type": "v_prediction", "rescale_betas_zero_snr": ZERO_SNR_KEY in shapes}
    return DDPMScheduler.from_config(scheduler.config, **changes)


def _refuse_missing(modules: Mapping[str, nn.Module]) -> None:
    """Raise ValueError for weights that the file lacks: diffusers silently accepts a text encoder without them."""
    missing = [
        f"{part}.{name}"
        for part, module in modules.items()
        for name, parameter in module.named_parameters()
        if parameter.is_meta
    ]
    if missing:
        raise ValueError(f"it lacks {len(missing)} of the model's weights, first {missing[0]}")


def _nearest(shapes: Mapping[str, list[int]]) -> Family:
    """Return the family with the largest share of its telling tensors in the file."""
    return max(FAMILIES, key=lambda family: _share(family, shapes))


def _share(family: Family, shapes: Mapping[str, list[int]]) -> float:
    keys = family.single_file_keys.values()
    return sum(key in shapes for key in keys) / len(keys)


def _shapes(path: Path) -> dict[str, list[int]]:
    """Return the shape of each tensor of a safetensors file that is whole."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
