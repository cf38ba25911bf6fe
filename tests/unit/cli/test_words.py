"""Times, sizes and sums as people write them."""

from datetime import UTC, datetime, timedelta

import pytest

from giornata.cli.jobs.options.spec_options import parse_assignments
from giornata.cli.ui.text import ago, ahead, duration, size, standing
from giornata.control.jobs.submission.spec_faults import NO_DATASET, parse_spec
from giornata.domain.errors import InvalidInput
from giornata.domain.jobs.job import JobState
from giornata.protocol.jobs import Job
from giornata.protocol.specs import TrainSpec


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.84, "0.8 s"), (42, "42 s"), (187, "3:07 min"), (3723, "1:02:03 h"), (302_400, "3.5 d")],
)
def test_duration_is_formatted_in_seconds_minutes_hours_or_days(seconds, words):
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"), [(999, "999 B"), (1500, "1.5 kB"), (70_000_000, "70.0 MB"), (2e9, "2.0 GB")]
)
def test_size_is_formatted_with_decimal_unit(count, words):
    assert size(int(count)) == words


def test_ahead_formats_future_time_as_in_seconds_and_past_as_now():
    now = datetime(2026, 11, 22, tzinfo=UTC)
    assert ahead(now + timedelta(seconds=42), now) == "in 42 s"
    assert ahead(now - timedelta(seconds=1), now) == "now"


def test_ago_formats_elapsed_time():
    now = datetime(2026, 11, 20, tzinfo=UTC)
    assert ago(now - timedelta(seconds=90), now) == "1:30 min ago"


def test_assignments_are_json_where_they_read_as_json():
    given = parse_assignments(
        ["rank=32", "random_flip=true", "seed=null", "instance_prompt=a dog = good", "x=[1, 2]"]
    )
    assert given == {"rank": 32, "random_flip": True, "seed": None, "instance_prompt": "a dog = good", "x": [1, 2]}


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        ("target_modules=to_k, to_q", ["to_k", "to_q"]),
        ("target_modules=to_k", ["to_k"]),
        ('target_modules=["to_k", "to_q"]', ["to_k", "to_q"]),
        ("lora_unet_blocks=up_blocks.0,mid_block", ["up_blocks.0", "mid_block"]),
        ("lora_unet_blocks=null", None),
        ("output_formats=kohya,diffusers", ["kohya", "diffusers"]),
        ("log_with=tensorboard,wandb", ["tensorboard", "wandb"]),
        ("report_to=all", "all"),
        ("sample_prompts=a dog, running", "a dog, running"),
        ("resolution=512,512", "512,512"),
        ("instance_prompt=a dog, sks", "a dog, sks"),
    ],
)
def test_a_list_may_be_written_with_commas(assignment: str, value: object) -> None:
    assert parse_assignments([assignment]) == {assignment.partition("=")[0]: value}


def test_every_list_of_a_spec_but_prompts_takes_commas() -> None:
    told = {name: str(field.annotation) for name, field in TrainSpec.model_fields.items()}
    lists = {name for name, kind in told.items() if "tuple[" in kind and not kind.startswith("dict[")}
    assert "target_modules" in lists
    for name in lists - {"sample_prompts"}:
        assert len(parse_assignments([f"{name}=1,2"])[name]) == 2, name


def test_a_bad_item_of_a_list_is_refused_by_its_field() -> None:
    fields = parse_assignments(["output_formats=kohya,onnx", "model=some/model", "instance_prompt=a dog"])
    _, faults = parse_spec("train", {**fields, "dataset": NO_DATASET, "max_train_steps": 1})
    assert [fault.where for fault in faults] == ["spec.output_formats.1"]


def test_every_broken_assignment_is_named():
    with pytest.raises(InvalidInput) as refused:
        parse_assignments(["rank", "=3", "seed=1"])
    assert len(refused.value.faults) == 2


def test_state_of_a_finished_job_in_doubt_says_so():
    done = {"state": JobState.SUCCEEDED, "recovering": False}
    assert standing(Job.model_construct(**done, suspect=False)) == "succeeded"
    assert standing(Job.model_construct(**done, suspect=True)) == "succeeded, in doubt"
