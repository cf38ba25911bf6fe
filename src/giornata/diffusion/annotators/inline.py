"""Annotators without weights. They take milliseconds, and run beside the drawing of the picture that needs them.

Shapes: H, W of the picture; 3 channels, red, green, blue; all are uint8 from 0 to 255. Each takes and gives
pixels_HW3.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import cv2
import numpy as np

from giornata.protocol.generation.annotators import ParamValue, whole_params

Pixels = np.ndarray
Inline = Callable[[Pixels, Mapping[str, float]], Pixels]


def annotate(name: str, pixels_HW3: Pixels, params: Mapping[str, ParamValue]) -> Pixels:
    """Return the control picture, of the size of the picture. Raises KeyError for an annotator that needs a model."""
    return INLINE[name](np.ascontiguousarray(pixels_HW3), whole_params(name, params))


def _canny(pixels_HW3: Pixels, params: Mapping[str, float]) -> Pixels:
    """J. Canny, "A Computational Approach to Edge Detection", 1986, as OpenCV computes it."""
    return _three(cv2.Canny(pixels_HW3, params["low_threshold"], params["high_threshold"]))


def _lineart(pixels_HW3: Pixels, params: Mapping[str, float]) -> Pixels:
    """White where a pixel is darker than the pixels around it, scaled so that the median line is half white."""
    light: np.ndarray = pixels_HW3.astype(np.float32)
    around = cv2.GaussianBlur(light, (0, 0), params["sigma"])
    darker = np.clip((around - light).min(axis=2), 0, 255)
    lines = darker[darker > params["threshold"]]
    middle = max(16.0, float(np.median(lines))) if lines.size else 16.0
    return _three((darker / middle * 127).clip(0, 255).astype(np.uint8))


def _scribble(pixels_HW3: Pixels, params: Mapping[str, float]) -> Pixels:
    """The extended difference of Gaussians, thresholded (H. Winnemöller et al., "XDoG", 2012)."""
    light: np.ndarray = pixels_HW3.astype(np.float32)
    fine, coarse = cv2.GaussianBlur(light, (0, 0), 0.5), cv2.GaussianBlur(light, (0, 0), 5.0)
    edges = (coarse - fine).max(axis=2)
    return _three(np.where(2 * edges > params["threshold"], 255, 0).astype(np.uint8))


def _gray(pixels_HW3: Pixels, params: Mapping[str, float]) -> Pixels:
    del params
    return _three(cv2.cvtColor(pixels_HW3, cv2.COLOR_RGB2GRAY))


def _tile(pixels_HW3: Pixels, params: Mapping[str, float]) -> Pixels:
    height, width = pixels_HW3.shape[:2]
    rate = params["down_sampling_rate"]
    small = (max(1, round(width / rate)), max(1, round(height / rate)))
    fewer = cv2.resize(pixels_HW3, small, interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.resize(fewer, (width, height), interpolation=cv2.INTER_CUBIC))


def _shuffle(pixels_HW3: Pixels, params: Mapping[str, float]) -> Pixels:
    """Move each pixel along smooth random paths, a function of the seed."""
    height, width = pixels_HW3.shape[:2]
    draw = np.random.Generator(np.random.Philox(key=int(params["seed"])))
    across = _smooth(draw, height, width, params["grain_px"]) * (width - 1)
    down = _smooth(draw, height, width, params["grain_px"]) * (height - 1)
    return np.asarray(cv2.remap(pixels_HW3, across, down, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101))


def _smooth(draw: np.random.Generator, height: int, width: int, grain_px: float) -> np.ndarray:
    """Return smooth noise_HW from 0 to 1, whose waves are about `grain_px` long."""
    rows, columns = max(2, round(height / grain_px) + 2), max(2, round(width / grain_px) + 2)
    coarse = draw.random((rows, columns), dtype=np.float32)
    noise = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    low, high = float(noise.min()), float(noise.max())
    return np.asarray((noise - low) / max(high - low, 1e-6), dtype=np.float32)


def _three(gray_HW: np.ndarray) -> Pixels:
    return np.repeat(gray_HW[:, :, None], 3, axis=2)


INLINE: Mapping[str, Inline] = MappingProxyType(
    {
        "canny": _canny,
        "lineart": _lineart,
        "scribble": _scribble,
        "grey": _gray,
        "tile": _tile,
        "shuffle": _shuffle,
    }
)
