"""`--class-data-dir`: a folder with own class pictures, for prior preservation."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from giornata.client.training_folder import TrainingFolder, read_training_folder
from giornata.domain.errors import InvalidInput

OPTION = "--class-data-dir"
OF_ITS_OWN = "(a class_prompt, whose lack is a fault of the spec)"


def with_prior(directory: Path | None, spec: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a spec; own class pictures are for prior preservation."""
    return dict(spec) if directory is None else {"with_prior_preservation": True, **spec}


def read_class_folder(
    directory: Path, spec: Mapping[str, Any], *, minimum: int, caption_ending: str
) -> TrainingFolder:
    """As the folder of the subject's pictures is read. Raises InvalidInput whose faults name the option."""
    prompt = spec.get("class_prompt") or OF_ITS_OWN
    try:
        return read_training_folder(directory, instance_prompt=prompt, minimum=minimum, caption_ending=caption_ending)
    except InvalidInput as refused:
        raise InvalidInput([replace(fault, where=f"{OPTION} {fault.where}") for fault in refused.faults]) from None
