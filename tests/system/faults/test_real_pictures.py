"""Pictures by the real engine, which draws shapes: the engine is killed in the middle of a lease."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.system.conftest import until
from tests.system.faults.ordered_pictures import OrderedPictures
from tests.system.faults.real_jobs import PATIENCE_S
from tests.system.faults.rig import Rig
from tests.system.faults.setup import PATIENT

from giornata.diffusion.shapes.shipped import copy_drawing_model
from giornata.domain.generation.picture import PictureState

GROUND = PATIENT
PROMPTS = [f"a {color} circle" for color in ("red", "green", "blue", "white", "black", "grey")]
# The passes of other rows may move a pixel by one level of 255. Random weights would make a
# difference of rounding ten thousand times as large.
ONE_LEVEL = 1


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The smallest pictures of a trained model."""
    model = copy_drawing_model(tmp_path_factory.mktemp("model") / "shapes")
    return {"model": {"name": str(model)}, "num_inference_steps": 20, "guidance_scale": 5.0}


def pixels(order: OrderedPictures) -> list[Any]:
    """The pictures of a finished order, by number."""
    return [np.asarray(Image.open(io.BytesIO(data)), dtype=np.int16) for data in order.files()]


def test_pictures_are_the_same_whether_or_not_their_engine_was_killed(rig: Rig, spec: dict[str, Any]) -> None:
    node = rig.start_node(kinds=["generate"], workloads={}, device="cpu", max_pictures=4, companion_every_s=0.2)
    undisturbed = OrderedPictures(rig, prompts=PROMPTS, **spec)
    undisturbed.await_succeeded(PATIENCE_S)
    killed = OrderedPictures(rig, prompts=PROMPTS, **spec)
    until(lambda: killed.states()[PictureState.LEASED], killed.story, PATIENCE_S)
    node.kill_engine()
    killed.await_succeeded(PATIENCE_S)
    wanted, found = pixels(undisturbed), pixels(killed)
    assert {each.shape for each in wanted} == {(64, 64, 3)}
    assert all(np.ptp(each) > 0 for each in wanted), "a picture shows something"
    assert len({each.tobytes() for each in wanted}) == len(PROMPTS)
    for one, other in zip(wanted, found, strict=True):
        assert np.abs(one - other).max() <= ONE_LEVEL
    left = [path for path in node.work_dir.rglob("*.png") if path.is_file()]
    assert left == [], "nothing of a lease stays on the node's disk"
