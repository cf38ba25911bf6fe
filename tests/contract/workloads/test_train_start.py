"""Jobs that begin where another ended: the file among the inputs, and nothing of it lost on the way."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load
from tests.fixtures.train_rig import RecordingReporter, TrainRig, draw_pictures, input_file, spec_for

from giornata.diffusion.files.formats import FILE_NAMES
from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.pipe import InputFile
from giornata.workloads.interface import AgentRequest

NEARLY_STILL = {"learning_rate": 1e-12, "max_train_steps": 1, "adam_weight_decay": 0.0}


@pytest.fixture
def train_rig(tiny_folder: Path, tmp_path: Path) -> TrainRig:
    spec = spec_for(tiny_folder, max_train_steps=3)
    return TrainRig(root=tmp_path, spec=spec, inputs=draw_pictures(tmp_path / "pictures", 3))


def starting_file(path: Path, content: bytes) -> InputFile:
    path.write_bytes(content)
    return input_file(path, role="init_lora")


def continued(train_rig: TrainRig, file: InputFile, **spec: Any) -> RecordingReporter:
    fields = {**train_rig.spec, "init_lora": file.sha256, **spec}
    return train_rig.run(spec=fields, inputs=(*train_rig.inputs, file))


@pytest.mark.parametrize("made_of", ["kohya", "diffusers", "checkpoint"])
def test_a_job_begins_with_the_weights_of_another(train_rig: TrainRig, tmp_path: Path, made_of: str) -> None:
    first = train_rig.run()
    content = first.checkpoint_bytes[3] if made_of == "checkpoint" else first.artifacts[FILE_NAMES[made_of]]  # type: ignore[index]
    second = continued(train_rig, starting_file(tmp_path / "start", content), **NEARLY_STILL)
    assert sorted(second.metrics) == [1]
    name = FILE_NAMES["diffusers"]
    before, after = load(first.artifacts[name]), load(second.artifacts[name])
    fresh = load(train_rig.run(spec=train_rig.spec | NEARLY_STILL).artifacts[name])
    assert before.keys() == after.keys()
    assert all(torch.allclose(after[key], value, atol=1e-9) for key, value in before.items())
    assert not all(torch.allclose(fresh[key], value, atol=1e-4) for key, value in before.items())


def test_a_resume_needs_the_file_no_more_but_its_name_has_to_stay(train_rig: TrainRig, tmp_path: Path) -> None:
    file = starting_file(tmp_path / "start", train_rig.run().artifacts[FILE_NAMES["kohya"]])
    spec = train_rig.spec | {"init_lora": file.sha256}
    inputs = (*train_rig.inputs, file)
    whole = train_rig.run(spec=spec, inputs=inputs)
    stopped = train_rig.run(
        RecordingReporter(agent_requests={2: AgentRequest.CHECKPOINT_AND_STOP}), spec=spec, inputs=inputs
    )
    point = train_rig.resume_point(stopped, 2)
    assert train_rig.run(spec=spec, resume=point).artifacts == whole.artifacts
    with pytest.raises(WorkloadFailed, match="init_lora differ"):
        train_rig.run(resume=point)


def test_init_lora_that_does_not_fit_is_refused_before_encoding(train_rig: TrainRig, tmp_path: Path) -> None:
    file = starting_file(tmp_path / "start", train_rig.run().artifacts[FILE_NAMES["kohya"]])
    told = {
        "higher rank than this job: 2": {"rank": 1},
        "another kind of adapter": {"adapter_type": "lokr", "output_formats": ["kohya"]},
        "which this job does not": {"lora_unet_blocks": ["mid_block"]},
    }
    for message, fields in told.items():
        reporter = RecordingReporter()
        with pytest.raises(WorkloadFailed, match=message) as failure:
            train_rig.run(
                reporter,
                spec={**train_rig.spec, "init_lora": file.sha256, **fields},
                inputs=(*train_rig.inputs, file),
            )
        assert failure.value.reason is Reason.BAD_DATA
        assert {fault.where for fault in failure.value.faults} == {"spec.init_lora"}
        assert {name for name, _, _ in reporter.phases} == {"loading"}


def test_a_file_that_did_not_come_along_is_missed(train_rig: TrainRig, tmp_path: Path) -> None:
    other = starting_file(tmp_path / "other", b"something else")
    with pytest.raises(WorkloadFailed, match="not among the job's inputs"):
        train_rig.run(spec={**train_rig.spec, "init_lora": "0" * 64}, inputs=(*train_rig.inputs, other))
