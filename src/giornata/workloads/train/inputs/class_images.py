"""Class pictures for prior preservation, drawn once by the base model and shared between jobs.

Shapes: N pictures, H = W = the resolution, C = 3; uint8.

A picture is a function of (model, class prompt, resolution, precision, its number): the initial noise does not
depend on the job's seed, so all jobs of a project that want the same class share packs. One picture is drawn at a
time, so the bits do not depend on where an attempt was interrupted. They are kept in portions, each as soon as it is
drawn: an attempt that is killed loses less than one.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.draws.sample_order import Sample, by_content
from giornata.diffusion.sampling.samples import SamplerConfig, initial_noise, sample_image
from giornata.diffusion.tensor_file import (
    NOT_AS_WRITTEN,
    UnreadableTensorFile,
    json_sha256,
    read_tensor_file,
    write_tensor_file,
)
from giornata.domain.files.caption_length import CHUNK
from giornata.protocol.specs import TrainSpec
from giornata.workloads.interface import Reporter
from giornata.workloads.train.inputs.sample_set import SampleSet

INFERENCE_STEPS = 30
FORMAT = 1
PORTION = 10
"""Pictures in a pack, unless the job has no more: about a minute of a fast GPU."""

_TENSOR = "pictures"


def cache_key(base: BaseModel, base_sha256: str, spec: TrainSpec, portion: range | None = None) -> str:
    """Hash everything that the pictures depend on: all of the job's, or those with the numbers in `portion`. A base
    may change under its name: its weights count too, by the hash that was taken when they were loaded."""
    depends = {
        "base_sha256": base_sha256,
        "class_prompt": spec.class_prompt,
        "count": spec.num_class_images if portion is None else len(portion),
        "dtype": str(base.dtype),
        "format": FORMAT,
        "guidance_scale": base.family.guidance_scale,
        "inference_steps": INFERENCE_STEPS,
        "model": base.key,
        "resolution": spec.resolution,
        "vae_dtype": str(base.vae.dtype),
    }
    depends |= {} if portion is None else {"first": portion.start}
    depends |= {} if spec.max_token_length == CHUNK else {"max_token_length": spec.max_token_length}
    return "class-images-" + json_sha256(depends)


def sample_sets_of(
    base: BaseModel,
    spec: TrainSpec,
    instances: SampleSet,
    classes: SampleSet | None,
    *,
    base_sha256: str,
    directory: Path,
    reporter: Reporter,
    tick: Callable[[int, int], None],
) -> tuple[tuple[SampleSet, ...], dict[str, str]]:
    """Return instances and, if wanted, class pictures; and the latter's hash when the base model drew them."""
    if not spec.with_prior_preservation or spec.prior_prediction:
        return (instances,), {}
    if classes is not None:
        return (instances, classes), {}
    drawn = obtain(base, spec, base_sha256=base_sha256, directory=directory, reporter=reporter, tick=tick)
    hashes = "".join(sample.sha256 for sample in drawn.samples)
    return (instances, drawn), {"class_pictures": hashlib.sha256(hashes.encode("ascii")).hexdigest()}


def obtain(
    base: BaseModel,
    spec: TrainSpec,
    *,
    base_sha256: str,
    directory: Path,
    reporter: Reporter,
    tick: Callable[[int, int], None],
    portion: int = PORTION,
) -> SampleSet:
    """Obtain the class pictures of a job: from the platform's cache, or drawn now and offered to it.

    A cached pack, of `portion` pictures, that is missing, damaged or of another shape is drawn again.
    `tick(done, total)` is called after each picture and may raise to stop.
    """
    total = spec.num_class_images
    everything = _Pack(key=cache_key(base, base_sha256, spec), numbers=range(total))
    packs = [everything]
    if total > portion:
        if (kept := _kept(everything, spec, reporter)) is not None:  # as they were before there were portions
            return sample_set(kept, spec)
        portions = [range(first, min(first + portion, total)) for first in range(0, total, portion)]
        packs = [_Pack(key=cache_key(base, base_sha256, spec, each), numbers=each) for each in portions]
    pictures: list[torch.Tensor] = []
    tick(0, total)
    for pack in packs:
        pictures_NHWC = _kept(pack, spec, reporter)
        if pictures_NHWC is None:
            pictures_NHWC = torch.stack([_drawn(base, spec, number, pack, tick) for number in pack.numbers])
            path = directory / f"class-images-{pack.numbers.start:04d}.safetensors"
            write_pack(path, pack.key, pictures_NHWC)
            reporter.cache_put(pack.key, path)
        pictures.append(pictures_NHWC)
        tick(pack.numbers.stop, total)
    return sample_set(torch.cat(pictures), spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pack:
    key: str
    numbers: range


def _kept(pack: _Pack, spec: TrainSpec, reporter: Reporter) -> torch.Tensor | None:
    """Return pictures_NHWC of the pack; None when it cannot be had."""
    path = reporter.cache_get(pack.key)
    if path is None:
        return None
    try:
        return read_pack(path, pack.key, spec, count=len(pack.numbers))
    except UnreadableTensorFile as error:
        reporter.log(f"the cached class pictures cannot be used, and are drawn again: {error}")
        return None


def _drawn(
    base: BaseModel, spec: TrainSpec, number: int, pack: _Pack, tick: Callable[[int, int], None]
) -> torch.Tensor:
    """Draw one picture of the pack, pixels_HWC. `tick` is called before all but the pack's first: after its last the
    pack is kept before anything else."""
    if number > pack.numbers.start:
        tick(number, spec.num_class_images)
    return draw(base, spec, number)


def draw(base: BaseModel, spec: TrainSpec, number: int) -> torch.Tensor:
    """Draw class picture number `number`: pixels_HWC, uint8."""
    sampler = SamplerConfig(
        side_px=spec.resolution,
        steps=INFERENCE_STEPS,
        guidance_scale=base.family.guidance_scale,
        max_token_length=spec.max_token_length,
    )
    noise_BCHW = initial_noise(base, 0, "class-image", number, side_px=spec.resolution)
    return sample_image(base, str(spec.class_prompt), noise_BCHW, sampler)


def write_pack(path: Path, key: str, pictures_NHWC: torch.Tensor) -> None:
    """Write one uncompressed file with deterministic bytes, aside, and rename it."""
    write_tensor_file(path, {"key": key, "sha256": _digest(pictures_NHWC)}, {_TENSOR: pictures_NHWC})


def read_pack(path: Path, key: str, spec: TrainSpec, *, count: int | None = None) -> torch.Tensor:
    """Read pictures_NHWC of the pack under `key`: `count` of them, by default all of the job's.

    Raises UnreadableTensorFile.
    """
    header, tensors = read_tensor_file(path, key)
    pictures_NHWC = tensors.get(_TENSOR, torch.empty(0))
    shape = (count or spec.num_class_images, spec.resolution, spec.resolution, 3)
    if pictures_NHWC.dtype != torch.uint8 or tuple(pictures_NHWC.shape) != shape:
        raise UnreadableTensorFile(
            f"holds {tuple(pictures_NHWC.shape)} of {pictures_NHWC.dtype}, not {shape} of torch.uint8"
        )
    if header.get("sha256") != _digest(pictures_NHWC):
        raise UnreadableTensorFile(NOT_AS_WRITTEN)
    return pictures_NHWC


def sample_set(pictures_NHWC: torch.Tensor, spec: TrainSpec) -> SampleSet:
    """Return the pack as samples, sorted by the hash of their pixels like any other picture."""
    arrays = {_digest(picture): picture.numpy() for picture in pictures_NHWC}
    samples = [
        Sample(role="class", sha256=_digest(picture), caption=str(spec.class_prompt), name=name, path=Path(name))
        for name, picture in ((f"class picture {number}", picture) for number, picture in enumerate(pictures_NHWC))
    ]
    return SampleSet(
        role="class",
        samples=by_content(samples),
        load=lambda sample: Image.fromarray(arrays[sample.sha256]),
        size=lambda sample: (arrays[sample.sha256].shape[0], arrays[sample.sha256].shape[1]),
    )


def _digest(pictures: torch.Tensor) -> str:
    return hashlib.sha256(np.ascontiguousarray(pictures.numpy()).tobytes()).hexdigest()
