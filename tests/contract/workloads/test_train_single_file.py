"""A job on a single file trains what it trains on the same model in diffusers layout."""

import shutil
from functools import partial
from pathlib import Path

import pytest
from safetensors.torch import load
from tests.fixtures.single_file import write_single_file
from tests.fixtures.train_rig import RecordingReporter, TrainRig, draw_pictures, input_file, spec_for

from giornata.diffusion.base.models import load_base
from giornata.diffusion.families import SD15
from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.pipe import InputFile
from giornata.workloads.train.workload import TrainWorkload


def test_the_same_weights_are_trained(tiny_sd15_folder: Path, tmp_path: Path) -> None:
    pipeline = SD15.load_pipeline(tiny_sd15_folder, dtype=None)
    file = write_single_file(tmp_path / "model.safetensors", pipeline)
    layouts = tmp_path / "layouts"
    shutil.copytree(tiny_sd15_folder, layouts / "sd15", ignore=shutil.ignore_patterns("*.safetensors"))
    inputs = draw_pictures(tmp_path / "pictures", 3)
    results = []
    for model in (tiny_sd15_folder, file):
        spec = spec_for(model, max_train_steps=3, train_text_encoder=True, text_encoder_lr=1e-3)
        train_rig = TrainRig(root=tmp_path / f"of {model.name}", spec=spec, inputs=inputs)
        workload = TrainWorkload(device="cpu", load=partial(load_base, layouts=layouts))
        results.append(train_rig.run(workload=workload).artifacts)
    for name in (name for name in results[0] if name.endswith(".safetensors")):
        ours, theirs = load(results[0][name]), load(results[1][name])
        assert ours.keys() == theirs.keys()
        assert all((ours[key] == theirs[key]).all() for key in ours)


class FileOfBase:
    """A base in one file, as the model store of a node has it, and attempts at a job that trains on it."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.root, self.layouts = root, root / "layouts"
        file = write_single_file(root / "model.safetensors", SD15.load_pipeline(folder, dtype=None))
        shutil.copytree(folder, self.layouts / "sd15", ignore=shutil.ignore_patterns("*.safetensors"))
        self.sha256 = input_file(file).sha256
        self.stored = root / "models" / self.sha256
        self.stored.parent.mkdir()
        shutil.copyfile(file, self.stored)
        self.pictures = draw_pictures(root / "pictures", 2)

    def rig(self, name: str, *, came: bool) -> TrainRig:
        """A job on the base of this name. `came`: the file of the base came with the lease."""
        file = InputFile(role="base", path=self.stored, sha256=self.sha256, name=name)
        spec = spec_for(Path(name), max_train_steps=3, pretrained_model_sha256=self.sha256, checkpointing_steps=2)
        return TrainRig(
            root=self.root / f"came {came}", spec=spec, inputs=[*self.pictures, *([file] if came else [])]
        )

    def workload(self) -> TrainWorkload:
        return TrainWorkload(device="cpu", load=partial(load_base, layouts=self.layouts))


@pytest.fixture
def base(tiny_sd15_folder: Path, tmp_path: Path) -> FileOfBase:
    return FileOfBase(tiny_sd15_folder, tmp_path)


def lora_of(told: RecordingReporter) -> bytes:
    return next(content for name, content in told.artifacts.items() if name.endswith(".safetensors"))


def test_base_that_came_with_the_lease_goes_on_from_a_checkpoint_on_the_same_file_of_the_node(
    base: FileOfBase,
) -> None:
    name = str(base.root / "model.safetensors")
    on_node, leased = base.rig(name, came=False), base.rig(name, came=True)
    whole = on_node.run(workload=base.workload())
    Path(name).unlink()
    resumed = leased.run(workload=base.workload(), resume=on_node.resume_point(whole, 2))
    ours, theirs = load(lora_of(resumed)), load(lora_of(whole))
    assert ours.keys() == theirs.keys()
    assert all((ours[key] == theirs[key]).all() for key in ours)


def test_registered_base_of_which_the_server_has_no_file_fails_the_job_and_says_so(base: FileOfBase) -> None:
    with pytest.raises(WorkloadFailed, match="the server no longer has the file of my-base") as failed:
        base.rig("my-base", came=False).run(workload=base.workload())
    assert failed.value.reason is Reason.BAD_DATA


def test_file_of_a_base_that_has_other_bytes_by_now_is_not_trained_on(base: FileOfBase) -> None:
    base.stored.write_bytes(base.stored.read_bytes()[:-1] + b"~")
    with pytest.raises(WorkloadFailed, match=f"not {base.sha256}") as failed:
        base.rig("my-base", came=True).run(workload=base.workload())
    assert failed.value.reason is Reason.BAD_SPEC  # the agent looks at the file, and blames the node
