"""Control pictures, ControlNets and the safety checker of the `generate` kind, on the tiny models."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import ControlNetModel
from PIL import Image
from tests.fixtures.drawing import ReferencePicture, asked, photo, pipeline_of
from tests.fixtures.picture_leases import ORDER, CountedWorkload, lease, params, sha256_of
from tests.fixtures.train_rig import RecordingReporter

from giornata.diffusion.annotators.inline import annotate
from giornata.diffusion.base.models import ModelLocation, load_model
from giornata.domain.generation.picture import SafetyPolicy
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.generation.annotators import annotation_key
from giornata.protocol.generation.preprocess import AnnotationParams, annotator_key
from giornata.protocol.node.pictures import PictureFlag
from giornata.workloads.generate.control_pictures import ControlPictures
from giornata.workloads.generate.safety_checks import SafetyChecks
from giornata.workloads.generate.workload import GenerateWorkload

CPU = torch.device("cpu")
Given = tuple[str, Path]


@pytest.fixture
def control(tmp_path: Path) -> Path:
    file = tmp_path / "photo.png"
    photo().save(file)
    return file


def random_controlnet(folder: Path, made: Path) -> Path:
    """Save a ControlNet for the model in the folder, whose answers are not 0."""
    base = load_model(ModelLocation(name=str(folder), key="k"), device="cpu", dtype=torch.float32)
    draw = torch.Generator().manual_seed(5)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(5)
        net = ControlNetModel.from_unet(base.unet)
        for block in (*net.controlnet_down_blocks, net.controlnet_mid_block):
            block.weight.add_(0.1 * torch.randn(block.weight.shape, generator=draw))
    net.save_pretrained(made, safe_serialization=True)
    return made


@pytest.mark.parametrize("family", ["sdxl", "sd15"])
def test_picture_by_edges_has_the_bytes_of_the_pipelines(
    family: str, tiny_folder: Path, tiny_sd15_folder: Path, control: Path, tmp_path: Path
) -> None:
    folder = tiny_folder if family == "sdxl" else tiny_sd15_folder
    made = random_controlnet(folder, tmp_path / "net")
    base, wanted = (
        load_model(ModelLocation(name=str(folder), key="k"), device=CPU, dtype=torch.float32),
        ReferencePicture(steps=4),
    )
    edges = Image.fromarray(annotate("canny", np.asarray(photo()), {"low_threshold": 20, "high_threshold": 40}))
    pipeline = pipeline_of(base, wanted, "ControlNet", controlnet=ControlNetModel.from_pretrained(made))
    settings = {"controlnet_conditioning_scale": 0.7, "control_guidance_end": 0.75, "height": 64, "width": 64}
    theirs = pipeline(**asked(wanted), image=edges, **settings).images[0]
    use = {
        "name": str(made),
        "image": sha256_of(control),
        "annotator": "canny",
        "annotator_params": {"low_threshold": 20, "high_threshold": 40},
        "weight": 0.7,
        "end": 0.75,
    }
    common: dict[str, Any] = {"negative_prompt": "blue", "num_inference_steps": 4}

    ours = CountedWorkload().draw(
        lease(tmp_path, [params(folder, controlnets=[use], **common)], [("picture", control)])
    )
    plain = CountedWorkload().draw(lease(tmp_path, [params(folder, **common)]))

    assert (pixels(ours) == np.asarray(theirs)).all()
    assert (pixels(ours) != pixels(plain)).any()


def pixels(reporter: RecordingReporter, number: int = 0) -> np.ndarray:
    path, _, _ = reporter.pictures[ORDER, number]
    assert path is not None
    return np.asarray(Image.open(path))


@dataclass
class CountedAnnotator:
    """Annotates by inverting, and counts. `error` is raised instead of loading it."""

    error: Exception | None = None
    loads: list[str] = field(default_factory=list)
    count: int = 0

    def load(self, name: str, _device: torch.device) -> "CountedAnnotator":
        self.loads.append(name)
        if self.error is not None:
            raise self.error
        return self

    def annotate(self, pixels_HW3: np.ndarray, _params: object) -> np.ndarray:
        self.count += 1
        return 255 - pixels_HW3


def by_model(annotator: CountedAnnotator) -> GenerateWorkload:
    return GenerateWorkload(device="cpu", control_pictures=ControlPictures(CPU, load=annotator.load))


def by_depth(folder: Path, control: Path, **changes: Any) -> dict[str, Any]:
    use = {"name": str(folder.parent / "net"), "image": sha256_of(control), "annotator": "depth"}
    return params(folder, controlnets=[use], **changes)


@pytest.fixture
def beside_net(tiny_folder: Path, tmp_path: Path) -> Path:
    """The tiny model in a folder that has a ControlNet beside it."""
    random_controlnet(tiny_folder, tmp_path / "net")
    (tmp_path / "base").symlink_to(tiny_folder)
    return tmp_path / "base"


def drawn_by(
    workload: GenerateWorkload, root: Path, pictures: list[dict[str, Any]], *given: Given
) -> RecordingReporter:
    told = RecordingReporter()
    workload.run(lease(root, pictures, given), told)
    return told


def test_annotation_by_a_model_is_made_once_and_of_pictures_of_the_lease_alone(
    beside_net: Path, control: Path, tmp_path: Path
) -> None:
    annotator = CountedAnnotator()
    workload = by_model(annotator)
    pictures = [by_depth(beside_net, control, seed=seed) for seed in range(2)]

    drawn = drawn_by(workload, tmp_path, pictures, ("picture", control))
    without = drawn_by(workload, tmp_path, pictures[:1])

    assert len(drawn.pictures) == 2
    assert (annotator.loads, annotator.count) == (["depth"], 1)
    assert list(without.failed_pictures) == [(ORDER, 0)]


def test_picture_whose_annotator_cannot_be_loaded_fails_alone_with_words(
    beside_net: Path, control: Path, tmp_path: Path
) -> None:
    workload = by_model(CountedAnnotator(error=OSError("no such model")))
    pictures = [by_depth(beside_net, control), params(beside_net)]

    told = drawn_by(workload, tmp_path, pictures, ("picture", control))

    found, message = told.failed_pictures[ORDER, 0]
    assert found is Reason.NODE_DOWNLOAD
    assert "cannot be loaded on this node: no such model" in message
    assert list(told.pictures) == [(ORDER, 1)]


def test_annotations_of_an_order_are_written_without_any_base_model(control: Path, tmp_path: Path) -> None:
    shared = {"annotator": "canny", "annotator_params": {"low_threshold": 20, "high_threshold": 40}}
    pictures = [
        AnnotationParams(image=image, **shared).model_dump(mode="json") for image in (sha256_of(control), "0" * 64)
    ]
    workload = GenerateWorkload(device="cpu")
    start = lease(tmp_path, pictures, [("picture", control)])

    told = RecordingReporter()
    workload.run(start, told)

    edges = annotate("canny", np.asarray(photo()), {"low_threshold": 20, "high_threshold": 40})
    assert (pixels(told) == edges).all()
    assert list(told.failed_pictures) == [(ORDER, 1)]
    assert workload.held() == ()
    assert workload.joins(start) == annotator_key(AnnotationParams(image="0" * 64, **shared))


def test_annotation_that_the_lease_brings_is_used_and_not_made(control: Path, tmp_path: Path) -> None:
    asked_for = AnnotationParams(image=sha256_of(control), annotator="depth")
    kept = tmp_path / annotation_key(asked_for.image, "depth", {})
    Image.new("RGB", (64, 64), "teal").save(kept, "PNG")
    annotator = CountedAnnotator()

    files = [("picture", control), ("annotation", kept)]
    told = RecordingReporter()
    by_model(annotator).run(lease(tmp_path, [asked_for.model_dump(mode="json")], files), told)

    assert annotator.count == 0
    assert (pixels(told) == np.asarray(Image.open(kept))).all()
    assert told.puts == []


def test_annotation_that_the_project_wants_is_offered_once(control: Path, tmp_path: Path) -> None:
    asked_for = AnnotationParams(image=sha256_of(control), annotator="depth")
    key = annotation_key(asked_for.image, "depth", {})
    pictures, told = [asked_for.model_dump(mode="json")] * 2, RecordingReporter()

    by_model(CountedAnnotator()).run(
        lease(tmp_path, pictures, [("picture", control)], wanted_annotations=[key]), told
    )

    assert told.puts == [f"annotation:{key}"]
    assert (np.asarray(Image.open(told.cache[told.puts[0]])) == pixels(told)).all()


@dataclass
class ToldChecker:
    """Takes pictures for unsafe as told. `error` is raised instead of loading it."""

    verdicts: list[bool] = field(default_factory=list)
    error: Exception | None = None
    seen: list[tuple[int, ...]] = field(default_factory=list)

    def load(self, _model: str, _device: torch.device) -> "ToldChecker":
        if self.error is not None:
            raise self.error
        return self

    def unsafe(self, pictures: Sequence[np.ndarray]) -> list[bool]:
        self.seen += [picture.shape for picture in pictures]
        return [self.verdicts.pop(0) for _ in pictures]


def checked_by(checker: ToldChecker) -> GenerateWorkload:
    return GenerateWorkload(device="cpu", safety=SafetyChecks(CPU, load=checker.load))


def test_blocked_picture_is_never_written_and_the_others_are(tiny_folder: Path, tmp_path: Path) -> None:
    checker = ToldChecker(verdicts=[True, False])
    pictures = [params(tiny_folder, seed=seed, safety_checker=seed < 2) for seed in range(3)]
    start, told = lease(tmp_path, pictures), RecordingReporter()

    checked_by(checker).run(start, told)

    found = {number: (path is None, flags) for (_, number), (path, _, flags) in told.pictures.items()}
    assert found == {0: (True, PictureFlag.BLOCKED), 1: (False, 0), 2: (False, 0)}
    assert checker.seen == [(64, 64, 3)] * 2
    assert sorted(path.name for path in start.directory.iterdir()) == [f"{ORDER}-1.png", f"{ORDER}-2.png"]


def test_lease_that_flags_keeps_unsafe_pictures_and_blocks_where_the_order_asks(
    tiny_folder: Path, tmp_path: Path
) -> None:
    checker = ToldChecker(verdicts=[True, False, True])
    pictures = [params(tiny_folder, seed=seed, safety_checker=seed == 2) for seed in range(3)]
    start, told = lease(tmp_path, pictures, safety=SafetyPolicy.FLAG), RecordingReporter()

    checked_by(checker).run(start, told)

    found = {number: (path is None, flags) for (_, number), (path, _, flags) in told.pictures.items()}
    assert found == {0: (False, PictureFlag.UNSAFE), 1: (False, 0), 2: (True, PictureFlag.BLOCKED)}


def test_lease_that_blocks_writes_no_unsafe_picture_of_an_order_that_does_not_ask(
    tiny_folder: Path, tmp_path: Path
) -> None:
    checker = ToldChecker(verdicts=[True, False])
    start = lease(tmp_path, [params(tiny_folder, seed=seed) for seed in range(2)], safety=SafetyPolicy.BLOCK)
    told = RecordingReporter()

    checked_by(checker).run(start, told)

    assert [flags for _, _, flags in told.pictures.values()] == [PictureFlag.BLOCKED, 0]
    assert [path.name for path in start.directory.iterdir()] == [f"{ORDER}-1.png"]


def test_picture_is_not_drawn_where_the_checker_cannot_be_loaded(tiny_folder: Path, tmp_path: Path) -> None:
    workload = checked_by(ToldChecker(error=OSError("the hub is away")))
    pictures = [params(tiny_folder, safety_checker=True), params(tiny_folder)]

    told = drawn_by(workload, tmp_path, pictures)

    assert told.failed_pictures[ORDER, 0][0] is Reason.NODE_DOWNLOAD
    assert list(told.pictures) == [(ORDER, 1)]
