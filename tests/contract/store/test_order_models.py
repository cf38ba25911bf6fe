"""Models in orders of pictures: named in a spec, held while pictures wait, and given to the nodes that draw."""

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from tests.contract.store.test_model_registry import FakeSources
from tests.fixtures.model_files import SD15_LORA, SDXL_BASE, SDXL_LORA, model_file
from tests.fixtures.users import ANN, NODE, ROOT, have, move_in

from giornata.control.attempts.claiming.claim import claim_once
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.stop_job import cancel
from giornata.control.jobs.submission.estimate import estimate
from giornata.control.jobs.submission.order_models import bring_order_models
from giornata.control.jobs.submission.submit import JobRequest, submit, submit_each
from giornata.control.models.register import add_model, list_models, remove_model
from giornata.control.ports.model_registry import ModelRecord
from giornata.control.storage.collect import collect
from giornata.domain.errors import GiornataError, InvalidInput
from giornata.protocol.jobs import SubmitJob
from giornata.protocol.models import AddModel
from giornata.protocol.node.pictures import PictureLease
from giornata.protocol.node.work import Claim, NodeInfo

BASE, LORA, LORA_15 = model_file(SDXL_BASE), model_file(SDXL_LORA), model_file(SD15_LORA)
URL = "https://example.org/a.safetensors"
DAY_S = 86_400.0


@pytest.fixture
def rig(ctx: Context) -> Context:
    move_in(ctx)
    return replace(ctx, model_sources=FakeSources(files={URL: LORA}))


def hash_of(content: bytes) -> str:
    return sha256(content).hexdigest()


def add(rig: Context, name: str, content: bytes, caller: Caller = ANN, **more: Any) -> None:
    add_model(rig, caller, AddModel(name=name, sha256=have(rig, caller, content), **more))


def asked(kind: str = "generate", **spec: Any) -> SubmitJob:
    usual = {"model": "base", "width": 64, "height": 64, "num_inference_steps": 2}
    text = {"prompts": ["a fox"]} if kind == "generate" else {"prompt": "a fox"}
    return SubmitJob(kind=kind, spec=usual | text | spec)


def order(rig: Context, request: SubmitJob) -> str:
    bring_order_models(rig, ANN, request)
    job, _ = submit(rig, ANN, request, None)
    return job.id


def refused(rig: Context, request: SubmitJob) -> list[tuple[str, str]]:
    with pytest.raises(InvalidInput) as refusal:
        order(rig, request)
    return sorted((fault.where, fault.message) for fault in refusal.value.faults)


def lease(rig: Context) -> PictureLease:
    node = NodeInfo(node_id="node_00000001", machine_id="m1", name="n1")
    claim = Claim(
        request_id=rig.names.new("request"), node=node, kinds=("generate",), max_pictures=16, held_models=()
    )
    found = claim_once(rig, NODE, claim).picture_lease
    assert found is not None
    return found


def files(found: PictureLease) -> Sequence[tuple[str, str, str]]:
    return sorted((each.role, each.name, each.download.sha256) for each in found.files)


@pytest.mark.parametrize("kind", ["generate", "grid"])
def test_registered_and_shared_models_come_with_the_lease(rig: Context, kind: str) -> None:
    add(rig, "base", BASE, ROOT, shared=True)
    add(rig, "style", LORA)
    axes = {"axes": [{"field": "seed", "values": [1, 2]}]} if kind == "grid" else {}
    order(rig, asked(kind, loras=[{"name": "style"}], **axes))

    found = lease(rig)

    assert files(found) == [("base", "base", hash_of(BASE)), ("lora", "style", hash_of(LORA))]
    assert {picture.params["model"]["sha256"] for picture in found.pictures} == {hash_of(BASE)}


def test_reference_of_an_order_is_fetched_once_and_named_by_its_hash(rig: Context) -> None:
    add(rig, "base", BASE)
    for _ in range(2):
        order(rig, asked(loras=[{"name": URL}]))
    assert files(lease(rig))[1] == ("lora", URL, hash_of(LORA))
    assert rig.model_sources.opened == 1  # type: ignore[attr-defined]


def test_spec_that_was_parsed_before_the_submission_is_not_parsed_again(rig: Context) -> None:
    add(rig, "base", BASE)
    parsed = bring_order_models(rig, ANN, asked(prompts=["a fox"]))
    given = JobRequest(caller=ANN, request=asked(prompts=["a wolf"]), parsed_spec=parsed)
    (answer,) = submit_each(rig, [given])
    assert not isinstance(answer, GiornataError)
    assert answer[0].spec["prompts"] == ["a fox"]


def test_order_is_refused_with_the_faults_of_all_its_models_and_fields(rig: Context) -> None:
    add(rig, "base", BASE)
    add(rig, "old-style", LORA_15)
    models = [{"name": "stile"}, {"name": "old-style"}, {"name": "job_01"}]
    said = refused(rig, asked(loras=models, vae={"name": "base"}).model_copy(update={"labels": {"": "x"}}))
    assert [where for where, _ in said if where.startswith("spec.")] == [
        "spec.loras.0", "spec.loras.1", "spec.loras.2", "spec.vae"
    ]  # fmt: skip
    assert ("spec.loras.0", "there is no model stile") in said
    assert any("family" in message for where, message in said if where == "spec.loras.1")
    assert ("spec.loras.2", "this project has no training job job_01") in said
    assert any(where.startswith("labels") for where, _ in said)


def registered_before(rig: Context, name: str, content: bytes, family: str) -> None:
    """A LoRA as a server registered it that knew fewer rules."""
    record = ModelRecord(
        project_id=ANN.project_id,
        name=name,
        sha256=have(rig, ANN, content),
        kind="lora",
        family=family,
        size_bytes=len(content),
        source="blob",
        reference="",
        pinned=False,
        shared=False,
        created_at_ms=1,
        used_at_ms=1,
    )
    with rig.store.begin() as tx:
        tx.models.add(record)


def test_lora_that_is_older_than_a_rule_is_looked_at_when_it_is_ordered(rig: Context) -> None:
    dora = model_file({**SDXL_LORA, "lora_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_q.dora_scale": (8, 1)})
    add(rig, "base", BASE)
    registered_before(rig, "old", dora, "sdxl")
    registered_before(rig, "stranger", LORA_15, "sdxl")
    registered_before(rig, "sound", LORA, "sdxl")
    for _ in range(2):
        said = refused(rig, asked(loras=[{"name": name} for name in ("old", "stranger", "sound")]))
        assert [where for where, _ in said] == ["spec.loras.0", "spec.loras.1"]
        assert "holds DoRA" in said[0][1]
        assert "is of the family SD 1.5, not SDXL" in said[1][1]
    assert order(rig, asked(loras=[{"name": "sound"}]))
    with rig.store.read() as tx:
        (blob,) = tx.uploads.blobs(ANN.project_id, [hash_of(LORA)]).values()
    rig.blobs.delete(blob.key)
    assert order(rig, asked(loras=[{"name": "sound"}])), "it is not read a second time"


INPAINTING = "diffusers/stable-diffusion-xl-1.0-inpainting-0.1"
MASK = {"image": "0" * 64, "mask": "1" * 64}


@pytest.mark.parametrize(
    ("kind", "spec", "where"),
    [
        ("generate", {"model": INPAINTING}, ["spec.mask"]),
        ("generate", {"model": INPAINTING, **MASK}, []),
        ("generate", {"prompts": None, "pictures": [{"prompt": "a", "model": {"name": INPAINTING}}]},
         ["spec.pictures.0.mask"]),
        ("generate", {"prompts": None, "pictures": [{"prompt": "a", "model": {"name": INPAINTING}, **MASK}]},
         []),
        ("generate", {"model": INPAINTING, "prompts": None, "pictures": [{"prompt": "a", **MASK}, {"prompt": "b"}]},
         ["spec.pictures.1.mask"]),
        ("grid", {"axes": [{"field": "model", "values": ["owner/other", INPAINTING]}]}, ["spec.axes.0.values.1"]),
    ],
)  # fmt: skip
def test_base_that_was_made_to_inpaint_is_refused_without_a_mask(
    rig: Context, kind: str, spec: dict[str, Any], where: list[str]
) -> None:
    usual = {"model": "owner/other"}
    found = [place for place, message in refused(rig, asked(kind, **usual | spec, loras=[{"name": "no-such-lora"}]))
             if "made to inpaint" in message]  # fmt: skip
    assert found == where


def test_unknown_model_is_told_beside_a_field_that_cannot_be_parsed(rig: Context) -> None:
    said = refused(rig, asked(model="bse", width=63))
    assert [where for where, _ in said] == ["spec.model", "spec.width"]


def test_references_beside_other_faults_are_looked_up_where_they_are_registered_and_named_otherwise(
    rig: Context,
) -> None:
    add(rig, "base", BASE)
    add(rig, "old-style", LORA_15)
    loras = [{"name": "y", "sha256": hash_of(LORA_15)}, {"name": URL}, {"name": "x", "sha256": "1" * 64}]
    said = refused(rig, asked(loras=loras, width=63))
    assert [where for where, _ in said] == ["spec", "spec.loras.0", "spec.width"]
    assert said[0][1] == "names models by reference or sha256 that were not looked up: loras.1, loras.2"
    assert "family" in said[1][1]
    assert rig.model_sources.asked == []  # type: ignore[attr-defined]


def test_estimate_resolves_models_and_counts_no_use(rig: Context) -> None:
    add(rig, "base", BASE)
    before = list_models(rig, ANN, None, 5).items[0].used_at
    rig.clock.advance_s(10.0)  # type: ignore[attr-defined]
    assert estimate(rig, ANN, asked()).spec["model"]["sha256"] == hash_of(BASE)
    assert list_models(rig, ANN, None, 5).items[0].used_at == before


@pytest.mark.parametrize("owner", [ANN, ROOT])
def test_removed_model_stays_until_the_orders_that_wait_have_ended(rig: Context, owner: Caller) -> None:
    add(rig, "base", BASE, owner, shared=owner is ROOT)
    job_id = order(rig, asked())
    remove_model(rig, owner, "base")
    rig.clock.advance_s(40 * DAY_S)  # type: ignore[attr-defined]
    collect(rig)
    assert files(lease(rig)) == [("base", "base", hash_of(BASE))]

    cancel(rig, ANN, job_id)
    report = collect(rig)

    assert (report.order_models, report.blobs) == (1, 1)
    assert refused(rig, asked())[0] == ("spec.model", "there is no model base")
