"""Folders of pictures: read and checked before a job is sent, with notes for the user."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from giornata.cli.options import CLASS_FOLDER
from giornata.client.storage.training_folder import TrainingFolder, read_training_folder, read_training_subsets
from giornata.control.jobs.submission.length_faults import LengthCheck, length_check
from giornata.control.jobs.submission.spec_faults import NO_DATASET, parse_spec
from giornata.domain.errors import InvalidInput
from giornata.domain.files.buckets import bucket_sizes, target_size
from giornata.domain.files.datasets import enlarged_note
from giornata.pictures.subsets import Subset
from giornata.protocol.specs import TrainSpec, canonical_names
from giornata.protocol.training.data import CAPTION_EXTENSION, with_dot
from giornata.protocol.training.model_names import has_clip_vocabulary


def caption_ending_of(fields: Mapping[str, Any]) -> str:
    """The ending of caption files that the fields of a spec ask for; the default where they are at fault."""
    named, _ = canonical_names(TrainSpec, fields)
    given = with_dot(named.get("caption_extension", CAPTION_EXTENSION))
    return given if isinstance(given, str) and given else CAPTION_EXTENSION


def folder_notes(
    fields: Mapping[str, Any], folder: TrainingFolder | None, class_folder: TrainingFolder | None
) -> Iterator[str]:
    """Lines about both folders. `fields` are those of a spec, of which some may be missing in a job that is
    continued: which pictures are enlarged is not known then."""
    own = {} if class_folder is None else {"class_dataset": NO_DATASET}
    parsed, _ = parse_spec("train", {**fields, "dataset": NO_DATASET, **own})
    spec = parsed if isinstance(parsed, TrainSpec) else None
    for read, prefix in ((folder, ""), (class_folder, f"{CLASS_FOLDER}: ")):
        if read is None:
            continue
        yield from (f"{prefix}{note}" for note in read.notes)
        enlarged = None if spec is None else _enlarged(read, spec)
        if enlarged is not None:
            yield f"{prefix}{enlarged}"


def _enlarged(folder: TrainingFolder, spec: TrainSpec) -> str | None:
    factors = {}
    for item, (width, height) in zip(folder.items, folder.sizes, strict=True):
        resolution = min(item.resolution or spec.resolution, spec.resolution)
        buckets = bucket_sizes(
            resolution=resolution,
            steps=spec.bucket_reso_steps,
            least=spec.min_bucket_reso,
            most=spec.max_bucket_reso,
        )
        target_height, target_width = target_size(
            (height, width),
            resolution=resolution,
            buckets=buckets if spec.enable_bucket else (),
            no_upscale_steps=spec.bucket_reso_steps if spec.bucket_no_upscale else None,
        )
        factors[item.name] = max(target_height / height, target_width / width)
    return enlarged_note(factors, total=len(factors), no_upscale=spec.bucket_no_upscale)


OF_ITS_OWN = "(a class_prompt, whose lack is a fault of the spec)"


def read_class_pictures(
    directory: Path | None, subsets: Sequence[Subset], spec: Mapping[str, Any], *, minimum: int
) -> TrainingFolder | None:
    """Own class pictures: those of the folder, or those of a configuration's folders. Raises InvalidInput."""
    if directory is not None:
        return read_class_folder(directory, spec, minimum=minimum)
    if not subsets:
        return None
    prompt = spec.get("class_prompt") or OF_ITS_OWN
    check = lengths_of(spec).of_texts
    return read_training_subsets(subsets, instance_prompt=prompt, minimum=minimum, captions_check=check)


def with_prior(directory: Path | None, spec: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a spec; own class pictures are for prior preservation."""
    return dict(spec) if directory is None else {"with_prior_preservation": True, **spec}


def read_class_folder(directory: Path, spec: Mapping[str, Any], *, minimum: int) -> TrainingFolder:
    """Read a folder of class pictures as the subject's folder is read.

    Raises InvalidInput whose faults name the option.
    """
    prompt = spec.get("class_prompt") or OF_ITS_OWN
    try:
        return read_training_folder(
            directory,
            instance_prompt=prompt,
            minimum=minimum,
            caption_ending=caption_ending_of(spec),
            captions_check=lengths_of(spec).of_texts,
        )
    except InvalidInput as refused:
        raise InvalidInput(
            [replace(fault, where=f"{CLASS_FOLDER} {fault.where}") for fault in refused.faults]
        ) from None


CLIP_TOKENS = 49408
VOCABULARIES = ("tokenizer/vocab.json", "tokenizer/tokenizer.json")


def lengths_of(spec: Mapping[str, Any]) -> LengthCheck:
    """Return the check that counts the tokens of captions for this spec.

    The check counts nothing for a model folder whose tokenizer has another vocabulary than CLIP's.
    """
    return length_check(spec, None, knows_clip=_knows_clip)


def _knows_clip(model: str) -> bool:
    folder = Path(model)
    return _folder_knows_clip(folder) if folder.is_dir() else has_clip_vocabulary(model)


@cache
def _folder_knows_clip(folder: Path) -> bool:
    for name in VOCABULARIES:
        try:
            content = json.loads((folder / name).read_bytes())
            known = content if name.endswith("vocab.json") else content["model"]["vocab"]
            return len(known) == CLIP_TOKENS
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return False
