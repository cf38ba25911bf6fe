"""Requests for pictures in short forms and in the words of other APIs."""

import pytest

from giornata.domain.errors import Fault
from giornata.protocol.generation.request_fields import PIPELINES, lora_use, spec_fields


def test_request_with_one_prompt_and_model_name_becomes_full_spec() -> None:
    found = spec_fields({"prompt": "a fox", "model": "some/model", "vae": "some/vae", "num_images_per_prompt": 2})
    assert found.spec == {
        "prompts": ["a fox"],
        "model": {"name": "some/model"},
        "vae": {"name": "some/vae"},
        "num_images_per_prompt": 2,
    }
    assert not found.faults


def test_names_in_capitals_mean_the_same_fields() -> None:
    given = {"PROMPT": ["a", "b"], "MODEL_ID": "m", "SCHEDULER": "DDIMScheduler", "safety_checker": True, "SEED": 7}
    assert spec_fields(given).spec == {
        "prompts": ["a", "b"],
        "model": {"name": "m"},
        "scheduler": "DDIMScheduler",
        "safety_checker": True,
        "seed": 7,
    }


@pytest.mark.parametrize("names", [("sampler_name", "scheduler"), ("SAMPLER_NAME", "SCHEDULER")])
def test_sampler_and_schedule_of_a_request_are_one_scheduler(names: tuple[str, str]) -> None:
    found = spec_fields({"prompt": "a", **dict(zip(names, ("DPM++ 2M", "Karras"), strict=True))})
    assert (found.spec, found.faults) == ({"prompts": ["a"], "scheduler": "DPM++ 2M Karras"}, ())
    (fault,) = found.in_words_of_request([Fault(where="spec.scheduler", message="x")])
    assert fault.where == names[1]


def test_sampler_beside_a_scheduler_that_is_no_text_is_a_fault() -> None:
    (fault,) = spec_fields({"prompt": "a", "sampler_name": "euler", "scheduler": 7}).faults
    assert fault.where == "scheduler"


def test_field_that_is_given_under_two_names_is_a_fault() -> None:
    (fault,) = spec_fields({"prompt": "a", "PROMPTS": ["b"]}).faults
    assert (fault.where, fault.message) == ("PROMPTS", "the same field is given as prompt too")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("job_01m7:0.8", {"name": "job_01m7", "weight": 0.8}),
        ("job_01m7@500:-1", {"name": "job_01m7@500", "weight": -1.0}),
        ("job_01m7", {"name": "job_01m7"}),
        ("https://example.com/a.safetensors", {"name": "https://example.com/a.safetensors"}),
        ("urn:air:sdxl:lora:civitai:123@456", {"name": "urn:air:sdxl:lora:civitai:123@456"}),
        ("urn:air:sdxl:lora:civitai:123@456:0.5", {"name": "urn:air:sdxl:lora:civitai:123@456", "weight": 0.5}),
        (":0.5", {"name": ":0.5"}),
    ],
)
def test_weight_of_a_lora_stands_behind_the_last_colon(text: str, expected: dict[str, object]) -> None:
    assert lora_use(text) == expected


@pytest.mark.parametrize("loras", ["a:0.5", ["a:0.5"], {"a": 0.5}, [{"name": "a", "weight": 0.5}]])
def test_loras_have_several_short_forms(loras: object) -> None:
    assert spec_fields({"loras": loras}).spec == {"loras": [{"name": "a", "weight": 0.5}]}


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_pipeline_that_fits_the_fields_is_no_field_of_the_spec(pipeline: str) -> None:
    sources = dict.fromkeys(PIPELINES[pipeline], "0" * 64)
    found = spec_fields({"prompt": "a", "PIPELINE": pipeline, **sources})
    assert (found.spec.keys(), found.faults) == ({"prompts", *sources}, ())


def test_pipeline_that_does_not_fit_the_fields_or_is_unknown_is_a_fault() -> None:
    given = [
        {"PIPELINE": "StableDiffusionInpaintPipeline", "image": "0" * 64},
        {"pipeline": "StableDiffusionPipeline", "init_image": "0" * 64},
        {"PIPELINE": "FluxPipeline"},
        {"PIPELINE": 7},
    ]
    said = [[(fault.where, fault.message) for fault in spec_fields(each).faults] for each in given]
    assert said == [
        [("PIPELINE", "StableDiffusionInpaintPipeline needs mask")],
        [("pipeline", "StableDiffusionPipeline takes no image")],
        [("PIPELINE", "'FluxPipeline' is not a supported pipeline")],
        [("PIPELINE", "'7' is not a supported pipeline")],
    ]


def test_faults_of_the_spec_are_told_in_the_words_of_the_request() -> None:
    one = spec_fields({"PROMPT": "a (b", "MODEL_ID": "m", "width": 7})
    faults = [Fault(where=f"spec.{each}", message="x") for each in ("prompts.0", "model.name", "width", "seed")]
    said = one.in_words_of_request([*faults, Fault(where="labels.a", message="x")])
    assert [fault.where for fault in said] == ["PROMPT", "MODEL_ID.name", "width", "seed", "labels.a"]
    several = spec_fields({"prompt": ["a", "b"]})
    (fault,) = several.in_words_of_request([Fault(where="spec.prompts.1", message="x")])
    assert fault.where == "prompt.1"


def test_value_that_has_no_short_form_is_left_for_the_spec_to_judge() -> None:
    odd = {"prompt": 7, "model": None, "loras": 3, "scheduler": ["x"], "no_such_field": {}}
    assert spec_fields(odd).spec == {
        "prompts": 7,
        "model": None,
        "loras": 3,
        "scheduler": ["x"],
        "no_such_field": {},
    }
