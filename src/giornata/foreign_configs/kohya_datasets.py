"""sd-scripts' dataset files: datasets of subsets, each with a folder. A subset's word goes before that of its
dataset, which goes before [general], which goes before the options of the run."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from giornata.foreign_configs.account import Reading, agreed, is_off, side_of
from giornata.foreign_configs.kohya import read_kohya
from giornata.pictures.subsets import KeptParts, Subset

_OF_THE_RUN = {"batch_size": "train_batch_size", "num_repeats": "dataset_repeats"}
_OF_A_DATASET = (
    "batch_size",
    "resolution",
    "enable_bucket",
    "min_bucket_reso",
    "max_bucket_reso",
    "bucket_reso_steps",
    "bucket_no_upscale",
    "validation_split",
)
_OF_A_FOLDER = frozenset(
    [
        "image_dir",
        "num_repeats",
        "class_tokens",
        "caption_extension",
        "caption_prefix",
        "caption_suffix",
        "is_reg",
        "metadata_file",
        "custom_attributes",
        "cache_info",
        "subsets",
        "network_multiplier",
    ]
)
_BUCKETS = frozenset({"min_bucket_reso", "max_bucket_reso", "bucket_reso_steps", "bucket_no_upscale"})
_ONE_A_JOB = "the file gives {values} to different folders, and a job has one (with --ignore: the first)"


def is_dataset_file(content: Mapping[str, Any]) -> bool:
    """Return True when the content is for dataset_config rather than for config_file."""
    return isinstance(content.get("datasets"), list)


def read_kohya_datasets(content: Mapping[str, Any], options: Mapping[str, Any], *, file: str) -> Reading:
    """The dataset file `content`, called `file`, with the `options` of the run."""
    general = content.get("general") or {}
    datasets = [each for each in content["datasets"] if isinstance(each, dict)]
    chains: list[tuple[Mapping[str, Any], ...]] = []
    for dataset in datasets:
        chains += [
            (subset, dataset, general) for subset in dataset.get("subsets") or [{}] if isinstance(subset, dict)
        ]
    subject = [chain for chain in chains if _said(chain, options, "is_reg") is not True] or chains
    flat, disputed = dict(options), dict[str, str]()
    sides = _sides(chains, options)
    lesser: dict[int, int] = {}
    if sides:
        flat["resolution"] = largest = max(sides.values())
        lesser = {key: side for key, side in sides.items() if side < largest}
    kept = _kept(subject, options)
    if kept:
        mark = next(iter(kept.values())).mark
        flat |= {"shuffle_caption": True, "keep_tokens": 0, "keep_tokens_separator": mark}
    for key in _shared_keys(chains):
        if (sides and key == "resolution") or (kept and key in {"shuffle_caption", "keep_tokens"}):
            continue
        own = _OF_THE_RUN.get(key, key)
        same, value = agreed(_said(chain, options, key) for chain in subject)
        if value is not None:
            flat[own] = value
        if not same and any(_means_something(key, chain, options) for chain in subject):
            values = " and ".join(dict.fromkeys(str(_said(chain, options, key)) for chain in subject))
            disputed[own] = _ONE_A_JOB.format(values=values)
    for chain in chains:
        unreadable = _metadata_fault(chain, options)
        disputed |= {} if unreadable is None else {"metadata_file": unreadable}
    classes = [chain for chain in chains if _said(chain, options, "is_reg") is True]
    prompt = next((_said(chain, options, "class_tokens") for chain in classes), None)
    return read_kohya(
        flat | ({"class_tokens": prompt, "is_reg": True} if classes else {}),
        subsets=_subsets([chain for chain in chains if chain not in classes], options, lesser, kept),
        class_subsets=_subsets(classes, options, lesser, {}),
        disputed=disputed,
        file=file,
    )


def _shared_keys(chains: Sequence[tuple[Mapping[str, Any], ...]]) -> list[str]:
    """Keys that a job has one value of, those of datasets first."""
    named = [key for chain in chains for part in chain for key in part if key not in _OF_A_FOLDER]
    return [key for key in dict.fromkeys((*_OF_A_DATASET, *named)) if key in named]


def _means_something(key: str, chain: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> bool:
    """Return True when the key does anything in one folder."""
    if key in {"keep_tokens", "caption_separator"}:
        return _said(chain, options, "shuffle_caption") is True
    return key not in _BUCKETS or _said(chain, options, "enable_bucket") is True


def _said(chain: Sequence[Mapping[str, Any]], options: Mapping[str, Any], key: str) -> Any:
    """Return a folder's value for the key: the first in `chain`, else the one of the run's `options`."""
    own = _OF_THE_RUN.get(key, key)
    found = next((part[key] for part in chain if key in part), options.get(own))
    return None if key == "num_repeats" and is_off(found) else found


def _sides(chains: Sequence[tuple[Mapping[str, Any], ...]], options: Mapping[str, Any]) -> dict[int, int]:
    """The resolution of each folder in pixels, by the id of its chain. Empty where all have one, and where a job
    cannot have them all: without buckets, or where one of them is no square."""
    found = {id(chain): side_of(_said(chain, options, "resolution")) for chain in chains}
    sides = {key: side for key, side in found.items() if side is not None}
    bucketed = all(_said(chain, options, "enable_bucket") is True for chain in chains)
    if not bucketed or len(sides) < len(chains) or len(set(sides.values())) == 1:
        return {}
    return sides


def _kept(chains: Sequence[tuple[Mapping[str, Any], ...]], options: Mapping[str, Any]) -> dict[int, KeptParts]:
    """The parts of captions that stay where they are, by the id of each folder's chain. Empty where all folders say
    the same, and where a job cannot have what they say: separators that differ, or marks of their own."""
    separators = {_said(chain, options, "caption_separator") or "," for chain in chains}
    marks = [_said(chain, options, "keep_tokens_separator") for chain in chains]
    counts = [
        (_said(chain, options, "keep_tokens") or 0) if _said(chain, options, "shuffle_caption") is True else None
        for chain in chains
    ]
    numbers = all(count is None or (isinstance(count, int) and count >= 0) for count in counts)
    if not numbers or len(set(counts)) == 1 or len(separators) > 1 or any(marks):
        return {}
    (separator,) = separators
    return {
        id(chain): KeptParts(count=count, separator=separator) for chain, count in zip(chains, counts, strict=True)
    }


def _subsets(
    chains: Sequence[tuple[Mapping[str, Any], ...]],
    options: Mapping[str, Any],
    lesser: Mapping[int, int],
    kept: Mapping[int, KeptParts],
) -> tuple[Subset, ...]:
    found = []
    for chain in chains:
        captions = _captions(chain, options) or {}
        folder = _said(chain, options, "image_dir") or next((str(Path(name).parent) for name in captions), None)
        if folder is None:
            continue
        found.append(
            Subset(
                path=Path(str(folder)),
                repeats=int(_said(chain, options, "num_repeats") or 1),
                caption=_said(chain, options, "class_tokens") or None,
                caption_extension=_said(chain, options, "caption_extension") or None,
                prefix=_said(chain, options, "caption_prefix") or "",
                suffix=_said(chain, options, "caption_suffix") or "",
                captions={Path(name).stem: text for name, text in captions.items()} or None,
                resolution=lesser.get(id(chain)),
                kept=kept.get(id(chain)),
            )
        )
    return tuple(found)


def _captions(chain: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> dict[str, str] | None:
    """The captions of a metadata_file by the pictures' names; None when there is no such file or it is unreadable."""
    name = _said(chain, options, "metadata_file")
    if name is None:
        return None
    separator = (_said(chain, options, "caption_separator") or ",") + " "
    try:
        rows = json.loads(Path(str(name)).read_text(encoding="utf-8-sig"))
        words = {key: [row[part] for part in ("caption", "tags") if row.get(part)] for key, row in rows.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return None
    return {key: separator.join(parts) for key, parts in words.items() if parts}


def _metadata_fault(chain: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> str | None:
    name = _said(chain, options, "metadata_file")
    if name is None or _captions(chain, options):
        return None
    return f"{name} is no JSON object with a caption or tags for each picture, read from the working directory"
