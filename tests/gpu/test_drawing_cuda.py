"""Pictures on a GPU in half precision, by the small model that draws shapes: finite, repeatable, without waits."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.fixtures.drawing import ReferencePicture, said, scheduler_of, sizes
from tests.fixtures.train_rig import RecordingReporter

from giornata.diffusion.base.models import ModelLocation, load_model
from giornata.diffusion.draws.determinism import fix_determinism
from giornata.diffusion.sampling import initial_latents
from giornata.diffusion.sampling.attention import look_up_attention_once
from giornata.diffusion.sampling.denoising import Denoiser
from giornata.diffusion.sampling.picture_decoder import PictureDecoder
from giornata.diffusion.sampling.row_schedule import RowSchedule
from giornata.diffusion.sampling.rows import DenoisingRow
from giornata.diffusion.shapes.shipped import copy_drawing_model
from giornata.protocol.generation.picture import PictureParams
from giornata.protocol.node.pipe import Start
from giornata.protocol.training.optimization import Compile
from giornata.workloads.generate.compiling import DrawingCompiler
from giornata.workloads.generate.warm_models import PLAIN
from giornata.workloads.generate.workload import GenerateWorkload

torch = pytest.importorskip("torch")
DEVICE = "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="needs a CUDA device"),
]

PROMPTS = [f"a {color} {form}" for color in ("red", "green", "blue", "yellow") for form in ("circle", "square")]
STEPS = 20
ONE_LEVEL = 1


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fix_determinism(1)  # CUBLAS_WORKSPACE_CONFIG is set by tests/gpu/conftest.py, before CUDA starts
    return copy_drawing_model(tmp_path_factory.mktemp("model") / "shapes")


def drawn(model: Path, folder: Path, places: range, *, compiler: DrawingCompiler = PLAIN) -> list[bytes]:
    """The files of the pictures at these places, drawn in one lease by a workload of its own."""
    folder.mkdir()
    pictures = [{"order_id": "order_1", "number": place, "params": params(model, place)} for place in places]
    names = {"attempt": folder.name, "job": "", "kind": "generate"}
    reporter = RecordingReporter()
    workload = GenerateWorkload(device=DEVICE, rows=len(PROMPTS), compiler=compiler)
    workload.run(Start(**names, spec={"pictures": pictures}, directory=folder, inputs=()), reporter)
    assert not reporter.failed_pictures
    paths = [reporter.pictures["order_1", place][0] for place in places]
    return [path.read_bytes() for path in paths if path is not None]


def params(model: Path, place: int) -> dict[str, Any]:
    told = {"model": {"name": str(model)}, "prompt": PROMPTS[place], "seed": place}
    size = {"width": 64, "height": 64, "num_inference_steps": STEPS, "guidance_scale": 5.0}
    return PictureParams.model_validate({**told, **size}).model_dump(mode="json")


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"), dtype=np.int16)


def test_a_picture_alone_has_the_same_bytes_twice(model: Path, tmp_path: Path) -> None:
    [once], [again] = (drawn(model, tmp_path / name, range(1)) for name in ("once", "again"))
    assert once == again
    assert np.ptp(pixels(once)) > 0, "a picture shows something"


def test_rows_of_a_batch_are_within_one_level_of_pictures_alone(model: Path, tmp_path: Path) -> None:
    together = drawn(model, tmp_path / "together", range(len(PROMPTS)))
    alone = [drawn(model, tmp_path / f"alone-{place}", range(place, place + 1))[0] for place in range(len(PROMPTS))]
    assert len({pixels(each).tobytes() for each in together}) == len(PROMPTS)
    furthest = [int(np.abs(pixels(one) - pixels(other)).max()) for one, other in zip(together, alone, strict=True)]
    assert max(furthest) <= ONE_LEVEL, furthest


def test_rows_by_kernels_are_within_one_level_of_plain_rows(model: Path, tmp_path: Path) -> None:
    places = range(len(PROMPTS))
    compiled = drawn(model, tmp_path / "compiled", places, compiler=DrawingCompiler(choice=Compile.ON))
    plain = drawn(model, tmp_path / "plain", places)
    furthest = [int(np.abs(pixels(one) - pixels(other)).max()) for one, other in zip(compiled, plain, strict=True)]
    assert max(furthest) <= ONE_LEVEL, furthest
    assert all(b'"compile"' in png for png in compiled)


def test_evaluations_run_ahead_of_the_device_and_stay_finite_in_half_precision(model: Path) -> None:
    """After the first evaluation whoever waits for the device gets an error."""
    dtype = torch.float16 if DEVICE == "cuda" else torch.float32
    base = load_model(ModelLocation(name=str(model), key="shapes"), device=DEVICE, dtype=dtype)
    look_up_attention_once(base.unet)
    rows = [
        _row(base, ReferencePicture(seed=place, steps=STEPS, prompt=prompt)) for place, prompt in enumerate(PROMPTS)
    ]
    denoiser = Denoiser(base.unet)
    denoiser.step(rows)
    try:
        torch.cuda.set_sync_debug_mode("error") if DEVICE == "cuda" else None
        while not rows[0].is_done:
            denoiser.step(rows)
    finally:
        torch.cuda.set_sync_debug_mode("default") if DEVICE == "cuda" else None
    latents_R1CHW = torch.stack([row.latents_1CHW for row in rows])
    assert latents_R1CHW.dtype == dtype
    assert torch.isfinite(latents_R1CHW).all()
    pictures = [PictureDecoder(base).picture(row.latents_1CHW) for row in rows]
    assert all(np.ptp(np.asarray(picture)) > 0 for picture in pictures)


def _row(base: Any, wanted: ReferencePicture) -> DenoisingRow:
    generator = initial_latents.seeded(wanted.seed)
    schedule = RowSchedule.whole(scheduler_of(base, wanted), wanted.steps, generator=generator)
    return DenoisingRow(
        text=said(base, wanted),
        schedule=schedule,
        latents_1CHW=initial_latents.from_text(base, schedule, generator, width=64, height=64),
        guidance_scale=wanted.guidance,
        sizes=sizes(),
    )
