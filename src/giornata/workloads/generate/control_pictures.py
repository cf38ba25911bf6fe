"""Control pictures: made from pictures of a lease by annotators, and kept for the pictures that follow.

Annotators are inline or run a model. Models stay warm, like the base.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from PIL import Image

from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.generation.annotators import ANNOTATORS, ParamValue, annotation_key, annotator_faults
from giornata.protocol.generation.picture import ControlNetUse
from giornata.protocol.generation.preprocess import AnnotationParams
from giornata.workloads.generate.hub_reading import Told, reading_from_hub
from giornata.workloads.generate.lease_files import LeaseFiles

KEPT_BYTES = 256 * 2**20
"""Pixels of annotations that are kept for further pictures. The last annotation is kept whatever its size."""
MODELS_KEPT = 2


class ModelAnnotator(Protocol):
    """An annotator that runs a model. Pictures are pixels_HW3, uint8."""

    def annotate(self, pixels_HW3: np.ndarray, params: dict[str, ParamValue]) -> np.ndarray: ...


Annotated = ControlNetUse | AnnotationParams
"""Names a picture, an annotator and its parameters."""
AnnotatorLoader = Callable[[str, torch.device], ModelAnnotator]
"""Loads an annotator by its name. Raises ImportError without the extra, and OSError when its model is not there."""


def load_annotator(name: str, device: torch.device) -> ModelAnnotator:
    """Load the annotator's model from the hub's cache, or fetch it."""
    from giornata.diffusion.annotators.by_model import load

    return load(name, ANNOTATORS[name].models, device=device)


class ControlPictures:
    """Annotates pictures. An annotation is made once for each picture, annotator, version and parameters.

    One that came with the lease is not made at all, and one that the project wants is offered to it.
    """

    def __init__(
        self, device: torch.device, *, load: AnnotatorLoader = load_annotator, model_cache_bytes: int | None = None
    ) -> None:
        self._device, self._load, self._model_cache_bytes = device, load, model_cache_bytes
        self._models: OrderedDict[str, ModelAnnotator] = OrderedDict()
        self._made: OrderedDict[str, Image.Image] = OrderedDict()

    def of(self, use: Annotated, files: LeaseFiles, told: Told, *, where: str) -> Image.Image:
        """Return the picture, annotated if an annotator is named. Raises WorkloadFailed when that fails here."""
        if use.annotator is None:
            return files.picture(use.image, where=f"{where}.image")
        if faults := tuple(annotator_faults(where, use.annotator, use.annotator_params)):
            raise WorkloadFailed(Reason.BAD_SPEC, "; ".join(map(str, faults)), faults)
        key = annotation_key(use.image, use.annotator, use.annotator_params)
        if not files.holds(use.image) or key not in self._made:  # it is for those alone who have the picture
            picture = files.picture(use.image, where=f"{where}.image")
            kept = files.annotation(key)
            self._made[key] = kept or Image.fromarray(self._annotated(use, np.asarray(picture), told))
            self._forget_oldest()
        self._made.move_to_end(key)
        files.keep_annotation(key, self._made[key])
        return self._made[key]

    def warm(self) -> tuple[str, ...]:
        """Return the annotators whose models are warm."""
        return tuple(self._models)

    def drop(self) -> None:
        """Release all models and annotations, and their memory."""
        self._models.clear()
        self._made.clear()

    def _annotated(self, use: Annotated, pixels_HW3: np.ndarray, told: Told) -> np.ndarray:
        name = str(use.annotator)
        if ANNOTATORS[name].models:
            return self._model(name, told).annotate(pixels_HW3, use.annotator_params)
        from giornata.diffusion.annotators.inline import annotate

        return annotate(name, pixels_HW3, use.annotator_params)

    def _model(self, name: str, told: Told) -> ModelAnnotator:
        if name not in self._models:
            models = ANNOTATORS[name].models
            with reading_from_hub(*models, bound_bytes=self._model_cache_bytes, told=told):
                self._models[name] = self._load(name, self._device)
            if len(self._models) > MODELS_KEPT:
                self._models.popitem(last=False)
        self._models.move_to_end(name)
        return self._models[name]

    def _forget_oldest(self) -> None:
        def size_bytes() -> int:
            return sum(3 * image.width * image.height for image in self._made.values())

        while len(self._made) > 1 and size_bytes() > KEPT_BYTES:
            self._made.popitem(last=False)
