"""Orders of annotations: control pictures that annotators make of uploaded pictures, one of each."""

import hashlib
import json
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from giornata.domain.errors import Fault
from giornata.protocol.generation.annotators import ANNOTATORS, ParamValue, annotation_key, annotator_faults
from giornata.protocol.generation.picture import ImageFormat, PictureParams
from giornata.protocol.model import Message, Sha256

PREPROCESS_KIND = "preprocess"
MAX_IMAGES = 10_000
PIXEL_STEPS = 1024 * 1024
"""The work of an annotation among the pictures of other orders. The server does not know the size of the picture."""


class AnnotationFields(Message):
    """The settings of an annotation, besides the picture."""

    annotator: str = Field(max_length=64, description="Name of the annotator, such as canny or depth.")
    annotator_params: dict[str, ParamValue] = Field(
        default_factory=dict,
        max_length=32,
        description="Values of the annotator's parameters, by name. Others keep their defaults.",
    )
    image_format: ImageFormat = Field(ImageFormat.PNG, description="Format of the result files.")
    quality: int = Field(95, ge=1, le=100, description="Quality of JPEG and WebP files. Higher makes larger files.")


class AnnotationParams(AnnotationFields):
    """Everything that decides on one annotation's pixels."""

    image: Sha256

    def files(self) -> dict[str, str]:
        """Return the part that each file plays, by its sha256, as `PictureParams.files` does."""
        return {self.image: "picture"}


LeasedParams = PictureParams | AnnotationParams
"""The part of a lease that describes one picture."""


class PreprocessSpec(AnnotationFields):
    """An order of annotations: one of each image."""

    images: Annotated[tuple[Sha256, ...], Field(min_length=1, max_length=MAX_IMAGES)] = Field(
        description="sha256 of each uploaded picture to annotate.",
    )


def preprocess_faults(spec: PreprocessSpec) -> Iterator[Fault]:
    """Yield the faults of the annotator and of its parameters."""
    yield from annotator_faults("spec", spec.annotator, spec.annotator_params)


def annotation_keys(params: LeasedParams) -> Iterator[str]:
    """Yield the key of each annotation that a picture needs, or that it is."""
    for use in (params,) if isinstance(params, AnnotationParams) else params.controlnets:
        if use.annotator in ANNOTATORS:
            yield annotation_key(use.image, str(use.annotator), use.annotator_params)


def annotator_key(params: AnnotationFields) -> str:
    """Return the key of annotations that one engine makes together: those by one annotator. 32 digits."""
    return annotator_base_key(params.annotator)


def annotator_base_key(annotator: str, *, version: int | None = None) -> str:
    """Return the same key for the annotator of this name, in a version or the present one."""
    told = ["preprocess", annotator, ANNOTATORS[annotator].version if version is None else version]
    return hashlib.sha256(json.dumps(told).encode("ascii")).hexdigest()[:32]
