"""Which names of a base model are good, told from the spec alone."""

from typing import Any

import pytest

from giornata.control.jobs.submission.spec_faults import parse_spec
from giornata.protocol.training.model_names import HubFile, hub_file

SHA256 = "0" * 64


def faults(**fields: Any) -> dict[str, str]:
    _, found = parse_spec("train", {"dataset": "ds_1", **fields})
    return {fault.where.removeprefix("spec."): str(fault) for fault in found}


@pytest.mark.parametrize(
    "name",
    [
        "owner/name",
        "/models/sdxl",
        "~/model.safetensors",
        "owner/name/model.safetensors",
        "https://huggingface.co/owner/name/resolve/main/sub/model.safetensors?download=true",
    ],
)
def test_valid_base_model_names_have_no_faults(name: str) -> None:
    assert not faults(model=name)


@pytest.mark.parametrize(
    "name",
    [
        "https://example.org/model.safetensors",
        "http://huggingface.co/owner/name/resolve/main/model.safetensors",
        "https://huggingface.co.example.org/owner/name/resolve/main/model.safetensors",
        "https://user@huggingface.co/owner/name/resolve/main/model.safetensors",
        "https://huggingface.co/owner/name/resolve/main/../model.safetensors",
        "https://huggingface.co/owner/name",
        "https://huggingface.co/owner/name/resolve/main/model.ckpt",
        "file:///etc/passwd",
    ],
)
def test_base_model_url_other_than_hugging_face_safetensors_is_refused(name: str) -> None:
    assert "is a URL other than https://huggingface.co" in faults(model=name)["pretrained_model_name_or_path"]


def test_options_that_conflict_with_base_model_file_are_all_reported_at_once() -> None:
    told = faults(
        model="https://huggingface.co/owner/name/resolve/main/model.safetensors",
        revision="main",
        variant="fp16",
        pretrained_vae_model_name_or_path="vae.safetensors",
        pretrained_model_sha256=SHA256,
    )
    assert set(told) == {"revision", "variant", "pretrained_vae_model_name_or_path"}
    assert set(faults(model="owner/name", pretrained_model_sha256=SHA256)) == {"pretrained_model_sha256"}
    assert set(faults(model="m.safetensors", pretrained_model_sha256="XYZ")) == {"pretrained_model_sha256"}


def test_hub_file_is_parsed_from_path_or_url_and_other_names_give_none() -> None:
    assert hub_file("a/b/c/d.safetensors") == HubFile(repository="a/b", file="c/d.safetensors")
    url = "https://hf.co/a/b/blob/refs%2Fpr%2F1/d%20e.safetensors"
    assert hub_file(url) == HubFile(repository="a/b", file="d e.safetensors", revision="refs/pr/1")
    for name in ("a/b", "b.safetensors", "a/b.safetensors", "/a/b/c.safetensors", "./a/b/c.safetensors"):
        assert hub_file(name) is None
