"""What a text stands for as the name of a model."""

import pytest

from giornata.domain.generation.model_kinds import ModelFamily
from giornata.protocol.model_references import (
    CivitaiVersion,
    HubRepository,
    JobStep,
    ModelSource,
    WebFile,
    model_reference,
    source_of,
)
from giornata.protocol.training.model_names import HubFile

VERSION = CivitaiVersion(model_id=123, version_id=456, family=ModelFamily.SDXL)
KNOWN = {
    "https://example.org/a.safetensors": WebFile(url="https://example.org/a.safetensors"),
    "https://huggingface.co/own/er/resolve/v1/sub/a.safetensors": HubFile(
        repository="own/er", file="sub/a.safetensors", revision="v1"
    ),
    "own/er:sub/a.safetensors": HubFile(repository="own/er", file="sub/a.safetensors"),
    "own/er/sub/a.safetensors": HubFile(repository="own/er", file="sub/a.safetensors"),
    "own/er": HubRepository(repository="own/er"),
    "urn:air:sdxl:lora:civitai:123@456": VERSION,
    "air:sdxl:checkpoint:civitai:123@456": VERSION,
    "urn:air:flux1:lora:civitai:1@2": CivitaiVersion(model_id=1, version_id=2, family=None),
    "job_0123abc": JobStep(job_id="job_0123abc", step=None),
    "job_0123abc@500": JobStep(job_id="job_0123abc", step=500),
    "my-base": None,
    "Water color 2.1": None,
    "job_0123abc@last": None,
    "/models/sdxl": None,
}


@pytest.mark.parametrize("text", KNOWN)
def test_text_stands_for_one_thing(text):
    assert model_reference(text) == KNOWN[text]


@pytest.mark.parametrize(
    "text",
    [
        "ftp://example.org/a.safetensors",
        "file:///etc/passwd",
        "urn:air:sdxl:lora:civitai:123",
        "urn:air:sdxl:lora:elsewhere:123@456",
        "urn:isbn:123",
        "own/er/../../a.safetensors",
        "own/er:../a.safetensors",
        "https://example.org/\0",
    ],
)
def test_text_that_looks_like_a_reference_and_is_none_is_an_error(text):
    with pytest.raises(ValueError, match=r"is not|does not|no name has"):
        model_reference(text)


def test_each_reference_has_its_source():
    sources = [source_of(each) for each in KNOWN.values() if each is not None]
    assert set(sources) == {ModelSource.URL, ModelSource.HUB, ModelSource.CIVITAI, ModelSource.JOB}
