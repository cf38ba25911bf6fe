"""What a person is told of a folder of pictures before a job is sent."""

from collections.abc import Iterator, Mapping
from typing import Any

from giornata.cli.options import CLASS_FOLDER
from giornata.client.training_folder import TrainingFolder
from giornata.control.spec_faults import NO_DATASET, parse_spec
from giornata.diffusion.buckets import bucket_sizes, target_size
from giornata.domain.picture_notes import enlarged_note
from giornata.protocol.specs import TrainSpec, canonical_names
from giornata.protocol.training.data import CAPTION_EXTENSION, with_dot


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
