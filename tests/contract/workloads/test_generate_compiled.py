"""Leases of pictures by compiled kernels: what the node's choice does, what files say, and how close pixels stay."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.fixtures.kernels import needs_compiler
from tests.fixtures.picture_leases import ORDER, CountedWorkload, lease, params
from tests.fixtures.train_rig import RecordingReporter

from giornata.diffusion.shapes.shipped import copy_drawing_model
from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.training.optimization import Compile
from giornata.workloads.generate.compiling import PASSES_BEFORE_AUTO, DrawingCompiler

CUDA = torch.device("cuda")


def compiler(choice: Compile, *, version: str | None = "eager 1", **more: Any) -> DrawingCompiler:
    given = {"backend": "eager", "version_of": lambda _device: version, **more}
    return DrawingCompiler(choice=choice, **given)


def made_with(drawn: RecordingReporter, number: int = 0) -> dict[str, str]:
    path = drawn.pictures[ORDER, number][0]
    assert path is not None
    with Image.open(path) as opened:
        told: dict[str, str] = json.loads(opened.info["giornata"])["made_with"]
    return told


def pixels(drawn: RecordingReporter, number: int) -> np.ndarray:
    path = drawn.pictures[ORDER, number][0]
    assert path is not None
    return np.asarray(Image.open(path)).astype(int)


def test_pictures_by_kernels_say_so_and_pass_through_a_swap_of_the_base(tiny_folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.symlink_to(tiny_folder)
    counted = CountedWorkload(compiler=compiler(Compile.ON))
    three = [params(tiny_folder, seed=seed, num_inference_steps=2) for seed in range(3)]
    drawn = counted.draw(lease(tmp_path, three))
    assert counted.passes == [8, 8]
    assert {made_with(drawn, number)["compile"] for number in range(3)} == {"eager 1"}
    with torch._dynamo.config.patch(error_on_recompile=True):
        swapped = counted.draw(lease(tmp_path, [{**each, "model": {"name": str(other)}} for each in three]))
    assert np.abs(pixels(swapped, 1) - pixels(drawn, 1)).max() == 0
    counted.workload._models.drop()


def test_pictures_of_a_node_that_compiles_nothing_say_nothing(tiny_folder: Path, tmp_path: Path) -> None:
    for choice in (Compile.OFF, Compile.AUTO):
        counted = CountedWorkload(compiler=compiler(choice))
        drawn = counted.draw(lease(tmp_path, [params(tiny_folder, num_inference_steps=2)]))
        assert "compile" not in made_with(drawn)
        assert counted.passes == [2, 2]


def test_a_node_that_has_to_compile_and_cannot_sends_the_lease_away(tiny_folder: Path, tmp_path: Path) -> None:
    counted = CountedWorkload(compiler=compiler(Compile.ON, version=None))
    with pytest.raises(WorkloadFailed, match=r"compile: this node has nothing that compiles kernels") as failure:
        counted.draw(lease(tmp_path, [params(tiny_folder)]))
    assert failure.value.reason is Reason.CRASHED


def test_auto_compiles_on_known_gpus_with_a_compiler_after_many_passes() -> None:
    def passes(capability: tuple[int, int], **more: Any) -> Any:
        return compiler(Compile.AUTO, capability_of=lambda _device: capability, **more).passes_of(None, CUDA)

    assert passes((7, 5)) is None
    assert passes((9, 0), version=None) is None
    found = passes((9, 0))
    assert found._rules.checked
    assert found._rules.passes_before == PASSES_BEFORE_AUTO
    assert compiler(Compile.OFF, capability_of=lambda _device: (9, 0)).passes_of(None, CUDA) is None


@needs_compiler
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_rows_by_real_kernels_are_within_one_level_of_plain_ones(tmp_path: Path) -> None:
    """Of the drawing model: random weights make differences of rounding a thousand times as large."""
    model = copy_drawing_model(tmp_path / "shapes")
    prompts = ("a red circle", "a blue square", "a green circle")
    each = [params(model, seed=seed, prompt=prompt, num_inference_steps=10) for seed, prompt in enumerate(prompts)]
    counted = CountedWorkload(compiler=DrawingCompiler(choice=Compile.ON))
    compiled, plain = counted.draw(lease(tmp_path, each)), CountedWorkload().draw(lease(tmp_path, each))
    again = counted.draw(lease(tmp_path, each))
    for number in range(len(each)):
        assert made_with(compiled, number)["compile"]
        assert np.abs(pixels(compiled, number) - pixels(plain, number)).max() <= 1
        assert (pixels(compiled, number) == pixels(again, number)).all()
    counted.workload._models.drop()
