"""Jobs that train together: each ends with what it would have alone, up to rounding, and no one disturbs another."""

import errno
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load, save_file
from tests.fixtures.joint_train_rig import JOBS, JointTrainRig
from tests.fixtures.train_rig import RecordingReporter

from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.pipe import ResumePoint, Start
from giornata.protocol.specs import TrainSpec
from giornata.workloads.interface import AgentRequest, Outcome, Stopped
from giornata.workloads.train.results.tracking import TrackerContext, report

KOHYA = "lora-kohya.safetensors"
# Relative distance of all B together (and of all A) after 10 steps on the tiny model; see `distance`.
# Measured: at most 4.3e-5 in float32 and 2.3e-2 in bf16, after 20 steps.
BOUNDS = {
    "plain": 1e-3,
    "bf16": 0.15,
    "text encoders and class pictures": 1e-3,
    "a base in 8 bits": 1e-3,
    "EDM style and masks": 1e-3,
}


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"), dtype=np.int16)


def distance(one: bytes, other: bytes) -> float:
    """Of two results: |one - other| / |other|, of all A as of one vector and of all B; the larger."""
    left, right = load(one), load(other)
    assert set(left) == set(right)
    return max(_relative(left, right, which) for which in ("lora_down", "lora_up"))


def _relative(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor], which: str) -> float:
    names = [name for name in right if which in name]
    apart = sum(float((left[name].double() - right[name].double()).square().sum()) for name in names)
    return (apart / sum(float(right[name].double().square().sum()) for name in names)) ** 0.5


FAMILIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "bf16": {"mixed_precision": "bf16"},
    "text encoders and class pictures": {
        "train_text_encoder": True,
        "text_encoder_lr": 1e-3,
        "with_prior_preservation": True,
        "class_prompt": "a toy",
        "num_class_images": 1,
        "gradient_checkpointing": True,
        "max_token_length": 150,
    },
    "a base in 8 bits": {"base_quantization": "int8"},
    "EDM style and masks": {"do_edm_style_training": True, "masked_loss": True, "lora_unet_blocks": ("up_blocks",)},
}


def test_each_job_learns_what_it_would_alone(joint_rig: JointTrainRig) -> None:
    changes = {name: {"max_train_steps": 10} for name in "abcd"}
    table, together = joint_rig.together(list("abcd"), changes=changes)
    for name in "abcd":
        assert isinstance(table.ends[name], Outcome)
        assert sorted(together[name].metrics) == list(range(1, 11))
        alone = joint_rig.alone(name, **changes[name])
        assert distance(together[name].artifacts[KOHYA], alone.artifacts[KOHYA]) < BOUNDS["plain"], name
        rates = [
            reporter.metrics[step]["learning_rate"] for reporter in (together[name], alone) for step in (1, 2, 10)
        ]
        assert rates[:3] == rates[3:]
        losses = [[m["loss"] for _, m in sorted(each.metrics.items())] for each in (together[name], alone)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-2)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "plain"])
def test_shared_batch_of_each_option_family_equals_training_alone(joint_rig: JointTrainRig, family: str) -> None:
    other = JointTrainRig(
        root=joint_rig.root, model=joint_rig.model, changes={**FAMILIES[family], "max_train_steps": 10}
    )
    if family.startswith("EDM"):
        start = joint_rig.root / "start.safetensors"
        start.write_bytes(other.alone("a", max_train_steps=2).artifacts[KOHYA])
        other.init_lora = start
    names = ["b", "e"] if other.init_lora else ["b", "c"]  # c has min-SNR, which does not go with EDM
    table, together = other.together(names, places=2)
    for name in names:
        assert isinstance(table.ends[name], Outcome), table.ends[name]
        assert distance(together[name].artifacts[KOHYA], other.alone(name).artifacts[KOHYA]) < BOUNDS[family], name


def weights(content: bytes) -> dict[str, bytes]:
    """The tensors of a file, bit for bit, without what is said about them."""
    return {name: tensor.numpy().tobytes() for name, tensor in load(content).items()}


class Clumsy(RecordingReporter):
    """Breaks when its job has made two steps."""

    def progress(self, step: int, total: int, metrics: dict[str, float]) -> None:
        super().progress(step, total, metrics)
        if step == 2:
            raise RuntimeError("something of this job's own")


def test_cancel_or_failure_of_one_batch_member_changes_no_bit_of_the_others(joint_rig: JointTrainRig) -> None:
    """A cancel, an exception, weights that overflow and a picture that is none, each in a job of its own. As many
    stay as keep the batch as wide."""
    steps = {"max_train_steps": 5}
    names = ["a", "b", "c", "e", "d", "f", "g", "h"]
    changes = dict.fromkeys(names, steps)
    huge = joint_rig.train_rig("f", **steps)
    stopped = huge.run(RecordingReporter(agent_requests={1: AgentRequest.CHECKPOINT_AND_STOP}))
    healthy_resume = huge.resume_point(stopped, 1)
    path = joint_rig.root / "huge.safetensors"
    with safe_open(healthy_resume.path, framework="pt") as opened:
        metadata = opened.metadata()
    tensors = load(stopped.checkpoint_bytes[1])
    save_file(
        {name: t * 0 + 1e30 if name.startswith("adapter.") else t for name, t in tensors.items()}, path, metadata
    )

    def resumed(at: Path) -> Callable[[str, Start], Start]:
        def spoil(name: str, start: Start) -> Start:
            if name == "f":
                return start.model_copy(update={"resume": ResumePoint(step=1, path=at)})
            if name == "h" and at == path:
                start.inputs[0].path.write_bytes(b"no picture")
            return start

        return spoil

    quiet, whole = joint_rig.together(names, places=8, changes=changes, spoil=resumed(healthy_resume.path))
    assert all(isinstance(end, Outcome) for end in quiet.ends.values())
    reporters = {"d": RecordingReporter(agent_requests={2: AgentRequest.STOP}), "e": Clumsy()}
    table, after = joint_rig.together(names, places=8, changes=changes, reporters=reporters, spoil=resumed(path))
    for name in ("a", "b", "c", "g"):
        assert isinstance(table.ends[name], Outcome)
        assert weights(after[name].artifacts[KOHYA]) == weights(whole[name].artifacts[KOHYA]), name
        assert after[name].metrics.keys() == whole[name].metrics.keys()
    assert isinstance(table.ends["d"], Stopped)
    assert sorted(after["d"].metrics) == [1, 2]
    assert "of this job's own" in str(table.ends["e"])
    for name, reason, said in (("f", Reason.BAD_SPEC, "diverged at step 2"), ("h", Reason.BAD_DATA, "h")):
        end = table.ends[name]
        assert isinstance(end, WorkloadFailed)
        assert end.reason is reason
        assert said in end.message
        assert not after[name].artifacts


def test_a_job_joins_late_and_leaves_early(joint_rig: JointTrainRig) -> None:
    """Width 2, then 4, then 2, then 1, and the last one moves to the first place."""
    changes = {"a": {"max_train_steps": 6}, "b": {"max_train_steps": 12}, "c": {"max_train_steps": 3}}
    table, together = joint_rig.together(["a", "b"], late={6: "c"}, changes=changes)
    for name in ("a", "b", "c"):
        assert isinstance(table.ends[name], Outcome)
        alone = joint_rig.alone(name, **changes[name])
        assert distance(together[name].artifacts[KOHYA], alone.artifacts[KOHYA]) < BOUNDS["plain"], name
    outcome = table.ends["b"]
    assert isinstance(outcome, Outcome)
    places = [(each["from_step"], each["fingerprint"]["joint"]) for each in outcome.summary["fingerprints"]]
    assert [place["width"] for _, place in places] == [2, 4, 2, 1]
    assert [place["place"] for _, place in places] == [1, 1, 1, 0]
    assert [step for step, _ in places] == [0, 3, 6, 9]
    assert outcome.summary["exactness"]["class"] == "joint"


def test_a_checkpoint_goes_from_a_shared_batch_to_a_job_alone_and_back(joint_rig: JointTrainRig) -> None:
    """c accumulates over two micro-batches, so its steps are half as frequent as the others'."""
    stop = {"c": RecordingReporter(agent_requests={3: AgentRequest.CHECKPOINT_AND_STOP})}
    fields = {"max_train_steps": 8, "report_to": ("tensorboard",)}
    changes = dict.fromkeys(JOBS, fields)
    table, together = joint_rig.together(["a", "c"], reporters=stop, changes=changes)
    assert isinstance(table.ends["c"], Stopped)
    train_rig = joint_rig.train_rig("c", **fields)
    alone = train_rig.run(
        RecordingReporter(agent_requests={6: AgentRequest.CHECKPOINT_AND_STOP}),
        resume=train_rig.resume_point(together["c"], 3),
    )
    assert sorted(alone.metrics) == [4, 5, 6]
    ((name, data),) = alone.notices
    assert name == "resumed-under-another-fingerprint"
    assert data["differences"]["joint"][1] is None
    point = train_rig.resume_point(alone, 6)

    def resume(name: str, start: Start) -> Start:
        return start.model_copy(update={"resume": point}) if name == "c" else start

    back, reporters = joint_rig.together(["b", "c"], changes=changes, spoil=resume)
    outcome = back.ends["c"]
    assert isinstance(outcome, Outcome)
    assert sorted(reporters["c"].metrics) == [7, 8]
    history = [(each["from_step"], "joint" in each["fingerprint"]) for each in outcome.summary["fingerprints"]]
    assert history == [(0, True), (3, False), (6, True)]
    metrics = together["c"].metrics | alone.metrics | reporters["c"].metrics
    again = RecordingReporter()
    losses = [metrics[step]["loss"] for step in range(1, 9)]
    report(TrainSpec.model_validate(train_rig.spec), losses, TrackerContext(job="c", directory=joint_rig.root), again)
    ((curves, wanted),) = again.artifacts.items()
    assert reporters["c"].artifacts[curves] == wanted  # of all three attempts
    whole = joint_rig.alone("c", **fields)
    assert distance(reporters["c"].artifacts[KOHYA], whole.artifacts[KOHYA]) < BOUNDS["plain"]


def test_the_same_composition_gives_the_same_bytes(joint_rig: JointTrainRig) -> None:
    changes = {name: {"max_train_steps": 4} for name in JOBS}
    runs = [joint_rig.together(["a", "d"], changes=changes)[1] for _ in range(2)]
    for name in ("a", "d"):
        assert runs[0][name].artifacts == runs[1][name].artifacts
        assert runs[0][name].checkpoint_bytes == runs[1][name].checkpoint_bytes


def test_pictures_of_one_leave_the_others_alone(joint_rig: JointTrainRig) -> None:
    """Drawn through its own place, while others train on afterwards; as the job alone would draw them, up to what
    rounding does to weights."""
    drawing = {"sample_prompts": ["a photo of a sks toy"], "sample_steps": 2}
    lasting = {"a": {"max_train_steps": 3}, "b": {"max_train_steps": 5}, "d": {"max_train_steps": 4}}
    _, without = joint_rig.together(["b", "d", "a"], changes=lasting)
    changes = {**lasting, "a": lasting["a"] | drawing, "d": lasting["d"] | drawing}
    table, together = joint_rig.together(["b", "d", "a"], changes=changes)
    assert all(isinstance(end, Outcome) for end in table.ends.values())
    assert together["b"].artifacts == without["b"].artifacts
    for name in ("a", "d"):
        assert together[name].artifacts[KOHYA] == without[name].artifacts[KOHYA]
        alone = joint_rig.alone(name, **changes[name])
        shown, wanted = (pixels(each.artifacts["samples.png"]) for each in (together[name], alone))
        assert abs(shown - wanted).max() <= 2
        assert not together[name].notices
    assert (
        abs(pixels(together["a"].artifacts["samples.png"]) - pixels(together["d"].artifacts["samples.png"])).max() > 9
    )


class FullAtTheEnd(RecordingReporter):
    """Whose disk has no place for the files."""

    def artifact(self, name: str, path: Path, media_type: str = "application/octet-stream") -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))


class FullAtOnce(RecordingReporter):
    """Whose disk has no place for a checkpoint."""

    def checkpoint(self, step: int, path: Path, cost_s: float) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))


def test_a_disk_that_takes_no_files_of_one_job_takes_those_of_the_others(joint_rig: JointTrainRig) -> None:
    """One fails at its export, one at a checkpoint in the middle, and the directory of one is gone; as many stay as
    keep the batch as wide."""
    names = ["a", "b", "c", "d", "g", "e", "f", "h"]
    changes: dict[str, dict[str, Any]] = {name: {"max_train_steps": 5} for name in names}
    changes["e"] |= {"max_train_steps": 3}
    changes["f"] |= {"checkpointing_steps": 2}
    quiet, whole = joint_rig.together(names, places=8, changes=changes)
    assert all(isinstance(end, Outcome) for end in quiet.ends.values())

    def without_directory(name: str, start: Start) -> Start:
        if name == "h":
            start.directory.rmdir()
        return start

    reporters = {"e": FullAtTheEnd(), "f": FullAtOnce()}
    table, after = joint_rig.together(names, places=8, changes=changes, reporters=reporters, spoil=without_directory)
    for name in ("e", "f"):
        end = table.ends[name]
        assert isinstance(end, WorkloadFailed)
        assert end.reason is Reason.NODE_DISK
    assert isinstance(table.ends["h"], Exception)
    for name in ("a", "b", "c", "d", "g"):
        assert isinstance(table.ends[name], Outcome)
        assert weights(after[name].artifacts[KOHYA]) == weights(whole[name].artifacts[KOHYA]), name
        assert after[name].checkpoint_bytes.keys() == whole[name].checkpoint_bytes.keys()
