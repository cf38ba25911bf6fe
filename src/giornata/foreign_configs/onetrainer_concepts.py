"""OneTrainer's concepts: folders of pictures, each with its captions, repeats and changes of pictures."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from giornata.foreign_configs.account import Account, agreed, is_off, side_of
from giornata.pictures.subsets import Subset

_CHANGES = (
    "random_rotate",
    "fixed_flip",
    "fixed_rotate",
    "random_brightness",
    "fixed_brightness",
    "random_contrast",
    "fixed_contrast",
    "random_saturation",
    "fixed_saturation",
    "random_hue",
    "fixed_hue",
    "random_circular_mask_shrink",
    "random_mask_rotate_crop",
)
_ONE_A_JOB = "the concepts say {values}, and a job has one (with --ignore: the first)"


def is_concepts_file(content: Any) -> bool:
    """Return True when the content is a list of OneTrainer's concepts."""
    return isinstance(content, list) and all(isinstance(each, dict) and "path" in each for each in content)


def read_concepts(content: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    """The enabled concepts of the configuration, or of the file that it names; None where that cannot be read."""
    concepts = content.get("concepts")
    if not isinstance(concepts, list):
        try:
            concepts = json.loads(Path(str(content.get("concept_file_name", ""))).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
    return [each for each in concepts if isinstance(each, dict) and each.get("enabled", True)]


def take_concepts(
    account: Account, concepts: Sequence[Mapping[str, Any]] | None
) -> tuple[tuple[Subset, ...], tuple[Subset, ...]]:
    """The folders of the subject and those of the class. What is said of all pictures goes into the account."""
    account.seen.update({"concepts", "concept_file_name"})
    if concepts is None:
        account.leave("concept_file_name")
        return (), ()
    account.leave("concepts", "concept_file_name")
    kinds = [str(each.get("type", "STANDARD")) for each in concepts]
    if {"VALIDATION"} & set(kinds):
        _note(account, "concepts.type", "VALIDATION").refuse(
            "concepts.type", "all concepts are trained; see validation_split"
        )
    if "PRIOR_PREDICTION" in kinds:
        why = "the nearest is prior_prediction, which looks at the subject's own pictures"
        _note(account, "concepts.type", "PRIOR_PREDICTION").refuse("concepts.type", why)
    subject = [each for each, kind in zip(concepts, kinds, strict=True) if kind == "STANDARD"]
    _take_shared(account, subject)
    for concept in subject:
        _refuse_single(account, concept)
    sides = _take_sides(account, subject)
    return tuple(_subset(account, each, side) for each, side in zip(subject, sides, strict=True)), ()


def _take_sides(account: Account, concepts: Sequence[Mapping[str, Any]]) -> list[int | None]:
    """The resolution of each concept in pixels, None being the job's, which is the largest of all."""
    usual = side_of(account.value("resolution"))
    sides = [_overridden(concept) or usual for concept in concepts]
    if len({*sides, usual}) == 1 or usual is None:
        return [None] * len(sides)
    told = _note(account, "concepts.image.resolution_override", " and ".join(map(str, dict.fromkeys(sides))))
    if account.value("aspect_ratio_bucketing") is not True:
        told.refuse("concepts.image.resolution_override", "only with aspect_ratio_bucketing a job has several")
        return [None] * len(sides)
    largest = max(side for side in sides if side is not None)
    told.take("concepts.image.resolution_override", "resolution", largest, "the largest; see the folders")
    return [None if side == largest else side for side in sides]


def _overridden(concept: Mapping[str, Any]) -> int | None:
    image = concept.get("image") or {}
    return side_of(image.get("resolution_override")) if image.get("enable_resolution_override") else None


def _take_shared(account: Account, concepts: Sequence[Mapping[str, Any]]) -> None:
    rows: list[tuple[str, str, str, Any]] = [
        ("image.enable_random_flip", "random_flip", "image", False),
        ("image.enable_crop_jitter", "center_crop", "image", True),
        ("text.enable_tag_shuffling", "shuffle_caption", "text", False),
        ("text.tag_delimiter", "caption_separator", "text", ","),
        ("text.keep_tags_count", "keep_tokens", "text", 1),
    ]
    for key, setting, part, default in rows:
        values = [(each.get(part) or {}).get(key.partition(".")[2], default) for each in concepts]
        if not values:
            continue
        same, value = agreed(values)
        own = _note(account, f"concepts.{key}", value)
        own.take(f"concepts.{key}", setting, not value if setting == "center_crop" else value)
        if not same:
            said = " and ".join(dict.fromkeys(map(str, values)))
            own.refuse(f"concepts.{key}", _ONE_A_JOB.format(values=said))


def _refuse_single(account: Account, concept: Mapping[str, Any]) -> None:
    image, text = concept.get("image") or {}, concept.get("text") or {}
    reasons = {
        f"image.enable_{name}": "pictures are flipped and cropped, and not changed otherwise" for name in _CHANGES
    }
    values = {key: image.get(key.partition(".")[2]) for key in reasons}
    reasons |= {
        "text.tag_dropout_enable": "captions are left out whole: caption_dropout_rate",
        "text.caps_randomize_enable": "captions are read as they stand",
        "include_subdirectories": "name each folder as a concept of its own",
    }
    values |= {
        "text.tag_dropout_enable": text.get("tag_dropout_enable"),
        "text.caps_randomize_enable": text.get("caps_randomize_enable"),
        "include_subdirectories": concept.get("include_subdirectories"),
    }
    for key, why in reasons.items():
        _note(account, f"concepts.{key}", values[key]).without_equal(f"concepts.{key}", why)
    if float(concept.get("loss_weight", 1)) != 1:
        _note(account, "concepts.loss_weight", concept["loss_weight"]).refuse(
            "concepts.loss_weight", "all pictures weigh the same; balancing repeats them"
        )


def _subset(account: Account, concept: Mapping[str, Any], side: int | None) -> Subset:
    balancing, text = float(concept.get("balancing", 1)), concept.get("text") or {}
    repeats = max(int(balancing), 1)
    if str(concept.get("balancing_strategy", "REPEATS")) != "REPEATS" or balancing != repeats:
        why = "repeats must be whole numbers from 1"
        _note(account, "concepts.balancing", concept.get("balancing")).refuse("concepts.balancing", why)
    source = text.get("prompt_source", "sample")
    caption = None
    if source == "concept":
        caption = _only_line(Path(str(text.get("prompt_path", ""))))
    if source == "filename" or (source == "concept" and caption is None):
        why = "captions must be in files beside the pictures (sample), or one line for all (concept)"
        _note(account, "concepts.text.prompt_source", source).refuse("concepts.text.prompt_source", why)
    return Subset(
        path=Path(str(concept["path"])),
        repeats=repeats,
        caption=caption,
        caption_extension=".txt",
        resolution=side,
    )


def _only_line(path: Path) -> str | None:
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError):
        return None
    return lines[0] if len(lines) == 1 else None


def _note(account: Account, key: str, value: Any) -> Account:
    """The same account with one more key."""
    given = {} if is_off(value) and value is not False else {key: value}
    return Account(given=given, taken=account.taken, refused=account.refused, left_out=account.left_out)
