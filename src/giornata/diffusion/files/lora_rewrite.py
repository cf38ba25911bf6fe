"""Writes LoRA files that were resized or merged: their tensors, and metadata that are true of the new file.

A diffusers file says rank and alpha in its metadata, a kohya file in `ss_` fields and in `….alpha`. The other fields
are those of the files before, and MADE_FROM names these files.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from giornata.diffusion.files.kohya_file import ALPHA, PARTS
from giornata.diffusion.files.lora_algebra import Cut, LoraFactors, Method
from giornata.diffusion.files.lora_file import LoraFile
from giornata.diffusion.tensor_file import (
    canonical_json,
    data_sha256,
    safetensors_bytes,
    sha256_of_file,
    write_durably,
)
from giornata.domain.errors import Fault, InvalidInput

CONFIG_KEY = "lora_adapter_metadata"
MADE_FROM = "giornata.made_from"
TAGS = "ss_tag_frequency"
TRIGGER = "modelspec.trigger_phrase"
MOST_TAGS = 10
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
SHOWN = {
    "title": ("modelspec.title", "ss_output_name"),
    "base": ("ss_sd_model_name", "modelspec.implementation_base"),
    "base version": ("ss_base_model_version",),
    "architecture": ("modelspec.architecture",),
    "trigger": ("modelspec.trigger_phrase",),
    "resolution": ("modelspec.resolution", "ss_resolution"),
    "prediction": ("modelspec.prediction_type",),
    "steps": ("ss_steps",),
    "pictures": ("ss_num_train_images",),
    "learning rate": ("ss_learning_rate",),
    "optimizer": ("ss_optimizer",),
    "seed": ("ss_seed",),
    "merged from": ("modelspec.merged_from",),
    "spec": ("giornata.spec_sha256",),
    "dataset": ("giornata.dataset_sha256",),
    "base hash": ("giornata.base_sha256",),
    "base file": ("ss_new_sd_model_hash", "ss_sd_model_hash"),
}


def write_lora_file(
    path: Path,
    naming: str,
    layers: Mapping[str, LoraFactors],
    others: Mapping[str, torch.Tensor],
    metadata: Mapping[str, str],
    *,
    dtype: torch.dtype,
    alpha: float | None = None,
) -> Path:
    """Write the layers in `dtype`. Ranks may differ from layer to layer; alpha is one for all of them, by default the
    largest there is: diffusers (0.42) passes over alphas of single attention layers in kohya's files.

    The fields that tell of ranks, alphas and bytes are made anew; all others of `metadata` stay.
    Raises InvalidInput when a value is not finite in `dtype`.
    """
    largest = max((layer.scale * layer.rank for layer in layers.values()), default=1.0)
    common = alpha if alpha is not None else largest if largest > 0 else 1.0
    scaled = {name: layer.with_alpha(common) for name, layer in layers.items()}
    content, faults = dict(others), []
    for name, layer in scaled.items():
        pair = {".lora_A.weight": layer.down.to(dtype), ".lora_B.weight": layer.up.to(dtype)}
        if not all(bool(torch.isfinite(tensor).all()) for tensor in pair.values()):
            faults.append(Fault(where=name, message=f"is not finite as {dtype}", hint="write --dtype float32"))
        content |= {name + (PARTS[part] if naming == "kohya" else part): tensor for part, tensor in pair.items()}
        if naming == "kohya":
            content[name + ALPHA] = torch.tensor(common, dtype=torch.float32)
    if faults:
        raise InvalidInput(faults)
    sha256 = data_sha256(content)
    hashes = {"sshs_model_hash": sha256, "modelspec.hash_sha256": f"0x{sha256}"}
    fields = {**metadata, **_rank_fields(naming, scaled, common)}
    fields |= {name: value for name, value in hashes.items() if name in metadata}
    if naming == "kohya":
        fields.pop(CONFIG_KEY, None)
    fields.pop("sshs_legacy_hash", None)
    write_durably(path, safetensors_bytes(content, {"format": "pt", **fields}))
    return path


def _rank_fields(naming: str, layers: Mapping[str, LoraFactors], alpha: float) -> dict[str, str]:
    if naming == "diffusers":
        return {CONFIG_KEY: json.dumps(_config(layers, alpha), sort_keys=True)}
    linear = {name: layer for name, layer in layers.items() if layer.down.ndim == 2 or layer.down.shape[-1] == 1}
    kernels = {name: layer for name, layer in layers.items() if name not in linear}
    args = {"conv_dim": _rank_word(kernels), "conv_alpha": str(alpha)} if kernels else {}
    return {
        "ss_network_dim": _rank_word(linear or kernels),
        "ss_network_alpha": str(alpha),
        "ss_network_args": json.dumps(args, sort_keys=True),
    }


def _rank_word(layers: Mapping[str, LoraFactors]) -> str:
    """Return the rank, or kohya's word `Dynamic` when there are several."""
    ranks = {layer.rank for layer in layers.values()}
    return str(ranks.pop()) if len(ranks) == 1 else "Dynamic"


def _config(layers: Mapping[str, LoraFactors], alpha: float) -> dict[str, Any]:
    """Return peft's config for each model: the highest rank, and a pattern for each layer that has another one.

    Names of a text encoder's layers go without its outermost part, which transformers 4 has and 5 has not.
    """
    config: dict[str, Any] = {}
    for prefix in sorted({name.partition(".")[0] for name in layers}):
        part = {
            name.removeprefix(f"{prefix}.").removeprefix("text_model."): layer.rank
            for name, layer in layers.items()
            if name.startswith(f"{prefix}.")
        }
        rank = max(part.values())
        fields: dict[str, Any] = {"r": rank, "lora_alpha": alpha, "target_modules": sorted(part)}
        others = {name: each for name, each in part.items() if each != rank}
        fields |= {"rank_pattern": others} if others else {}
        config |= {f"{prefix}.{key}": value for key, value in fields.items()}
    return config


# ---- what the metadata say


def facts_shown(metadata: Mapping[str, str]) -> dict[str, str]:
    """Pick what people want to know first, by words of their own; only what the file says."""
    found = {word: next((metadata[key] for key in keys if key in metadata), "") for word, keys in SHOWN.items()}
    tags = _tags(metadata)
    most = sorted(tags, key=lambda tag: (-tags[tag], tag))[:MOST_TAGS]
    found["tags"] = ", ".join(f"{tag} ({tags[tag]})" for tag in most)
    return {word: value for word, value in found.items() if value and value != "None"}


def resized_metadata(file: LoraFile, cut: Cut, *, alpha: float | None) -> dict[str, str]:
    """Keep all that the file said, and add how it was resized."""
    how: dict[str, Any] = {"deed": "resize", "rank": cut.rank, "method": str(cut.method)}
    how |= {"target": cut.target} if cut.method is not Method.FIXED else {}
    how |= {"alpha": alpha} if alpha is not None else {}
    return {**file.metadata, MADE_FROM: canonical_json({**how, "files": [_source(file)]})}


def merged_metadata(
    files: Sequence[LoraFile], weights: Sequence[float], *, rank: int | None, naming: str
) -> dict[str, str]:
    """Keep what all files say alike, the triggers and tags of all, and add how they were merged.

    A learning rate or a seed of one of them would be wrong for the sum, and is left out.
    """
    alike = {
        key: value
        for key, value in files[0].metadata.items()
        if all(file.metadata.get(key) == value for file in files[1:])
    }
    sources = [{**_source(file), "weight": weight} for file, weight in zip(files, weights, strict=True)]
    titles = [file.metadata.get("modelspec.title") or file.path.stem for file in files]
    fields = {**alike, MADE_FROM: canonical_json({"deed": "merge", "rank": rank, "files": sources})}
    triggers = dict.fromkeys(file.metadata[TRIGGER] for file in files if file.metadata.get(TRIGGER))
    if triggers:
        fields[TRIGGER] = ", ".join(triggers)
    if naming == "kohya":
        fields["modelspec.merged_from"] = ", ".join(titles)
        tagged = ((title, _tags(file.metadata)) for title, file in zip(titles, files, strict=True))
        fields[TAGS] = canonical_json({title: tags for title, tags in tagged if tags})
        # `write_lora_file` fills these in where they are there.
        fields |= {key: "" for key in ("sshs_model_hash", "modelspec.hash_sha256") if key in files[0].metadata}
    return fields


def _tags(metadata: Mapping[str, str]) -> dict[str, int]:
    """Return the tag counts of all datasets together; empty when the field is missing or cannot be read."""
    try:
        counts: dict[str, int] = {}
        for tags in json.loads(metadata.get(TAGS, "{}")).values():
            for tag, count in tags.items():
                counts[tag] = counts.get(tag, 0) + int(count)
    except (ValueError, TypeError, AttributeError):
        return {}
    return counts


def _source(file: LoraFile) -> dict[str, str]:
    """Describe a file by its name and its bytes, never by its path."""
    return {"name": file.path.name, "sha256": sha256_of_file(file.path)}
