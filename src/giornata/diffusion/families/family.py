"""The differences between kinds of base models, as data. Standard library only: loads no torch.

All of the training code is the same for every family. Where families differ, the code asks the base model's family
rather than its name.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Naming = Callable[..., str]
"""(layer, *, layers_per_block) → kohya's name; raises KeyError for a layer that the family does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEncoder:
    """One text encoder: its folder in diffusers layout, its tokenizer's, and its class in transformers."""

    folder: str
    tokenizer: str
    class_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A kind of base model.

    `hidden_layer` is which of a text encoder's hidden states conditions the UNet, counted as in transformers'
    `hidden_states`; None is its last one after the final norm. With `pooled`, the last text encoder also gives a
    pooled, projected output, which goes into the UNet together with the picture's sizes (micro-conditioning).

    `unet_settings` is what the UNet's config has to say; a setting that is not in the file counts as None or False.
    `single_file_keys` maps each part of a single-file checkpoint, in the layout of the model's authors, to a tensor
    that shows that the part is there. `input_key` is the UNet's first convolution in it. `hub_tags` are what model
    hubs find its LoRAs by. With `force_zeros_for_empty_prompt` the pipeline takes zeros where no negative prompt is
    given.
    """

    name: str
    title: str
    pipeline: str
    pipelines: frozenset[str]
    pipeline_options: Mapping[str, Any]
    text_encoders: tuple[TextEncoder, ...]
    hidden_layer: int | None
    pooled: bool
    unet_settings: Mapping[str, Any]
    guidance_scale: float
    kohya_name: Naming
    base_model_version: str
    architecture: str
    implementation: str
    hub_tags: tuple[str, ...]
    single_file_keys: Mapping[str, str]
    input_key: str = "model.diffusion_model.input_blocks.0.0.weight"
    download_options: Mapping[str, Any] = field(default_factory=dict)
    force_zeros_for_empty_prompt: bool = False

    @property
    def encoder_names(self) -> tuple[str, ...]:
        """Return the text encoders' folders, which are also the prefixes of their adapters' names."""
        return tuple(each.folder for each in self.text_encoders)

    @property
    def components(self) -> tuple[str, ...]:
        """Return the folders that a model of this family has to have."""
        tokenizers = tuple(each.tokenizer for each in self.text_encoders)
        return ("unet", "vae", *self.encoder_names, *tokenizers, "scheduler")

    @property
    def weight_stems(self) -> dict[str, str]:
        """Map the folder of each component with weights to its weight file's name, without variant and suffix."""
        stem = "diffusion_pytorch_model"
        return {"unet": stem, "vae": stem} | dict.fromkeys(self.encoder_names, "model")

    def pipeline_class(self) -> Any:
        """Return the pipeline class of diffusers for this family."""
        return getattr(importlib.import_module("diffusers"), self.pipeline)

    def encoder_classes(self) -> tuple[Any, ...]:
        """Return transformers' classes, in the order of `text_encoders`."""
        library = importlib.import_module("transformers")
        return tuple(getattr(library, each.class_name) for each in self.text_encoders)

    def assemble(
        self, *, unet: Any, vae: Any, text_encoders: tuple[Any, ...], tokenizers: tuple[Any, ...], scheduler: Any
    ) -> Any:
        """Assemble a pipeline of modules that are loaded already."""
        parts: dict[str, Any] = {"unet": unet, "vae": vae, "scheduler": scheduler}
        for each, encoder, tokenizer in zip(self.text_encoders, text_encoders, tokenizers, strict=True):
            parts |= {each.folder: encoder, each.tokenizer: tokenizer}
        return self.pipeline_class()(**parts, **self.pipeline_options)

    def load_pipeline(self, folder: Path, *, dtype: Any) -> Any:
        """Load the whole pipeline of a folder in diffusers layout, as a user would load it."""
        options = {"torch_dtype": dtype, "use_safetensors": True, "local_files_only": True}
        return self.pipeline_class().from_pretrained(folder, **options, **self.pipeline_options)
