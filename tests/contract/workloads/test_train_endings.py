"""What is kept of a job that goes wrong, and what a resume does not accept."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load, load_file, save_file
from tests.fixtures.train_rig import RecordingReporter, TrainRig, draw_pictures, spec_for

from giornata.diffusion.base.models import BaseModel, load_base
from giornata.diffusion.files import checkpoint as checkpoints
from giornata.diffusion.files.export import export_checkpoint
from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.pipe import ResumePoint
from giornata.protocol.specs import TrainSpec
from giornata.workloads.interface import AgentRequest
from giornata.workloads.train.workload import TrainWorkload


@pytest.fixture
def train_rig(tiny_folder: Path, tmp_path: Path) -> TrainRig:
    own = tmp_path / "model"
    shutil.copytree(tiny_folder, own)
    spec = spec_for(own, max_train_steps=4)
    return TrainRig(root=tmp_path, spec=spec, inputs=draw_pictures(tmp_path / "pictures", 3))


# ---- a loss that is not a number


def test_nan_loss_fails_the_job_and_keeps_the_last_good_checkpoint(train_rig: TrainRig) -> None:
    held: list[BaseModel] = []

    def remembered(spec: TrainSpec, **options: Any) -> BaseModel:
        held.append(load_base(spec, **options))
        return held[-1]

    class Poisoner(RecordingReporter):
        def progress(self, step: int, total: int, metrics: dict[str, float]) -> None:
            super().progress(step, total, metrics)
            if step == 2:
                with torch.no_grad():
                    held[-1].unet.conv_out.bias.fill_(float("nan"))

    reporter = Poisoner()
    with pytest.raises(WorkloadFailed) as caught:
        train_rig.run(reporter, workload=TrainWorkload(device="cpu", load=remembered), spec=every_step(train_rig))
    assert caught.value.reason is Reason.BAD_SPEC
    assert "step 3" in caught.value.message
    assert sorted(reporter.checkpoints) == [1, 2]
    assert reporter.checkpoints[2].exists()
    assert not reporter.artifacts
    # ... and it is whole: the job goes on from it where nothing is poisoned
    resumed = train_rig.run(resume=train_rig.resume_point(reporter, 2), spec=every_step(train_rig))
    assert resumed.artifacts == train_rig.run(spec=every_step(train_rig)).artifacts


def every_step(train_rig: TrainRig) -> dict[str, Any]:
    return train_rig.spec | {"checkpointing_steps": 1}


# ---- a base model that changed under its name


@pytest.fixture
def point(train_rig: TrainRig) -> ResumePoint:
    reporter = train_rig.run(RecordingReporter(agent_requests={2: AgentRequest.CHECKPOINT_AND_STOP}))
    return train_rig.resume_point(reporter, 2)


def overwrite(folder: Path, component: str, name: str) -> None:
    """Another model under the same name: one number of one tensor is another."""
    path = next((folder / component).glob("*.safetensors"))
    tensors = load_file(path)
    tensors[name].view(-1)[0] += 1e-3
    with safe_open(path, framework="pt") as opened:
        metadata = opened.metadata()
    save_file(tensors, path, metadata=metadata)


@pytest.mark.parametrize(
    ("component", "name"),
    [("unet", "conv_in.weight"), ("vae", "encoder.conv_in.bias"), ("text_encoder_2", "text_projection.weight")],
)
def test_resume_on_base_changed_under_its_name_is_refused(
    train_rig: TrainRig, point: ResumePoint, component: str, name: str
) -> None:
    overwrite(Path(train_rig.spec["pretrained_model_name_or_path"]), component, name)
    with pytest.raises(WorkloadFailed) as caught:
        train_rig.run(resume=point)
    assert caught.value.reason is Reason.CRASHED
    assert caught.value.faults[0].where == "spec.pretrained_model_name_or_path"
    assert "changed under its name" in caught.value.message


def test_the_same_base_from_another_place_is_not_another(
    train_rig: TrainRig, point: ResumePoint, tmp_path: Path
) -> None:
    """Same name, same weights, files written anew."""
    folder = Path(train_rig.spec["pretrained_model_name_or_path"])
    whole = train_rig.run().artifacts
    path = next((folder / "unet").glob("*.safetensors"))
    tensors = load_file(path)
    path.unlink()
    save_file({name: tensors[name].clone() for name in reversed(tensors)}, path, metadata={"format": "pt", "x": "y"})
    assert train_rig.run(resume=point).artifacts == whole


def test_a_checkpoint_of_before_there_were_digests_is_still_one(train_rig: TrainRig, point: ResumePoint) -> None:
    header = checkpoints.read_header(point.path)
    assert len(header.base_sha256) == 64
    with safe_open(point.path, framework="pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    older = point.path.with_name("older.safetensors")
    checkpoints.write_checkpoint(older, replace(header, base_sha256=""), tensors)
    assert train_rig.run(resume=ResumePoint(step=2, path=older)).artifacts == train_rig.run().artifacts


# ---- new tokens


def test_tokens_that_no_caption_says_are_refused(train_rig: TrainRig) -> None:
    with pytest.raises(WorkloadFailed) as caught:
        train_rig.run(spec=train_rig.spec | {"train_text_encoder_ti": True})
    assert caught.value.reason is Reason.BAD_SPEC
    assert [fault.where for fault in caught.value.faults] == ["spec.token_abstraction"]


def test_a_prompt_is_counted_as_it_is_heard(train_rig: TrainRig) -> None:
    """One word of the caption can be many tokens."""
    fields = {
        "train_text_encoder_ti": True,
        "instance_prompt": "TOK " * 10,
        "num_new_tokens_per_abstraction": 16,
        "token_abstraction": "TOK",
    }
    with pytest.raises(WorkloadFailed) as caught:
        train_rig.run(spec=train_rig.spec | fields)
    assert caught.value.reason is Reason.BAD_DATA
    assert any("160 tokens" in fault.message for fault in caught.value.faults)


def test_any_checkpoint_with_new_tokens_is_exported_with_them(train_rig: TrainRig, tmp_path: Path) -> None:
    spec = train_rig.spec | {"train_text_encoder_ti": True, "instance_prompt": "a photo of TOK"}
    reporter = train_rig.run(spec=spec)
    saved = train_rig.resume_point(reporter, 4).path
    bundled = load_file(export_checkpoint(saved, tmp_path / "kohya.safetensors", "kohya"))
    assert {name for name in bundled if "emb" in name} == {"bundle_emb.TOK.clip_l", "bundle_emb.TOK.clip_g"}
    export_checkpoint(saved, tmp_path / "diffusers.safetensors", "diffusers")
    content = load_file(tmp_path / "embeddings.safetensors")
    assert torch.equal(content["clip_g"], bundled["bundle_emb.TOK.clip_g"])
    (tmp_path / "artifact").write_bytes(reporter.artifacts["embeddings.safetensors"])
    announced = load_file(tmp_path / "artifact")
    assert all(torch.equal(announced[name], content[name]) for name in content)


def test_the_tokens_that_captions_say_learn(train_rig: TrainRig) -> None:
    """Without a gradient nothing would move them: they begin alike, and nothing decays."""
    fields = {"train_text_encoder_ti": True, "instance_prompt": "a photo of TOK", "adam_weight_decay": 0.0}

    def rows(rate: float) -> dict[str, torch.Tensor]:
        return load(
            train_rig.run(spec=train_rig.spec | fields | {"text_encoder_lr": rate}).artifacts[
                "embeddings.safetensors"
            ]
        )

    slow, fast = rows(1e-12), rows(1e-2)
    for name in ("clip_l", "clip_g"):
        assert float((slow[name] - fast[name]).abs().min(dim=1).values.max()) > 1e-4


def test_a_warm_base_speaks_as_before_after_a_job_with_new_tokens(train_rig: TrainRig) -> None:
    workload = TrainWorkload(device="cpu")
    fields = {"train_text_encoder_ti": True, "instance_prompt": "a photo of TOK", "train_text_encoder": True}
    train_rig.run(workload=workload, spec=train_rig.spec | fields)
    assert train_rig.run(workload=workload).artifacts == train_rig.run().artifacts
