"""The samples that a job trains on, in the order of their contents, with a caption each."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from PIL import Image

from giornata.diffusion.draws.sample_order import Role, Sample, by_content
from giornata.diffusion.encode import pixels
from giornata.domain.errors import Fault, WorkloadFailed, in_short
from giornata.domain.files.buckets import Size
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.pipe import InputFile
from giornata.protocol.specs import TrainSpec

Load = Callable[[Sample], Image.Image]
"""Gives the decoded picture of a sample; raises pixels.Undecodable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSet:
    """The samples of one role, sorted by content, and how to get at their pictures.

    `size` tells a picture's (height, width) without decoding it. `buckets` has the bucket of each picture, by its
    hash and its own resolution; None when all are cut to one size.
    """

    role: Role
    samples: tuple[Sample, ...]
    load: Load
    size: Callable[[Sample], Size]
    buckets: Mapping[tuple[str, int | None], Size] | None = None


def from_files(
    inputs: Iterable[InputFile], role: Role, prompt: str | None, *, keep_alpha: bool = False
) -> tuple[SampleSet, list[Fault]]:
    """Make samples of the input files of one role. A picture without a caption of its own gets `prompt`; a fault if
    there is none."""
    samples, faults = [], []
    for file in inputs:
        if file.role != role:
            continue
        caption = file.caption if file.caption is not None else prompt
        if caption is None:
            hint = "give it a caption, or the job an instance_prompt"
            faults.append(Fault(where=file.name, message="has no caption", hint=hint))
            continue
        samples.append(
            Sample(
                role=role,
                sha256=file.sha256,
                caption=caption,
                name=file.name,
                path=file.path,
                repeats=file.repeats,
                resolution=file.resolution,
            )
        )
    sample_set = SampleSet(
        role=role,
        samples=by_content(samples),
        load=lambda sample: pixels.decode(sample.path, keep_alpha=keep_alpha),
        size=lambda sample: pixels.upright_size(sample.path),
    )
    return sample_set, faults


def load_samples(inputs: Iterable[InputFile], spec: TrainSpec) -> tuple[SampleSet, SampleSet | None]:
    """Return instance and class samples as the spec wants them; None when the base model has to draw the class
    pictures or there is no prior preservation. Raises WorkloadFailed(BAD_DATA) with every fault."""
    files = tuple(inputs)
    instances, faults = from_files(files, "instance", spec.instance_prompt, keep_alpha=spec.masked_loss)
    classes, class_faults = from_files(files, "class", spec.class_prompt)
    faults += class_faults
    if not instances.samples and not faults:
        faults.append(Fault(where="spec.dataset", message="holds no pictures", hint="upload some"))
    if spec.class_dataset is not None and not classes.samples:
        faults.append(
            Fault(where="spec.class_dataset", message="holds no pictures", hint="upload some, or leave it out")
        )
    if spec.class_dataset is None and classes.samples:
        faults.append(Fault(where="inputs", message="class pictures were given, but the spec names no class_dataset"))
    refuse_if(faults)
    return instances, (classes if classes.samples else None)


def refuse_if(faults: list[Fault], reason: Reason = Reason.BAD_DATA) -> None:
    """Raise WorkloadFailed that carries all faults, if there are any; the message names the first few."""
    if faults:
        raise WorkloadFailed(reason, in_short(faults), tuple(faults))
