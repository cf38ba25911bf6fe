"""Training jobs whose base is a registered model: named in a spec, held, and given to the node that trains."""

from dataclasses import replace
from typing import Any

import pytest
from tests.contract.store.test_order_models import BASE, DAY_S, LORA, add, hash_of
from tests.fixtures.contexts import ManualClock
from tests.fixtures.users import ANN, ROOT, claim, end, move_in, new_dataset, train

from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.retry import retry
from giornata.control.jobs.stop_job import cancel
from giornata.control.jobs.submission.estimate import estimate
from giornata.control.jobs.submission.submit import submit
from giornata.control.models.register import add_model, remove_model
from giornata.control.storage.collect import collect
from giornata.domain.errors import InvalidInput
from giornata.domain.jobs.job import JobEvent
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.jobs import Job
from giornata.protocol.models import AddModel
from giornata.protocol.node.work import Lease

NAME = "pretrained_model_name_or_path"
SHA256 = "pretrained_model_sha256"
ON_HUB = "owner/name/file.safetensors"


@pytest.fixture(autouse=True)
def _home(ctx: Context) -> None:
    move_in(ctx)


def submitted(ctx: Context, caller: Caller = ANN, **spec: Any) -> Job:
    job, _ = submit(ctx, caller, train(new_dataset(ctx, caller), **{"model": "my-base", **spec}), None)
    return job


def refused(ctx: Context, **spec: Any) -> list[tuple[str, str]]:
    request = train(new_dataset(ctx), **{"model": "my-base", **spec})
    with pytest.raises(InvalidInput) as caught:
        submit(ctx, ANN, request, None)
    with pytest.raises(InvalidInput) as estimated:
        estimate(ctx, ANN, request)
    assert estimated.value.faults == caught.value.faults
    return [(fault.where, fault.message) for fault in caught.value.faults]


def brought(ctx: Context) -> None:
    """The file on the hub is in the registry under its reference, as an order of pictures brings it."""
    add(ctx, "copy", BASE)
    with ctx.store.begin() as tx:
        found = tx.models.named("ann", ["copy"])["copy"]
        tx.models.add(replace(found, name=ON_HUB, reference=ON_HUB, source="hub"))


def files_of(lease: Lease) -> list[tuple[str, str, str]]:
    return [(each.role, each.name, each.download.sha256) for each in lease.files]


def test_registered_base_is_named_by_its_sha256_and_its_file_comes_with_the_lease(ctx: Context) -> None:
    add(ctx, "my-base", BASE)
    job = submitted(ctx)
    assert (job.spec[NAME], job.spec[SHA256]) == ("my-base", hash_of(BASE))
    lease = claim(ctx)
    assert files_of(lease) == [("base", "my-base", hash_of(BASE))]
    assert {each.role for each in lease.inputs} == {"instance"}


def test_shared_base_of_the_operator_comes_with_the_lease(ctx: Context) -> None:
    add(ctx, "my-base", BASE, ROOT, shared=True)
    submitted(ctx)
    assert files_of(claim(ctx)) == [("base", "my-base", hash_of(BASE))]


@pytest.mark.parametrize("shared", [False, True])
def test_base_that_is_removed_from_the_registry_stays_until_the_job_has_ended(
    ctx: Context, clock: ManualClock, shared: bool
) -> None:
    owner = ROOT if shared else ANN
    add(ctx, "my-base", BASE, owner, shared=shared)
    job = submitted(ctx)
    remove_model(ctx, owner, "my-base")
    clock.advance_s(8 * DAY_S)
    collect(ctx)
    assert files_of(claim(ctx)) == [("base", "my-base", hash_of(BASE))]
    cancel(ctx, ANN, job.id)


def test_retry_of_a_job_whose_base_is_gone_is_refused(ctx: Context, clock: ManualClock) -> None:
    add(ctx, "my-base", BASE)
    job = submitted(ctx)
    lease = claim(ctx)
    end(ctx, lease, Reason.BAD_DATA, JobEvent.FAIL)
    remove_model(ctx, ANN, "my-base")
    clock.advance_s(8 * DAY_S)
    collect(ctx)
    clock.advance_s(8 * DAY_S)
    collect(ctx)
    with pytest.raises(InvalidInput, match="there are no bytes"):
        retry(ctx, ANN, job.id)


def test_file_on_the_hub_that_the_registry_has_is_trained_with_these_bytes(ctx: Context) -> None:
    brought(ctx)
    assert submitted(ctx, model=ON_HUB).spec[SHA256] == hash_of(BASE)
    assert files_of(claim(ctx)) == [("base", ON_HUB, hash_of(BASE))]


def test_file_on_the_hub_at_a_revision_or_of_another_sha256_is_left_to_the_node(ctx: Context) -> None:
    brought(ctx)
    assert submitted(ctx, model=ON_HUB, revision="v2").spec[SHA256] is None
    assert submitted(ctx, model=ON_HUB, **{SHA256: "0" * 64}).spec[SHA256] == "0" * 64
    assert [files_of(claim(ctx, machine=f"m{n}", node=f"node_0000000{n}")) for n in (1, 2)] == [[], []]


def test_file_that_the_project_has_under_another_name_comes_with_the_lease(ctx: Context) -> None:
    add(ctx, "other", BASE)
    submitted(ctx, model="/models/file.safetensors", **{SHA256: hash_of(BASE)})
    assert files_of(claim(ctx)) == [("base", "/models/file.safetensors", hash_of(BASE))]


def test_registered_repository_is_named_as_on_the_hub(ctx: Context) -> None:
    add_model(ctx, ANN, AddModel(name="my-base", reference="owner/name", kind="base", family="sdxl"))
    assert submitted(ctx).spec[NAME] == "owner/name"
    assert files_of(claim(ctx)) == []


def test_name_that_is_not_registered_is_left_to_the_node(ctx: Context) -> None:
    assert (submitted(ctx).spec[NAME], submitted(ctx).spec[SHA256]) == ("my-base", None)
    assert files_of(claim(ctx)) == []


def test_wrong_uses_of_the_registry_are_refused_with_all_faults(ctx: Context) -> None:
    assert refused(ctx, **{SHA256: "0" * 64}) == [
        (f"spec.{NAME}", "there is no registered model my-base, and a sha256 applies to a single file only")
    ]
    add(ctx, "a-lora", LORA)
    assert refused(ctx, model="a-lora") == [(f"spec.{NAME}", "a-lora is a lora, and a base is needed here")]
    add(ctx, "my-base", BASE)
    assert refused(ctx, revision="v2", variant="fp16", **{SHA256: "0" * 64}) == [
        (f"spec.{SHA256}", f"my-base has the sha256 {hash_of(BASE)}"),
        ("spec.revision", "has no effect with the registered file my-base"),
        ("spec.variant", "has no effect with the registered file my-base"),
    ]
