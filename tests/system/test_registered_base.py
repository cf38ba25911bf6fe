"""Orders and training jobs whose base is a registered file: server, agent and engine are real, and use the file."""

import io
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.system.conftest import until
from tests.system.faults.ordered_pictures import OrderedPictures
from tests.system.faults.rig import SCRIPTS, Rig, running_rig
from tests.system.faults.setup import PATIENT

from giornata.agent.work_dir import CACHE_DIRECTORY, MODEL_DIRECTORY
from giornata.diffusion.families import SD15
from giornata.domain.generation.model_kinds import ModelFamily, ModelKind
from giornata.domain.jobs.job import JobState
from giornata.protocol.models import AddModel

SPEC = {"prompts": ["a red circle"], "num_inference_steps": 3, "seed": 7, "width": 64, "height": 64}
PATIENCE_S = 300.0


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A server, and one node whose engine keeps bases in host memory."""
    # Here: a process that runs other tests need not load torch.
    from giornata.diffusion.tiny.tiny_model import build_tiny_model

    folder = tmp_path_factory.mktemp("rig")
    layouts = folder / "layouts"
    configs = build_tiny_model(folder / "tiny", SD15)
    shutil.copytree(configs, layouts / SD15.name, ignore=shutil.ignore_patterns("*.safetensors"))
    with running_rig(folder, PATIENT) as running:
        built_in = (sys.executable, str(SCRIPTS / "tiny_layouts_engine.py"), str(layouts))
        settings = {"kinds": ["generate", "train"], "device": "cpu", "host_model_bytes": 10**9}
        running.start_drawing_node(built_in=built_in, **settings)
        yield running


def test_pictures_of_registered_bases_are_those_of_diffusers_and_the_server_knows_what_is_in_host_memory(
    rig: Rig, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file
    from tests.fixtures.single_file import write_single_file

    from giornata.diffusion.tiny.tiny_model import tiny_sd15_pipeline

    file = write_single_file(tmp_path / "first.safetensors", tiny_sd15_pipeline())
    other = tmp_path / "second.safetensors"
    save_file({name: 1.01 * each for name, each in load_file(file).items()}, other)
    for each in (file, other):
        (sent,) = rig.client.upload_files([each])
        known = {"kind": ModelKind.BASE, "family": ModelFamily.SD15, "sha256": sent.sha256}
        rig.client.add_model(AddModel.model_validate({"name": each.stem, **known}))

    first, second, again = (drawn(rig, name) for name in ("first", "second", "first"))

    assert (pixels(first) == pixels_of_diffusers()).all()
    assert first == again != second
    until(lambda: tiers(rig, "first") == (1, 0, 0), "the first base in GPU memory", PATIENCE_S)
    until(lambda: tiers(rig, "second") == (0, 1, 0), "the second base in host memory", PATIENCE_S)


def test_node_that_draws_and_trains_with_a_registered_base_has_one_copy_of_its_file(rig: Rig, tmp_path: Path) -> None:
    from tests.fixtures.single_file import write_single_file
    from tests.fixtures.train_rig import draw_pictures

    from giornata.diffusion.tiny.tiny_model import tiny_sd15_pipeline

    (sent,) = rig.client.upload_files([write_single_file(tmp_path / "third.safetensors", tiny_sd15_pipeline())])
    known = {"kind": ModelKind.BASE, "family": ModelFamily.SD15, "sha256": sent.sha256}
    rig.client.add_model(AddModel.model_validate({"name": "third", **known}))
    draw_pictures(tmp_path / "pictures", 2)
    dataset = rig.client.dataset_from_folder(tmp_path / "pictures", instance_prompt="a toy")
    store = rig.node.work_dir / MODEL_DIRECTORY
    for file in store.glob("[!.]*"):
        file.unlink()

    drawn(rig, "third")
    [before] = [each.stat().st_ino for each in store.glob("[!.]*")]
    spec = {"pretrained_model_name_or_path": "third", "dataset": dataset.id, "instance_prompt": "a toy"}
    spec |= {"resolution": 64, "mixed_precision": "no", "max_train_steps": 1}
    job = rig.client.wait(rig.client.submit(spec).id, timeout_s=PATIENCE_S, poll_s=0.2)

    assert job.state is JobState.SUCCEEDED, rig.story(job.id)
    [kept] = store.glob("[!.]*")
    assert (kept.name, kept.stat().st_ino) == (sent.sha256, before)
    assert not list((rig.node.work_dir / CACHE_DIRECTORY).rglob(sent.sha256))


def drawn(rig: Rig, base: str) -> bytes:
    """The file of one picture that is drawn with a registered base."""
    order = OrderedPictures(rig, **{**SPEC, "model": {"name": base}})
    order.await_succeeded(PATIENCE_S)
    [found] = order.files()
    return found


def tiers(rig: Rig, base: str) -> tuple[int, int, int]:
    """How many nodes have the base in GPU memory, in host memory and on disk; each counts in its fastest tier."""
    found = rig.client.model_coverage(base)
    return found.gpu, found.host, found.disk


def pixels(file: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(file)))


def pixels_of_diffusers() -> np.ndarray:
    import torch
    from diffusers import EulerDiscreteScheduler

    from giornata.diffusion.tiny.tiny_model import tiny_sd15_pipeline

    pipeline = tiny_sd15_pipeline()
    pipeline.scheduler = EulerDiscreteScheduler.from_config(pipeline.scheduler.config)
    asked = {name: SPEC[name] for name in ("num_inference_steps", "width", "height")}
    seeded = torch.Generator("cpu").manual_seed(SPEC["seed"])
    return np.asarray(pipeline(SPEC["prompts"][0], generator=seeded, guidance_scale=7.0, **asked).images[0])
