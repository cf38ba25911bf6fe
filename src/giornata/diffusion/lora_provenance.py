"""What the metadata of a resized or merged LoRA say: what the files before them said, and what was done to them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from giornata.diffusion.lora_algebra import Cut, Method
from giornata.diffusion.lora_files import LoraFile
from giornata.diffusion.tensor_file import canonical_json, sha256_of_file

MADE_FROM = "giornata.made_from"
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
TAGS = "ss_tag_frequency"
TRIGGER = "modelspec.trigger_phrase"
MOST_TAGS = 10


def facts_shown(metadata: Mapping[str, str]) -> dict[str, str]:
    """What people want to know first, by words of their own; only what the file says."""
    found = {word: next((metadata[key] for key in keys if key in metadata), "") for word, keys in SHOWN.items()}
    tags = _tags(metadata)
    most = sorted(tags, key=lambda tag: (-tags[tag], tag))[:MOST_TAGS]
    found["tags"] = ", ".join(f"{tag} ({tags[tag]})" for tag in most)
    return {word: value for word, value in found.items() if value and value != "None"}


def resized_metadata(file: LoraFile, cut: Cut, *, alpha: float | None) -> dict[str, str]:
    """All that the file said, and how it was resized."""
    how: dict[str, Any] = {"deed": "resize", "rank": cut.rank, "method": str(cut.method)}
    how |= {"target": cut.target} if cut.method is not Method.FIXED else {}
    how |= {"alpha": alpha} if alpha is not None else {}
    return {**file.metadata, MADE_FROM: canonical_json({**how, "files": [_source(file)]})}


def merged_metadata(
    files: Sequence[LoraFile], weights: Sequence[float], *, rank: int | None, naming: str
) -> dict[str, str]:
    """What all files say alike, the triggers and tags of all, and how they were merged.

    A learning rate or a seed of one of them would be a lie about the sum, and is left out.
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
        fields[TAGS] = canonical_json(_all_tags(files, titles))
        # Named anew by whoever writes the file, where there are such fields.
        fields |= {key: "" for key in ("sshs_model_hash", "modelspec.hash_sha256") if key in files[0].metadata}
    return fields


def _all_tags(files: Sequence[LoraFile], titles: Sequence[str]) -> dict[str, dict[str, int]]:
    return {title: tags for title, file in zip(titles, files, strict=True) if (tags := _tags(file.metadata))}


def _tags(metadata: Mapping[str, str]) -> dict[str, int]:
    """The counts of all its datasets together; empty when the field is not there or cannot be read."""
    try:
        counts: dict[str, int] = {}
        for tags in json.loads(metadata.get(TAGS, "{}")).values():
            for tag, count in tags.items():
                counts[tag] = counts.get(tag, 0) + int(count)
    except (ValueError, TypeError, AttributeError):
        return {}
    return counts


def _source(file: LoraFile) -> dict[str, str]:
    """Its name and its bytes, never its path."""
    return {"name": file.path.name, "sha256": sha256_of_file(file.path)}
