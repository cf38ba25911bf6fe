"""The loss on pictures that are held out of training."""

from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.tiny_model import tiny_folder  # noqa: F401
from tests.fixtures.train_rig import RecordingReporter, TrainRig, draw_pictures, spec_for

from giornata.domain.errors import WorkloadFailed
from giornata.protocol.node.joint import why_solo
from giornata.protocol.specs import TrainSpec, shape_key_of
from giornata.protocol.training.train_fields import held_count, validated_steps
from giornata.workloads.interface import AgentRequest
from giornata.workloads.train.inputs.sample_set import from_files
from giornata.workloads.train.results.held_out import split
from giornata.workloads.train.results.tracking import rows_of

FIELDS: dict[str, Any] = {"validation_split": 0.4, "validate_every_n_steps": 2, "max_train_steps": 5}


def spec_with(**changes: Any) -> TrainSpec:
    return TrainSpec.model_validate({"model": "a/b", "dataset": "ds_1", "seed": 5, **changes})


def test_steps_and_pictures_are_counted() -> None:
    assert validated_steps(spec_with(**FIELDS)) == (2, 4, 5)
    assert validated_steps(spec_with(**FIELDS | {"max_train_steps": 4})) == (2, 4)
    assert validated_steps(spec_with()) == ()
    assert [held_count(spec_with(validation_split=share), 10) for share in (0.01, 0.25, 0.3, 3)] == [1, 2, 3, 3]


def test_pictures_are_drawn_by_the_seed_and_all_of_one_content_stay_together(tmp_path: Path) -> None:
    files = draw_pictures(tmp_path, 6, repeats=(3,))
    sample_set, _ = from_files([*files, files[0].model_copy(update={"caption": "again"})], "instance", "a toy")
    found = [split(sample_set, spec_with(validation_split=2), seed) for seed in range(8)]
    for trained, held in found:
        assert held is not None
        one, other = ({sample.sha256 for sample in each.samples} for each in (trained, held))
        assert len(other) == 2 and not one & other and len(one | other) == 6
        assert {sample.repeats for sample in held.samples} == {1}
        assert {sample.repeats for sample in trained.samples} == {3}
    assert len({tuple(sample.sha256 for sample in held.samples) for _, held in found if held is not None}) > 3
    assert split(sample_set, spec_with(), 1) == (sample_set, None)


def test_a_split_that_leaves_nothing_is_refused(tmp_path: Path) -> None:
    sample_set, _ = from_files(draw_pictures(tmp_path, 2), "instance", "a toy")
    with pytest.raises(WorkloadFailed) as refused:
        split(sample_set, spec_with(validation_split=2), 1)
    (fault,) = refused.value.faults
    assert fault.where == "spec.validation_split"
    assert "holds out 2 of 2 different pictures, and leaves none to train on" in fault.message


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"validation_split": 1.5}, "validation_split 1.5 is neither a share below 1 nor a whole number"),
        ({"validation_split": 2, "num_train_epochs": 3}, "validation_split conflicts with num_train_epochs"),
        ({"validate_every_n_steps": 5}, "validate_every_n_steps has no effect without validation_split"),
        (
            {"validation_split": 2, "validate_every_n_steps": 1, "max_train_steps": 5000},
            "validate_every_n_steps 1 makes more than 1000 losses in 5000 steps",
        ),
    ],
)
def test_invalid_validation_split_options_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        spec_with(**fields)


def test_job_with_validation_split_trains_alone_and_has_its_own_shape_key() -> None:
    plain, held = spec_with(), spec_with(**FIELDS)
    assert why_solo(plain) == ()
    assert "validation_split is not offered in a shared batch" in why_solo(held)
    assert shape_key_of("train", plain.model_dump()) != shape_key_of("train", held.model_dump())


def rig_of(folder: Path, root: Path, count: int = 5, **changes: Any) -> TrainRig:
    return TrainRig(
        root=root, spec=spec_for(folder, **{**FIELDS, **changes}), inputs=draw_pictures(root / "in", count)
    )


def curve_of(reporter: RecordingReporter) -> dict[int, float]:
    return {step: each["validation_loss"] for step, each in reporter.metrics.items() if "validation_loss" in each}


def test_the_curve_is_whole_after_a_stop_and_looking_changes_no_weight(
    tiny_folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    train_rig = rig_of(tiny_folder, tmp_path, 3, learning_rate=1e-2, network_dropout=0.2)
    whole = train_rig.run()
    curve = curve_of(whole)
    assert sorted(curve) == [2, 4, 5]
    assert len(set(curve.values())) == 3
    seldom = train_rig.run(spec=train_rig.spec | {"validate_every_n_steps": 100})
    assert curve_of(seldom) == {5: curve[5]}
    assert seldom.artifacts == whole.artifacts
    first = train_rig.run(RecordingReporter(agent_requests={3: AgentRequest.CHECKPOINT_AND_STOP}))
    last = train_rig.run(resume=train_rig.resume_point(first, 3))
    assert curve_of(first) | curve_of(last) == curve
    assert last.artifacts == whole.artifacts
    assert last.checkpoint_bytes[5] == whole.checkpoint_bytes[5]


def test_pictures_that_are_held_out_teach_nothing(tiny_folder: Path, tmp_path: Path) -> None:  # noqa: F811
    """A job without them gives the same weights, and only what is held out moves the loss on it."""
    train_rig = rig_of(tiny_folder, tmp_path, validation_split=3, validate_every_n_steps=100, max_train_steps=2)
    spec = TrainSpec.model_validate(train_rig.spec)
    sample_set, _ = from_files(train_rig.inputs, "instance", spec.instance_prompt)
    trained, _ = split(sample_set, spec, int(spec.seed or 0))
    kept = {sample.sha256 for sample in trained.samples}
    whole = train_rig.run()
    without = TrainRig(
        root=tmp_path / "without",
        spec={name: value for name, value in train_rig.spec.items() if not name.startswith("validat")},
        inputs=[file for file in train_rig.inputs if file.sha256 in kept],
    ).run()

    def losses(reporter: RecordingReporter) -> list[float]:
        return [reporter.metrics[step]["loss"] for step in (1, 2)]

    assert losses(whole) == losses(without)
    assert whole.artifacts.keys() == without.artifacts.keys()


def test_trackers_get_the_losses_at_their_steps() -> None:
    spec = spec_with(**FIELDS | {"max_train_steps": 30_001, "validate_every_n_steps": 9_999})
    rows = dict(rows_of(spec, [0.5] * 20_000, [0.3, 0.2]))
    found = {step: values["train/validation_loss"] for step, values in rows.items() if len(values) == 3}
    assert found == {9_999: 0.3, 19_998: 0.2}
    assert rows[9_999] == {"train/loss": 0.5, "train/learning_rate": 1e-4, "train/validation_loss": 0.3}
    assert list(rows) == list(range(1, 20_001))
    assert 19_998 not in dict(rows_of(spec, [0.5] * 10_000, [0.3, 0.2]))
