"""The registry of models over HTTP and in the SDK."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.model_files import SDXL_BASE, SDXL_LORA, model_file
from tests.fixtures.served import Served

from giornata.domain.errors import Forbidden, InvalidInput, NotFound
from giornata.protocol.models import AddModel
from giornata.protocol.project.admin import ROOT_PROJECT

URN = "urn:air:sdxl:lora:civitai:123@456"


def uploaded(served: Served, directory: Path, content: bytes) -> str:
    path = directory / "m.safetensors"
    path.write_bytes(content)
    (sent,) = served.client().upload_files([path])
    return sent.sha256


def test_model_is_added_listed_pinned_and_removed(served: Served, tmp_path: Path) -> None:
    client = served.client()
    sha256 = uploaded(served, tmp_path, model_file(SDXL_BASE))
    added = client.add_model(AddModel(name="my base", sha256=sha256))
    assert (added.kind, added.family, added.source, added.pinned) == ("base", "sdxl", "blob", False)
    assert client.pin_model("my base").pinned
    assert [each.name for each in client.models()] == ["my base"]
    assert client.remove_model("my base").sha256 == sha256
    with pytest.raises(NotFound):
        client.remove_model("my base")
    with pytest.raises(Forbidden):
        list(served.client(served.keys.node).models())


def test_whole_repository_of_the_hub_gets_a_name_without_a_download(served: Served) -> None:
    added = served.client().add_model(AddModel(name="base", reference="stabilityai/stable-diffusion-xl-base-1.0"))
    assert (added.sha256, added.family, added.reference) == (None, "sdxl", "stabilityai/stable-diffusion-xl-base-1.0")
    served.client().add_model(AddModel(name="other", reference="own/er", kind="vae"))
    assert served.client().remove_model("other").kind == "vae"


def test_model_whose_name_is_a_reference_is_reached_by_it(served: Served) -> None:
    client = served.client()
    client.add_model(AddModel(name="base", reference="own/er"))
    name = "https://example.org/a b.safetensors?x=1#y"
    with served.ctx.store.begin() as tx:
        model = tx.models.named(ROOT_PROJECT, ["base"])["base"]
        tx.models.add(replace(model, name=name, reference=name))
    assert client.pin_model(name).pinned
    assert client.model_coverage(name).name == name
    assert client.remove_model(name).name == name
    with pytest.raises(NotFound):
        client.model_coverage(name)


def test_every_fault_of_a_request_comes_with_its_place(served: Served, tmp_path: Path) -> None:
    sha256 = uploaded(served, tmp_path, model_file(SDXL_LORA))
    with pytest.raises(InvalidInput) as refusal:
        served.client().add_model(AddModel(name="x", sha256=sha256, kind="base", family="sd15"))
    assert [(fault.where, fault.message) for fault in refusal.value.faults] == [
        ("sha256", "is a lora file, not a base"),
        ("sha256", "is of the family SDXL, not SD 1.5"),
    ]
    for body in ({"name": "x"}, {"name": "own/er", "sha256": sha256}, {"name": "x", "reference": "https://x/a.ckpt"}):
        assert served.call("POST", "/v1/models", served.keys.member, json=body).status_code == 400


def test_server_that_fetches_nothing_from_outside_says_so(served: Served) -> None:
    with pytest.raises(InvalidInput, match="fetches no models from outside"):
        served.client().add_model(AddModel(name="x", reference=URN))
