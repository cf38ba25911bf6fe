"""What the training workload says, keeps, refuses and learns."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from PIL import Image
from pydantic import SecretStr
from safetensors import safe_open
from tests.fixtures.train_rig import RecordingReporter, TrainRig, draw_pictures, input_file, spec_for

from giornata.diffusion.base.hub import HuggingFaceHub
from giornata.diffusion.base.models import BaseModel, load_base
from giornata.diffusion.files import checkpoint as checkpoints
from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.pipe import ResumePoint
from giornata.protocol.specs import TrainSpec, model_key
from giornata.workloads.interface import AgentRequest, Stopped
from giornata.workloads.train.workload import TrainWorkload


@pytest.fixture
def train_rig(tiny_folder: Path, tmp_path: Path) -> TrainRig:
    spec = spec_for(tiny_folder, max_train_steps=4)
    return TrainRig(root=tmp_path, spec=spec, inputs=draw_pictures(tmp_path / "pictures", 3))


def refused(train_rig: TrainRig, reason: Reason, **changes: Any) -> WorkloadFailed:
    with pytest.raises(WorkloadFailed) as caught:
        train_rig.run(**changes)
    assert caught.value.reason is reason
    return caught.value


# ---- what it says


def test_training_reports_phases_and_metrics_of_each_step(train_rig: TrainRig) -> None:
    reporter = train_rig.run(spec=train_rig.spec | {"lr_scheduler": "linear", "train_batch_size": 2})
    names = [name for name, _, _ in reporter.phases]
    assert list(dict.fromkeys(names)) == ["loading", "caching", "training", "exporting"]
    caching = [(done, total) for name, done, total in reporter.phases if name == "caching"]
    total = caching[0][1]
    assert caching == [(done, total) for done in range((total or 0) + 1)]
    assert sorted(reporter.metrics) == [1, 2, 3, 4]
    for step, metrics in reporter.metrics.items():
        assert set(metrics) == {"loss", "learning_rate", "step_ms", "images_per_s", "data_wait_ms"}
        assert metrics["learning_rate"] == pytest.approx(1e-2 * (4 - (step - 1)) / 4)
        assert metrics["loss"] > 0


def test_the_summary_says_what_was_done(train_rig: TrainRig) -> None:
    outcome = TrainWorkload(device="cpu").run(train_rig.start(), RecordingReporter())
    assert outcome.step == 4
    assert outcome.summary["seed"] == 42
    assert outcome.summary["pictures"] == 3
    assert outcome.summary["images"] == 4
    assert len(outcome.summary["fingerprints"]) == 1
    json.dumps(outcome.summary)


def test_the_files_name_no_path_and_no_attempt(train_rig: TrainRig, tmp_path: Path) -> None:
    for content in train_rig.run().artifacts.values():
        assert str(tmp_path).encode() not in content
        assert b"at_1" not in content


# ---- the warm base


class CountingLoader:
    """load_base that counts; `after` may change what was loaded."""

    def __init__(self) -> None:
        self.loaded: list[str] = []

    def __call__(self, spec: TrainSpec, **options: Any) -> BaseModel:
        self.loaded.append(spec.pretrained_model_name_or_path)
        return load_base(spec, **options)


def test_a_job_on_a_warm_base_equals_the_same_job_on_a_fresh_one(train_rig: TrainRig) -> None:
    loader = CountingLoader()
    workload = TrainWorkload(device="cpu", load=loader)
    assert workload.held() == ()
    other = {
        "train_text_encoder": True,
        "target_modules": ("to_k", "conv1"),
        "rank": 5,
        "gradient_checkpointing": True,
    }
    train_rig.run(workload=workload, spec=train_rig.spec | other)
    stopped = train_rig.run(RecordingReporter(agent_requests={2: AgentRequest.STOP}), workload=workload)
    assert stopped.lines
    refused(train_rig, Reason.BAD_DATA, workload=workload, inputs=())
    warm = train_rig.run(workload=workload)
    assert len(loader.loaded) == 1
    assert workload.held() == (model_key("train", train_rig.spec),)
    assert warm.artifacts == train_rig.run().artifacts


def test_base_is_loaded_again_for_another_path_or_precision(
    train_rig: TrainRig, tiny_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "again").symlink_to(tiny_folder)
    loader = CountingLoader()
    workload = TrainWorkload(device="cpu", load=loader)
    train_rig.run(workload=workload)
    train_rig.run(workload=workload, spec=train_rig.spec | {"mixed_precision": "bf16"})
    second = train_rig.spec | {"pretrained_model_name_or_path": str(tmp_path / "again")}
    train_rig.run(workload=workload, spec=second)
    assert loader.loaded == [str(tiny_folder), str(tiny_folder), str(tmp_path / "again")]
    assert workload.held() == (model_key("train", second),)


def test_a_base_that_one_token_opened_is_opened_again_for_another(train_rig: TrainRig) -> None:
    """The hub decides anew who may have a gated model, warm or not. Nobody gets the token but the hub."""
    asked: list[str | None] = []

    def load(spec: TrainSpec, *, hub: HuggingFaceHub, **options: Any) -> BaseModel:
        asked.append(hub._plain)
        return load_base(spec, hub=hub, **options)

    workload = TrainWorkload(device="cpu", load=load)
    gated = train_rig.spec | {"hub_token_secret": "HUB", "max_train_steps": 1}
    said = []
    for token in ("hf_first", "hf_first", "hf_second"):
        reporter = train_rig.run(workload=workload, spec=gated, hub_token=SecretStr(token))
        said.append(f"{reporter.lines}{reporter.notices}{reporter.phases}")
        assert not any(
            b"hf_" in content for content in (*reporter.artifacts.values(), *reporter.checkpoint_bytes.values())
        )
    train_rig.run(workload=workload, spec=train_rig.spec | {"max_train_steps": 1})
    assert asked == ["hf_first", "hf_second", None]
    assert "hf_" not in str(said) + str(workload.held())


def test_a_secret_that_did_not_come_is_named(train_rig: TrainRig) -> None:
    failure = refused(train_rig, Reason.BAD_SPEC, spec=train_rig.spec | {"hub_token_secret": "HUB"})
    assert [fault.where for fault in failure.faults] == ["spec.hub_token_secret"]
    assert "could not hand out HUB" in failure.message


def test_after_a_crash_the_base_is_not_trusted(train_rig: TrainRig) -> None:
    class Broken(RecordingReporter):
        def progress(self, step: int, total: int, metrics: dict[str, float]) -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    workload = TrainWorkload(device="cpu")
    with pytest.raises(WorkloadFailed) as caught:
        train_rig.run(Broken(), workload=workload)
    assert caught.value.reason is Reason.NODE_DRIVER
    assert workload.held() == ()


# ---- what it refuses


def test_every_bad_picture_is_named(train_rig: TrainRig, tmp_path: Path) -> None:
    bad = []
    for name, content in (("holiday.png", b"no picture"), ("cat.jpg", b"\xff\xd8\xff\xe0 cut off")):
        (tmp_path / name).write_bytes(content)
        bad.append(input_file(tmp_path / name))
    failure = refused(train_rig, Reason.BAD_DATA, inputs=(*train_rig.inputs, *bad))
    assert {fault.where for fault in failure.faults} == {"holiday.png", "cat.jpg"}
    assert "holiday.png" in failure.message
    assert "cat.jpg" in failure.message


def test_captions_that_do_not_fit_are_named_with_their_tokens(train_rig: TrainRig) -> None:
    long = [file.model_copy(update={"caption": "a " * 90}) for file in train_rig.inputs[:2]]
    failure = refused(train_rig, Reason.BAD_DATA, inputs=(*long, train_rig.inputs[2]))
    assert {fault.where for fault in failure.faults} == {file.name for file in long}
    assert all(fault.message == "has 90 tokens; at most 75 fit" for fault in failure.faults)
    wide = train_rig.spec | {"max_token_length": 150, "max_train_steps": 1}
    assert sorted(train_rig.run(inputs=(*long, train_rig.inputs[2]), spec=wide).metrics) == [1]
    cut = train_rig.spec | {"truncate_captions": True, "max_train_steps": 1}
    assert sorted(train_rig.run(inputs=(*long, train_rig.inputs[2]), spec=cut).metrics) == [1]


def test_pictures_without_a_caption_are_named(train_rig: TrainRig) -> None:
    failure = refused(train_rig, Reason.BAD_DATA, spec=train_rig.spec | {"instance_prompt": None})
    assert {fault.where for fault in failure.faults} == {"instance-0.png", "instance-2.png"}


def test_training_without_pictures_is_refused(train_rig: TrainRig) -> None:
    assert refused(train_rig, Reason.BAD_DATA, inputs=()).faults[0].where == "spec.dataset"


def test_a_spec_that_does_not_hold_is_refused_whole(train_rig: TrainRig) -> None:
    failure = refused(train_rig, Reason.BAD_SPEC, spec=train_rig.spec | {"rank": 0, "resolution": 63, "surprise": 1})
    assert {fault.where for fault in failure.faults} == {"spec.rank", "spec.resolution", "spec.surprise"}
    assert refused(train_rig, Reason.BAD_SPEC, spec=train_rig.spec | {"seed": None}).faults[0].where == "spec.seed"


def test_unknown_targets_are_refused_before_anything_is_computed(train_rig: TrainRig) -> None:
    reporter = RecordingReporter()
    spec = train_rig.spec | {"target_modules": ("to_q", "to_nowhere")}
    with pytest.raises(WorkloadFailed, match="to_nowhere"):
        train_rig.run(reporter, spec=spec)
    assert [name for name, _, _ in reporter.phases] == ["loading"]


def test_a_loss_that_is_not_a_number_ends_the_job(train_rig: TrainRig) -> None:
    def poisoned(spec: TrainSpec, **options: Any) -> BaseModel:
        base = load_base(spec, **options)
        with torch.no_grad():
            base.unet.conv_out.bias.fill_(float("nan"))
        return base

    workload = TrainWorkload(device="cpu", load=poisoned)
    failure = refused(train_rig, Reason.BAD_SPEC, workload=workload)
    assert "step 1" in failure.message
    assert "learning_rate 0.01" in failure.message


# ---- checkpoints of others


@pytest.fixture
def point(train_rig: TrainRig) -> ResumePoint:
    reporter = train_rig.run(RecordingReporter(agent_requests={2: AgentRequest.CHECKPOINT_AND_STOP}))
    return train_rig.resume_point(reporter, 2)


def rewritten(point: ResumePoint, **changes: Any) -> ResumePoint:
    """The same checkpoint with another header."""
    header = checkpoints.read_header(point.path)
    with safe_open(point.path, framework="pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    tensors |= changes.pop("tensors", {})
    path = point.path.with_name("rewritten.safetensors")
    checkpoints.write_checkpoint(path, replace(header, **changes), tensors)
    return point.model_copy(update={"path": path})


def test_resume_with_another_spec_is_refused_and_the_difference_named(
    train_rig: TrainRig, point: ResumePoint
) -> None:
    failure = refused(train_rig, Reason.BAD_SPEC, resume=point, spec=train_rig.spec | {"learning_rate": 2e-2})
    assert "learning_rate" in failure.message
    assert failure.faults[0].where == "resume.spec_sha256"


def test_resume_with_other_data_is_refused(train_rig: TrainRig, point: ResumePoint) -> None:
    changed = [train_rig.inputs[0].model_copy(update={"caption": "another"}), *train_rig.inputs[1:]]
    for inputs in (changed, train_rig.inputs[:2]):
        failure = refused(train_rig, Reason.BAD_SPEC, resume=point, inputs=tuple(inputs))
        assert failure.faults[0].where == "resume.data_sha256"


def test_a_tampered_checkpoint_is_refused(train_rig: TrainRig, point: ResumePoint) -> None:
    spec = checkpoints.read_header(point.path).spec | {"rank": 3}
    assert refused(train_rig, Reason.BAD_SPEC, resume=rewritten(point, spec=spec)).faults
    assert "step" in refused(train_rig, Reason.BAD_SPEC, resume=rewritten(point, step=3)).message
    stranger = rewritten(point, tensors={"adapter.unet.stranger": torch.zeros(1)})
    assert "stranger" in refused(train_rig, Reason.BAD_SPEC, resume=stranger).message


def test_half_a_checkpoint_is_refused_without_blaming_the_job(train_rig: TrainRig, point: ResumePoint) -> None:
    point.path.write_bytes(point.path.read_bytes()[:-100])
    assert "not a whole checkpoint" in refused(train_rig, Reason.CRASHED, resume=point).message


def test_a_resume_under_another_fingerprint_is_never_silent(train_rig: TrainRig, point: ResumePoint) -> None:
    header = checkpoints.read_header(point.path)
    elsewhere = header.fingerprint | {"torch": "1.0", "device": "another"}
    history = ({"from_step": 0, "fingerprint": elsewhere},)
    moved = rewritten(point, fingerprint=elsewhere, history=history)
    reporter = RecordingReporter()
    outcome = TrainWorkload(device="cpu").run(train_rig.start(resume=moved), reporter)
    assert [name for name, _ in reporter.notices] == ["resumed-under-another-fingerprint"]
    assert set(reporter.notices[0][1]["differences"]) == {"torch", "device"}
    assert [entry["from_step"] for entry in outcome.summary["fingerprints"]] == [0, 2]
    for content in reporter.artifacts.values():
        assert b"giornata.fingerprints" in content
    # ... and it stays known when the job moves on once more
    again = train_rig.run(resume=train_rig.resume_point(reporter, 4))
    assert again.artifacts == reporter.artifacts


def test_a_stop_after_a_resume_names_the_step_resumed_from(train_rig: TrainRig, point: ResumePoint) -> None:
    with pytest.raises(Stopped) as stopped:
        reporter = RecordingReporter(request_while_caching=AgentRequest.STOP)
        TrainWorkload(device="cpu").run(train_rig.start(resume=point), reporter)
    assert stopped.value.step == 2


# ---- what it learns


def test_training_lowers_the_loss(tiny_folder: Path, tmp_path: Path) -> None:
    """Draws are functions of the step, so two runs with different rates face the very same 40 questions."""

    def late_loss(learning_rate: float) -> float:
        spec = spec_for(
            tiny_folder,
            max_train_steps=40,
            learning_rate=learning_rate,
            rank=8,
            train_batch_size=2,
            random_flip=False,
            center_crop=True,
            target_modules=("to_q", "to_k", "to_v", "to_out.0", "conv1", "conv2", "conv_in", "conv_out"),
        )
        folder = tmp_path / str(learning_rate)
        reporter = TrainRig(root=folder, spec=spec, inputs=draw_pictures(tmp_path / "one", 1)).run()
        return fmean(reporter.metrics[step]["loss"] for step in range(21, 41))

    assert late_loss(6e-3) < 0.6 * late_loss(1e-12)


# ---- masks and buckets

BUCKETS = {"enable_bucket": True, "bucket_reso_steps": 16, "min_bucket_reso": 32, "max_bucket_reso": 128}


def test_every_empty_mask_is_named(train_rig: TrainRig, tmp_path: Path) -> None:
    good = draw_pictures(tmp_path / "masked", 4, first=20, masked=True)
    empty = [tmp_path / f"empty {number}.png" for number in range(2)]
    for number, path in enumerate(empty):
        Image.new("RGBA", (70, 70 + number), (9, 9, 9, 0)).save(path)
    inputs = (*good, *(input_file(path) for path in empty))
    failure = refused(train_rig, Reason.BAD_DATA, spec=train_rig.spec | {"masked_loss": True}, inputs=inputs)
    assert sorted(fault.where for fault in failure.faults) == ["empty 0.png", "empty 1.png"]
    assert "nothing to learn" in failure.message
    assert train_rig.run(inputs=inputs).artifacts  # without masks they are pictures like others


def test_every_bad_picture_is_named_with_buckets_too(train_rig: TrainRig, tmp_path: Path) -> None:
    bad, cut = tmp_path / "bad.png", tmp_path / "cut.png"
    bad.write_bytes(b"not a picture")
    cut.write_bytes(train_rig.inputs[0].path.read_bytes()[:-300])
    inputs = (*train_rig.inputs, input_file(bad), input_file(cut))
    failure = refused(train_rig, Reason.BAD_DATA, spec=train_rig.spec | BUCKETS, inputs=inputs)
    assert sorted(fault.where for fault in failure.faults) == ["bad.png", "cut.png"]


def test_the_base_is_not_held_to_what_it_does_not_predict(train_rig: TrainRig) -> None:
    prior = {"with_prior_preservation": True, "prior_prediction": True, "class_prompt": "a toy"}
    failure = refused(train_rig, Reason.BAD_SPEC, spec=train_rig.spec | prior | {"prediction_type": "v_prediction"})
    assert [fault.where for fault in failure.faults] == ["spec.prior_prediction"]


def test_prior_prediction_draws_no_class_pictures(train_rig: TrainRig) -> None:
    prior = {"with_prior_preservation": True, "prior_prediction": True, "class_prompt": "a toy"}
    reporter = RecordingReporter()
    outcome = TrainWorkload(device="cpu").run(train_rig.start(spec=train_rig.spec | prior), reporter)
    assert not reporter.puts
    assert outcome.summary["images"] == 4
    assert reporter.artifacts != train_rig.run().artifacts
