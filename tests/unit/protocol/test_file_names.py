"""What the files of a training job are called."""

import pytest
from pydantic import ValidationError

from giornata.protocol.specs import TrainSpec, step_artifacts
from giornata.protocol.training.file_names import embeddings_file, lora_file, output_name_of, samples_file

SPEC = {"model": "some/model", "dataset": "ds_1", "sample_prompts": ["a toy"], "max_train_steps": 300}


def test_files_of_two_jobs_have_no_name_in_common():
    one, other = (
        {lora_file("kohya", name), lora_file("diffusers", name), embeddings_file(name), samples_file(name)}
        for name in ("my-dog", "my-cat")
    )
    assert len(one) == 4
    assert not one & other
    assert lora_file("kohya", "my-dog") == "my-dog.safetensors"


def test_a_checkpoint_puts_its_step_into_the_name():
    assert lora_file("kohya", "my-dog", step=500) == "my-dog-000500.safetensors"
    assert lora_file("diffusers", "my-dog", step=500) == "my-dog-000500-pytorch_lora_weights.safetensors"
    assert lora_file("kohya", None, step=500) == "lora-000500.safetensors"


def test_a_job_from_before_the_field_keeps_its_names():
    assert lora_file("kohya", None) == "lora-kohya.safetensors"
    assert lora_file("diffusers", None) == "pytorch_lora_weights.safetensors"
    assert (embeddings_file(None), samples_file(None)) == ("embeddings.safetensors", "samples.png")
    old = TrainSpec.model_validate(SPEC | {"validation_steps": 100}).model_dump(mode="json", exclude={"output_name"})
    assert step_artifacts("train", old) == {"samples-00000100.png", "samples-00000200.png"}
    assert step_artifacts("train", old | {"output_name": "my-dog"}) == {
        "my-dog-samples-00000100.png",
        "my-dog-samples-00000200.png",
    }


@pytest.mark.parametrize(
    ("job", "name"),
    [
        ("my dog", "my dog"),
        ("a/b\\c:d", "a-b-c-d"),
        ("../../etc/passwd", "etc-passwd"),
        ("<lora:x:1>", "lora-x-1"),
        ("sks dög 犬", "sks dög 犬"),
        (" .hidden. ", "hidden"),
        ("line\nbreak", "line-break"),
        ("a `b`", "a -b"),
        ("x" * 200, "x" * 160),
        ("犬" * 60, "犬" * 53),
        ("///", None),
        ("", None),
    ],
)
def test_the_name_of_a_job_becomes_one_that_every_file_system_takes(job, name):
    assert output_name_of(job) == name
    if name is not None:
        assert TrainSpec.model_validate(SPEC | {"output_name": name}).output_name == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "a\\b", "a:b", "a\nb", "a ", " a", "x" * 161, "犬" * 60, "a."]
)
def test_an_output_name_that_is_no_name_of_a_file_is_refused(name):
    with pytest.raises(ValidationError, match="output_name"):
        TrainSpec.model_validate(SPEC | {"output_name": name})
