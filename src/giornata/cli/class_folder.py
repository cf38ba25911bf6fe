"""`--class-data-dir`: a folder with own class pictures, for prior preservation."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from giornata.cli.caption_lengths import lengths_of
from giornata.cli.folder_words import caption_ending_of
from giornata.cli.options import CLASS_FOLDER
from giornata.client.training_folder import TrainingFolder, read_training_folder, read_training_subsets
from giornata.domain.errors import InvalidInput
from giornata.pictures.subsets import Subset

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
    """As the folder of the subject's pictures is read. Raises InvalidInput whose faults name the option."""
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
