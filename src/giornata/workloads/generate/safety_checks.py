"""The safety checker of the workload, loaded when the first picture asks for it and kept warm."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from PIL import Image

from giornata.workloads.generate.hub_reading import Told, reading_from_hub

SAFETY_MODEL = "CompVis/stable-diffusion-safety-checker"
"""The checker of Stable Diffusion, on the hub."""


class Checker(Protocol):
    """Says which pictures are unsafe. Pictures are pixels_HW3, uint8."""

    def unsafe(self, pictures: Sequence[np.ndarray]) -> list[bool]: ...


def load_checker(model: str, device: torch.device) -> Checker:
    """Load the checker's model from a folder or the hub's cache, or fetch it."""
    from giornata.diffusion.sampling.safety import SafetyChecker

    return SafetyChecker(model, device=device)


class SafetyChecks:
    """Checks finished pictures. `model` is a folder or a hub id."""

    def __init__(
        self,
        device: torch.device,
        *,
        model: str = SAFETY_MODEL,
        load: Callable[[str, torch.device], Checker] = load_checker,
        model_cache_bytes: int | None = None,
    ) -> None:
        self._device, self._model, self._load = device, model, load
        self._model_cache_bytes = model_cache_bytes
        self._checker: Checker | None = None

    def prepare(self, told: Told) -> None:
        """Load the checker. Raises WorkloadFailed when that fails: no picture that needs it may be drawn."""
        if self._checker is None:
            with reading_from_hub(self._model, bound_bytes=self._model_cache_bytes, told=told):
                self._checker = self._load(self._model, self._device)

    def is_unsafe(self, picture: Image.Image) -> bool:
        """Return True when the checker takes the picture for unsafe. Raises RuntimeError without a checker."""
        if (checker := self._checker) is None:
            raise RuntimeError("the safety checker was not loaded")
        return checker.unsafe([np.asarray(picture.convert("RGB"))])[0]

    def drop(self) -> None:
        """Release the checker and its memory."""
        self._checker = None
