"""Annotators that run models of transformers: depth, segmentation, pose. Weights come from safetensors files only.

Shapes: H, W of the picture; 3 channels, red, green, blue, uint8; P people; K key points of a person.
"""

import colorsys
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoModelForDepthEstimation,
    AutoModelForObjectDetection,
    AutoModelForSemanticSegmentation,
    VitPoseForPoseEstimation,
)

from giornata.protocol.generation.annotators import ParamValue, whole_params

Pixels = np.ndarray
PERSON = "person"
LEAST_PERSON_SCORE = 0.3


class DepthAnnotator:
    """Distance by a model of `AutoModelForDepthEstimation`, such as Depth Anything V2."""

    def __init__(self, model: str | Path, *, device: torch.device | str) -> None:
        self._model, self._processor = _loaded(AutoModelForDepthEstimation, model, device)

    @torch.no_grad()
    def annotate(self, pixels_HW3: Pixels, params: Mapping[str, ParamValue]) -> Pixels:
        """Return the depth of each pixel, near is white; a picture of one depth is black."""
        del params
        size = pixels_HW3.shape[:2]
        outputs = self._model(**_inputs(self._processor, pixels_HW3, self._model.device))
        (found,) = self._processor.post_process_depth_estimation(outputs, target_sizes=[size])
        depth_HW = found["predicted_depth"].float().cpu().numpy()
        low, high = float(depth_HW.min()), float(depth_HW.max())
        if high <= low:
            return np.zeros((*size, 3), dtype=np.uint8)
        return _three(((depth_HW - low) / (high - low) * 255).round().astype(np.uint8))


class SegmentationAnnotator:
    """Kinds of things by a model of `AutoModelForSemanticSegmentation` that knows the 150 classes of ADE20K."""

    def __init__(self, model: str | Path, *, device: torch.device | str) -> None:
        self._model, self._processor = _loaded(AutoModelForSemanticSegmentation, model, device)
        if self._model.config.num_labels > len(ADE20K):
            raise ValueError(f"the model has {self._model.config.num_labels} classes; ADE20K has {len(ADE20K)}")

    @torch.no_grad()
    def annotate(self, pixels_HW3: Pixels, params: Mapping[str, ParamValue]) -> Pixels:
        """Return the color of each pixel's class."""
        del params
        outputs = self._model(**_inputs(self._processor, pixels_HW3, self._model.device))
        (classes_HW,) = self._processor.post_process_semantic_segmentation(
            outputs, target_sizes=[pixels_HW3.shape[:2]]
        )
        return np.asarray(ADE20K[classes_HW.cpu().numpy()])


class PoseAnnotator:
    """Skeletons by ViTPose, for the people that an object detector finds."""

    def __init__(self, model: str | Path, detector: str | Path, *, device: torch.device | str) -> None:
        self._model, self._processor = _loaded(VitPoseForPoseEstimation, model, device)
        self._detector, self._detector_processor = _loaded(AutoModelForObjectDetection, detector, device)

    @torch.no_grad()
    def annotate(self, pixels_HW3: Pixels, params: Mapping[str, ParamValue]) -> Pixels:
        """Return the skeletons on black; no person is a black picture."""
        threshold = whole_params("pose", params)["threshold"]
        canvas_HW3 = np.zeros_like(pixels_HW3)
        boxes_P4 = self._people(pixels_HW3)
        if not len(boxes_P4):
            return canvas_HW3
        inputs = self._processor(Image.fromarray(pixels_HW3), boxes=[boxes_P4], return_tensors="pt")
        outputs = self._model(**inputs.to(self._model.device))
        (people,) = self._processor.post_process_pose_estimation(outputs, boxes=[boxes_P4])
        for person in people:
            draw_skeleton(canvas_HW3, person["keypoints"].numpy(), person["scores"].numpy(), threshold=threshold)
        return canvas_HW3

    def _people(self, pixels_HW3: Pixels) -> np.ndarray:
        """Return the boxes of people as (left, top, width, height) in pixels."""
        outputs = self._detector(**_inputs(self._detector_processor, pixels_HW3, self._detector.device))
        (found,) = self._detector_processor.post_process_object_detection(
            outputs, threshold=LEAST_PERSON_SCORE, target_sizes=[pixels_HW3.shape[:2]]
        )
        names = self._detector.config.id2label
        rows = [
            box for box, label in zip(found["boxes"], found["labels"], strict=True) if names[int(label)] == PERSON
        ]
        if not rows:
            return np.zeros((0, 4))
        boxes_P4 = torch.stack(rows).cpu().numpy()
        boxes_P4[:, 2:] -= boxes_P4[:, :2]
        return boxes_P4


# ---- skeletons as ControlNets for OpenPose know them: 18 key points, of which the neck is not among COCO's 17

NECK = 1
FROM_COCO = {
    0: 0,
    2: 6,
    3: 8,
    4: 10,
    5: 5,
    6: 7,
    7: 9,
    8: 12,
    9: 14,
    10: 16,
    11: 11,
    12: 13,
    13: 15,
    14: 2,
    15: 1,
    16: 4,
    17: 3,
}
"""OpenPose's key point → COCO's: nose; right shoulder, elbow, wrist; left ones; right hip, knee, ankle; left ones;
right eye, left eye, right ear, left ear."""
LIMBS = (
    *((1, 2), (1, 5), (2, 3), (3, 4), (5, 6), (6, 7), (1, 8), (8, 9), (9, 10), (1, 11), (11, 12), (12, 13)),
    *((1, 0), (0, 14), (14, 16), (0, 15), (15, 17)),
)
HUES = 18
WIDTH_PX, LIMB_SHARE = 4, 0.6


def draw_skeleton(canvas_HW3: Pixels, points_K2: np.ndarray, scores_K: np.ndarray, *, threshold: float) -> None:
    """Draw one person onto the canvas. Key points with a lower score, and limbs that end there, are left out."""
    points = {place: points_K2[coco] for place, coco in FROM_COCO.items() if scores_K[coco] >= threshold}
    if 2 in points and 5 in points:
        points[NECK] = (points[2] + points[5]) / 2
    for number, (begin, end) in enumerate(LIMBS):
        if begin in points and end in points:
            _limb(canvas_HW3, points[begin], points[end], _hue(number))
    for place, point in points.items():
        cv2.circle(canvas_HW3, (int(point[0]), int(point[1])), WIDTH_PX, _hue(place), thickness=-1)


def _limb(canvas_HW3: Pixels, begin: np.ndarray, end: np.ndarray, color: tuple[int, int, int]) -> None:
    middle, along = (begin + end) / 2, end - begin
    half = max(1, int(math.hypot(*along) / 2))
    angle = int(math.degrees(math.atan2(along[1], along[0])))
    outline = cv2.ellipse2Poly((int(middle[0]), int(middle[1])), (half, WIDTH_PX), angle, 0, 360, 1)
    dimmed = [round(level * LIMB_SHARE) for level in color]
    cv2.fillConvexPoly(canvas_HW3, np.asarray(outline, dtype=np.int32), dimmed)


def _hue(number: int) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb(number / HUES, 1.0, 1.0)
    return round(red * 255), round(green * 255), round(blue * 255)


# ---- loading


def load(
    name: str, models: Sequence[str | Path], *, device: torch.device | str
) -> DepthAnnotator | SegmentationAnnotator | PoseAnnotator:
    """Load an annotator with its models: folders or hub ids."""
    match name, models:
        case "depth", [model]:
            return DepthAnnotator(model, device=device)
        case "segmentation", [model]:
            return SegmentationAnnotator(model, device=device)
        case "pose", [model, detector]:
            return PoseAnnotator(model, detector, device=device)
    raise KeyError(f"{name} is no annotator of {len(models)} models")


def _loaded(kind: Any, model: str | Path, device: torch.device | str) -> tuple[Any, Any]:
    """Load a model and its image processor. Raises OSError when it has no safetensors file: nothing is unpickled."""
    weights = kind.from_pretrained(model, use_safetensors=True)
    return weights.requires_grad_(False).eval().to(device), AutoImageProcessor.from_pretrained(model, backend="pil")


def _inputs(processor: Any, pixels_HW3: Pixels, device: torch.device) -> Any:
    return processor(images=Image.fromarray(pixels_HW3), return_tensors="pt").to(device)


def _three(gray_HW: np.ndarray) -> Pixels:
    return np.repeat(gray_HW[:, :, None], 3, axis=2)


_ADE20K_HEX = """
787878 b47878 06e6e6 503232 04c803 787850 8c8c8c cc05ff e6e6e6 04fa07 e005ff ebff07 96053d 787846 08ff33
ff0652 8fff8c ccff04 ff3307 cc4603 0066c8 3de6fa ff0633 0b66ff ff0747 ff09e0 0907e6 dcdcdc ff095c 7009ff
08ffd6 07ffe0 ffb806 0aff47 ff290a 07ffff e0ff08 6608ff ff3d06 ffc207 ff7a08 00ff14 ff0829 ff0599 0633ff
eb0cff a09614 00a3ff 8c8c8c fa0a0f 14ff00 1fff00 ff1f00 ffe000 99ff00 0000ff ff4700 00ebff 00adff 1f00ff
0bc8c8 ff5200 00fff5 003dff 00ff70 00ff85 ff0000 ffa300 ff6600 c2ff00 008fff 33ff00 0052ff 00ff29 00ffad
0a00ff adff00 00ff99 ff5c00 ff00ff ff00f5 ff0066 ffad00 ff0014 ffb8b8 001fff 00ff3d 0047ff ff00cc 00ffc2
00ff52 000aff 0070ff 3300ff 00c2ff 007aff 00ffa3 ff9900 00ff0a ff7000 8fff00 5200ff a3ff00 ffeb00 08b8aa
8500ff 00ff5c b800ff ff001f 00b8ff 00d6ff ff0070 5cff00 00e0ff 70e0ff 46b8a0 a300ff 9900ff 47ff00 ff00a3
ffcc00 ff008f 00ffeb 85ff00 ff00eb f500ff ff007a fff500 0abed4 d6ff00 00ccff 1400ff ffff00 0099ff 0029ff
00ffcc 2900ff 29ff00 ad00ff 00f5ff 4700ff 7a00ff 00ffb8 005cff b8ff00 0085ff ffd600 19c2c2 66ff00 5c00ff
"""
ADE20K = np.frombuffer(bytes.fromhex("".join(_ADE20K_HEX.split())), dtype=np.uint8).reshape(-1, 3)
"""The colors of the classes of ADE20K (B. Zhou et al., "Scene Parsing through ADE20K Dataset", CVPR 2017), with which
ControlNets for segmentation were trained: 150 rows of red, green, blue."""
