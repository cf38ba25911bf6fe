"""Requests in OpenAI's shape, turned into fields of a spec."""

import pytest
from pydantic import ValidationError

from giornata.protocol.generation.request_fields import spec_fields
from giornata.protocol.orders.openai_images import ImageGenerationRequest


def fields(**given: object) -> dict[str, object]:
    return ImageGenerationRequest.model_validate({"prompt": "a fox", "model": "m", **given}).fields()


def test_request_of_prompt_and_model_asks_for_one_picture_of_the_usual_size() -> None:
    assert fields() == {"prompt": "a fox", "model": "m", "n": 1}
    assert fields(size="auto", n=None, quality="auto", background="opaque", stream=False) == fields()


def test_parameters_have_their_equivalents_in_the_spec() -> None:
    found = fields(
        n=3, size="1216x896", quality="high", output_format="webp", output_compression=0, moderation="auto"
    )
    assert found == {
        "prompt": "a fox",
        "model": "m",
        "n": 3,
        "width": 1216,
        "height": 896,
        "num_inference_steps": 50,
        "image_format": "webp",
        "quality": 1,
        "safety_checker": True,
    }


def test_fields_of_the_spec_stand_beside_and_win_over_the_quality() -> None:
    found = fields(num_inference_steps=12, quality="hd", seed=4)
    assert (found["num_inference_steps"], found["seed"]) == (12, 4)


@pytest.mark.parametrize(
    "odd",
    [
        {"n": 11},
        {"n": 0},
        {"size": "large"},
        {"quality": "best"},
        {"style": "vivid"},
        {"stream": True},
        {"partial_images": 2},
        {"background": "transparent"},
        {"output_format": "svg"},
        {"response_format": "gif"},
        {"model": ""},
    ],
)
def test_parameter_without_an_equivalent_is_refused(odd: dict[str, object]) -> None:
    with pytest.raises(ValidationError) as refused:
        fields(**odd)
    assert {error["loc"][0] for error in refused.value.errors()} == set(odd)


def test_user_becomes_a_label_and_the_newer_name_wins() -> None:
    request = {"prompt": "a", "model": "m", "user": "old", "safety_identifier": "new"}
    assert ImageGenerationRequest.model_validate(request).labels() == {"user": "new"}
    assert ImageGenerationRequest.model_validate({"prompt": "a", "model": "m"}).labels() == {}


def test_number_of_pictures_under_two_names_is_a_fault() -> None:
    (fault,) = spec_fields(fields(num_images_per_prompt=4)).faults
    assert fault.message == "the same field is given as num_images_per_prompt too"
