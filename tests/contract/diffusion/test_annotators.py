"""Annotators: those that run inline on drawn pictures, and those by models on tiny models with random weights."""

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from transformers import (
    DepthAnythingConfig,
    DepthAnythingForDepthEstimation,
    Dinov2Config,
    DPTImageProcessorPil,
    SegformerConfig,
    SegformerForSemanticSegmentation,
    SegformerImageProcessorPil,
    VitPoseBackboneConfig,
    VitPoseConfig,
    VitPoseForPoseEstimation,
    VitPoseImageProcessorPil,
    YolosConfig,
    YolosForObjectDetection,
    YolosImageProcessorPil,
)

from giornata.diffusion.annotators.by_model import (
    ADE20K,
    DepthAnnotator,
    PoseAnnotator,
    SegmentationAnnotator,
    draw_skeleton,
    load,
)
from giornata.diffusion.annotators.inline import INLINE, annotate
from giornata.protocol.generation.annotators import ANNOTATORS

HEIGHT, WIDTH = 60, 84


def disk_picture() -> np.ndarray:
    """A dark red disk on a light ground."""
    pixels = np.full((HEIGHT, WIDTH, 3), 235, dtype=np.uint8)
    return np.asarray(cv2.circle(pixels, (40, 30), 18, (150, 20, 30), thickness=-1))


def ring() -> np.ndarray:
    """The pixels within 3 of the disk's edge."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    distance = np.hypot(rows - 30, columns - 40)
    return np.asarray(abs(distance - 18) <= 3)


@pytest.mark.parametrize("name", INLINE)
def test_control_picture_has_the_size_of_the_picture_and_is_a_function_of_it(name: str) -> None:
    pixels = disk_picture()
    first, second = annotate(name, pixels, {}), annotate(name, pixels.copy(), {})
    assert first.shape == pixels.shape
    assert first.dtype == np.uint8
    assert first.tobytes() == second.tobytes()
    assert first.tobytes() != pixels.tobytes()


def test_annotators_without_a_model_run_inline_and_the_others_do_not() -> None:
    assert {name for name, each in ANNOTATORS.items() if not each.models} == set(INLINE)


@pytest.mark.parametrize("name", ["canny", "scribble"])
def test_edges_lie_on_the_edge_of_the_disk_only(name: str) -> None:
    edges = annotate(name, disk_picture(), {})[:, :, 0] > 0
    near = cv2.dilate(ring().astype(np.uint8), np.ones((13, 13), np.uint8)) > 0
    assert edges.any()
    assert not edges[~near].any()


def test_canny_with_higher_thresholds_finds_fewer_edges() -> None:
    noisy = np.random.default_rng(0).integers(90, 150, (HEIGHT, WIDTH, 3)).astype(np.uint8)
    many = annotate("canny", noisy, {"low_threshold": 20, "high_threshold": 60})
    few = annotate("canny", noisy, {"low_threshold": 150, "high_threshold": 250})
    assert 0 <= few.sum() < many.sum()


def test_line_drawing_becomes_white_lines_on_black() -> None:
    drawing = np.full((HEIGHT, WIDTH, 3), 250, dtype=np.uint8)
    cv2.line(drawing, (5, 30), (78, 30), (10, 10, 10), thickness=2)
    lines = annotate("lineart", drawing, {})[:, :, 0]
    assert lines[30, 20:60].min() > 100
    assert lines[5, :].max() == 0


def test_grey_has_equal_channels_of_the_usual_luma() -> None:
    gray = annotate("grey", disk_picture(), {})
    assert (gray[:, :, 0] == gray[:, :, 2]).all()
    assert gray[30, 40, 0] == round(0.299 * 150 + 0.587 * 20 + 0.114 * 30)


def test_tile_removes_single_pixels_and_keeps_areas() -> None:
    pixels = disk_picture()
    pixels[5, 5] = (0, 0, 255)
    tile = annotate("tile", pixels, {"down_sampling_rate": 6})
    assert abs(int(tile[5, 5, 0]) - 235) < 25
    assert abs(int(tile[30, 40, 0]) - 150) < 25


def test_shuffle_moves_pixels_by_its_seed() -> None:
    first, second = (annotate("shuffle", disk_picture(), {"seed": seed, "grain_px": 32}) for seed in (1, 2))
    assert first.tobytes() != second.tobytes()
    assert set(np.unique(first[:, :, 1])) <= set(range(20, 236))


# ---- by models: the weights are random, what is around them is as with real ones


def test_depth_is_stretched_to_the_whole_range(tmp_path: Path) -> None:
    torch.manual_seed(0)
    backbone = Dinov2Config(
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        image_size=28,
        patch_size=14,
        out_indices=[1, 2, 3, 4],
        reshape_hidden_states=False,
        apply_layernorm=True,
    )
    config = DepthAnythingConfig(
        backbone_config=backbone,
        patch_size=14,
        reassemble_hidden_size=32,
        neck_hidden_sizes=[8, 8, 8, 8],
        fusion_hidden_size=8,
        head_hidden_size=8,
    )
    DepthAnythingForDepthEstimation(config).save_pretrained(tmp_path)
    size = {"height": 56, "width": 56}
    DPTImageProcessorPil(size=size, ensure_multiple_of=14, keep_aspect_ratio=True).save_pretrained(tmp_path)
    depth = DepthAnnotator(tmp_path, device="cpu").annotate(disk_picture(), {})
    assert depth.shape == (HEIGHT, WIDTH, 3)
    assert (depth.min(), depth.max()) == (0, 255)
    assert (depth[:, :, 0] == depth[:, :, 1]).all()


def test_segmentation_has_colors_of_ade20k_only(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = SegformerConfig(
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[8, 16],
        num_attention_heads=[1, 2],
        patch_sizes=[7, 3],
        strides=[4, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=16,
        num_labels=150,
    )
    SegformerForSemanticSegmentation(config).save_pretrained(tmp_path)
    SegformerImageProcessorPil(size={"height": 64, "width": 64}).save_pretrained(tmp_path)
    colors = SegmentationAnnotator(tmp_path, device="cpu").annotate(disk_picture(), {})
    assert colors.shape == (HEIGHT, WIDTH, 3)
    known = {tuple(color) for color in ADE20K.tolist()}
    assert {tuple(color) for color in colors.reshape(-1, 3).tolist()} <= known


def test_palette_begins_with_wall_building_and_sky() -> None:
    assert ADE20K.shape == (150, 3)
    assert ADE20K[:3].tolist() == [[120, 120, 120], [180, 120, 120], [6, 230, 230]]
    assert ADE20K[149].tolist() == [92, 0, 255]


def test_model_without_safetensors_is_refused(tmp_path: Path) -> None:
    YolosConfig().save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04N.")
    with pytest.raises(OSError, match="safetensors"):
        PoseAnnotator(tmp_path, tmp_path, device="cpu")


def pose_models(folder: Path, *, person: str) -> tuple[Path, Path]:
    """Save a tiny ViTPose, and a tiny detector whose one class has this name."""
    torch.manual_seed(0)
    backbone = VitPoseBackboneConfig(
        image_size=[64, 48],
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        out_indices=[1],
        num_experts=1,
    )
    pose, detector = folder / "pose", folder / "detector"
    config = VitPoseConfig(backbone_config=backbone, num_labels=17, use_simple_decoder=True)
    VitPoseForPoseEstimation(config).save_pretrained(pose)
    VitPoseImageProcessorPil(size={"height": 64, "width": 48}).save_pretrained(pose)
    small = YolosConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=[64, 64],
        num_detection_tokens=4,
        id2label={0: person},
    )
    YolosForObjectDetection(small).save_pretrained(detector)
    YolosImageProcessorPil(size={"height": 64, "width": 64}).save_pretrained(detector)
    return pose, detector


def test_pose_draws_skeletons_of_people_and_nothing_for_other_things(tmp_path: Path) -> None:
    people = load("pose", pose_models(tmp_path / "people", person="person"), device="cpu")
    dogs = PoseAnnotator(*pose_models(tmp_path / "dogs", person="dog"), device="cpu")
    drawn = people.annotate(disk_picture(), {"threshold": 0.0})
    assert drawn.shape == (HEIGHT, WIDTH, 3)
    assert drawn.any()
    assert not dogs.annotate(disk_picture(), {"threshold": 0.0}).any()


def test_skeleton_has_the_limbs_of_openpose_in_their_colors() -> None:
    canvas = np.zeros((100, 100, 3), dtype=np.uint8)
    points, scores = np.zeros((17, 2)), np.zeros(17)
    for coco, point in {6: (70, 30), 5: (30, 30), 8: (80, 60)}.items():
        points[coco], scores[coco] = point, 0.9
    draw_skeleton(canvas, points, scores, threshold=0.5)
    assert canvas[30, 50].tolist() == [255, 85, 0]  # the neck, between the shoulders
    assert canvas[30, 62].tolist() == [153, 0, 0]  # from the neck to the right shoulder, dimmed
    assert canvas[60, 80].tolist() == [255, 255, 0]  # the right elbow
    assert canvas[90:, :].max() == 0
