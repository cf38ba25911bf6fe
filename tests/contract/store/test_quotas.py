"""Quotas of projects: what they refuse, with the limit and its use, and whom a claim passes over."""

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256

import pytest
from tests.contract.store.test_order_models import FakeSources, asked
from tests.contract.store.test_races import at_once
from tests.fixtures.contexts import ManualClock
from tests.fixtures.model_files import SDXL_BASE, SDXL_LORA, model_file
from tests.fixtures.store_rig import NODE_CALLER
from tests.fixtures.users import ANN, ANN_ADMIN, BOB, ROOT, Bytes, claim, have, move_in, new_dataset, train

from giornata.control.attempts.claiming.claim import Asked, claim_each, claim_once
from giornata.control.attempts.ending.complete import complete
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.end_of_life.delete_job import delete_job
from giornata.control.jobs.reading.read_jobs import get_job
from giornata.control.jobs.retry import retry
from giornata.control.jobs.stop_job import cancel
from giornata.control.jobs.submission.order_models import bring_order_models
from giornata.control.jobs.submission.submit import JobRequest, submit, submit_each
from giornata.control.jobs.submission.submit_sweep import submit_sweep
from giornata.control.memory.process_cache import ProcessCache
from giornata.control.models.register import add_model, list_models
from giornata.control.projects.set_budget import set_project_budget
from giornata.control.projects.set_quotas import read_quotas, set_quotas
from giornata.control.storage.uploads import request_uploads
from giornata.domain.errors import Forbidden, GiornataError, InvalidInput, NotFound, OverBudget, OverQuota, QuotaFault
from giornata.protocol.jobs import SubmitJob
from giornata.protocol.models import AddModel
from giornata.protocol.node.work import Claim, ClaimReply, CompleteAttempt, NodeInfo
from giornata.protocol.project.admin import SetBudget
from giornata.protocol.project.quotas import ProjectQuotas, SetQuotas
from giornata.protocol.sweeps import SubmitSweep
from giornata.protocol.uploads import UploadRequest

BASE, LORA = model_file(SDXL_BASE), model_file(SDXL_LORA)
DAY_S = 86_400


@pytest.fixture(autouse=True)
def _home(ctx: Context) -> None:
    move_in(ctx)


def limit(ctx: Context, project_id: str = "ann", **limits: object) -> ProjectQuotas:
    return set_quotas(ctx, ROOT, project_id, SetQuotas.model_validate(limits))


def another_server(ctx: Context) -> Context:
    """One that knows nothing yet of what others did."""
    return replace(ctx, memory=ProcessCache())


def request_of(ctx: Context, caller: Caller = ANN, **more: object) -> SubmitJob:
    return train(new_dataset(ctx, caller)).model_copy(update=more)


def refused(ctx: Context, request: SubmitJob, caller: Caller = ANN) -> Sequence[QuotaFault]:
    with pytest.raises(OverQuota) as refusal:
        submit(ctx, caller, request, None)
    return [fault for fault in refusal.value.faults if isinstance(fault, QuotaFault)]


def ask(ctx: Context, number: int, **wanted: object) -> ClaimReply:
    info = NodeInfo(node_id=f"node_{number:08d}", machine_id=f"m{number}", name=f"m{number}")
    request = Claim(request_id=ctx.names.new("request"), node=info, kinds=("train",))
    return claim_once(ctx, NODE_CALLER, request)


# ---- queued jobs, priority


def test_last_place_in_the_queue_is_given_once(ctx: Context) -> None:
    limit(ctx, max_queued_jobs=3)
    request = request_of(ctx)
    for _ in range(2):
        submit(ctx, ANN, request, None)
    servers = [another_server(ctx) for _ in range(4)]
    outcomes = at_once(*(lambda server=server: _outcome(server, request) for server in servers))  # type: ignore[misc]
    assert sorted(outcomes, key=str) == ["made", *["over-quota"] * 3]
    assert read_quotas(ctx, ANN, "ann").queued_jobs.used == 3


def _outcome(ctx: Context, request: SubmitJob) -> str:
    try:
        submit(ctx, ANN, request, None)
    except GiornataError as error:
        return error.code
    return "made"


def test_jobs_that_are_submitted_together_count_one_after_the_other(ctx: Context) -> None:
    limit(ctx, max_queued_jobs=2)
    request = JobRequest(caller=ANN, request=request_of(ctx))
    answers = submit_each(ctx, [request] * 4)
    assert [isinstance(each, OverQuota) for each in answers] == [False, False, True, True]


def test_refusal_names_limit_and_use_and_all_faults_at_once(ctx: Context) -> None:
    limit(ctx, max_queued_jobs=0, max_priority=5)
    queued, priority = refused(ctx, request_of(ctx, priority=9))
    assert (queued.quota, queued.limit, queued.used, queued.free_at_ms) == ("queued_jobs", 0, 0, None)
    assert (priority.where, priority.quota, priority.limit, priority.used) == ("priority", "priority", 5, 9)
    wrong = SubmitJob(kind="train", spec={"model": "some/model"}, priority=9)
    with pytest.raises(InvalidInput) as refusal:
        submit(ctx, ANN, wrong, None)
    assert not isinstance(refusal.value, OverQuota)
    assert {"spec.dataset", "priority", "project"} <= {fault.where for fault in refusal.value.faults}


def test_key_that_made_a_job_finds_it_when_the_queue_is_full(ctx: Context) -> None:
    limit(ctx, max_queued_jobs=1)
    request = request_of(ctx)
    job, _ = submit(ctx, ANN, request, "once")
    assert submit(ctx, ANN, request, "once") == (get_job(ctx, ANN, job.id), False)


def test_retry_takes_a_place_in_the_queue(ctx: Context) -> None:
    job, _ = submit(ctx, ANN, request_of(ctx), None)
    cancel(ctx, ANN, job.id)
    limit(ctx, max_queued_jobs=0)
    with pytest.raises(OverQuota):
        retry(ctx, ANN, job.id)
    limit(ctx, max_queued_jobs=1)
    assert retry(ctx, ANN, job.id).retry_of == job.id


def test_limits_of_one_project_are_not_those_of_another(ctx: Context) -> None:
    limit(ctx, max_queued_jobs=0)
    submit(ctx, BOB, request_of(ctx, BOB), None)


# ---- running jobs


def test_claim_passes_over_a_project_at_its_ceiling(ctx: Context) -> None:
    limit(ctx, max_running_jobs=1)
    for _ in range(3):
        submit(ctx, ANN, request_of(ctx), None)
    bobs, _ = submit(ctx, BOB, request_of(ctx, BOB), None)
    first, second, third = (ask(ctx, number) for number in range(3))
    assert first.lease is not None
    assert second.lease is not None
    assert (second.lease.job_id, third.reason) == (bobs.id, "project-at-ceiling")
    waiting = next(job for job in _jobs(ctx) if job != first.lease.job_id)
    said = get_job(ctx, ANN, waiting).waiting_because
    assert said is not None
    assert said.startswith("the project runs 1 of 1 jobs")
    complete(ctx, first.lease.attempt_id, CompleteAttempt(step=10))
    assert ask(ctx, 3).lease is not None


def _jobs(ctx: Context) -> list[str]:
    with ctx.store.read() as tx:
        rows = tx.job_reads.page(
            project_id="ann", states=(), labels={}, kind=None, before=None, include=(), limit=9, most_bytes=2**20
        )
    return [row.id for row in rows.items]


def test_claims_together_take_no_more_than_the_ceiling(ctx: Context) -> None:
    limit(ctx, max_running_jobs=2)
    limit(ctx, "bob", max_running_jobs=1)
    for caller in (ANN, BOB):
        for _ in range(4):
            submit(ctx, caller, request_of(ctx, caller), None)
    replies = claim_each(ctx, [_asked(ctx, number) for number in range(8)])
    leases = [each.lease for each in replies if isinstance(each, ClaimReply) and each.lease is not None]
    assert len(leases) == 3
    used = [read_quotas(ctx, ROOT, project_id).running_jobs.used for project_id in ("ann", "bob")]
    assert used == [2, 1]


def _asked(ctx: Context, number: int) -> Asked:
    info = NodeInfo(node_id=f"node_{number:08d}", machine_id=f"m{number}", name=f"m{number}")
    return Asked(
        caller=NODE_CALLER,
        claim=Claim(request_id=ctx.names.new("request"), node=info, kinds=("train",)),
    )


def test_claims_of_several_servers_take_no_more_than_the_ceiling(ctx: Context) -> None:
    limit(ctx, max_running_jobs=2)
    for _ in range(9):
        submit(ctx, ANN, request_of(ctx), None)
    servers = [another_server(ctx) for _ in range(8)]
    at_once(*(lambda number=number, server=server: ask(server, number) for number, server in enumerate(servers)))  # type: ignore[misc]
    assert 1 <= read_quotas(ctx, ROOT, "ann").running_jobs.used <= 2
    for number in range(8, 12):
        ask(ctx, number)
    assert read_quotas(ctx, ROOT, "ann").running_jobs.used == 2


def test_ceiling_is_heard_of_by_another_server_within_seconds(ctx: Context, clock: ManualClock) -> None:
    other = another_server(ctx)
    submit(ctx, ANN, request_of(ctx), None)
    assert claim(other, NODE_CALLER) is not None
    submit(ctx, ANN, request_of(ctx), None)
    limit(ctx, max_running_jobs=1)
    clock.advance_s(5)
    assert ask(other, 2).reason == "project-at-ceiling"


# ---- pictures a day


def test_pictures_are_counted_until_midnight(ctx: Context, clock: ManualClock) -> None:
    rig = replace(ctx, model_sources=FakeSources(files={}))
    add_model(rig, ANN, AddModel(name="base", sha256=have(rig, ANN, BASE)))
    limit(rig, max_pictures_per_day=5)
    submit(rig, ANN, asked(num_images_per_prompt=4), None)
    (fault,) = refused(rig, asked(num_images_per_prompt=2))
    assert (fault.quota, fault.limit, fault.used) == ("pictures_per_day", 5, 4)
    assert fault.free_at_ms is not None
    assert fault.free_at_ms % (DAY_S * 1000) == 0
    submit(rig, ANN, asked(num_images_per_prompt=1), None)
    (fault,) = refused(rig, asked(num_images_per_prompt=6))
    assert fault.free_at_ms is None, "there is never room for so many"
    clock.advance_s((fault.used or 0) and (refused(rig, asked())[0].free_at_ms or 0) / 1000 - clock.now_ms() / 1000)
    submit(rig, ANN, asked(num_images_per_prompt=5), None)


def test_deleted_order_counts_until_midnight(ctx: Context) -> None:
    rig = replace(ctx, model_sources=FakeSources(files={}))
    add_model(rig, ANN, AddModel(name="base", sha256=have(rig, ANN, BASE)))
    limit(rig, max_pictures_per_day=5)
    order, _ = submit(rig, ANN, asked(num_images_per_prompt=4), None)
    delete_job(rig, ANN, order.id, cancel=True)
    (fault,) = refused(rig, asked(num_images_per_prompt=2))
    assert (fault.limit, fault.used) == (5, 4)


# ---- open orders


def test_order_is_refused_while_too_many_have_not_ended_and_jobs_are_not(ctx: Context) -> None:
    rig = replace(ctx, model_sources=FakeSources(files={}))
    add_model(rig, ANN, AddModel(name="base", sha256=have(rig, ANN, BASE)))
    limit(rig, max_open_orders=2)
    first, _ = submit(rig, ANN, asked(num_images_per_prompt=4), None)
    second, _ = submit(rig, ANN, asked(), None)
    (fault,) = refused(rig, asked())
    assert (fault.quota, fault.limit, fault.used, fault.free_at_ms) == ("open_orders", 2, 2, None)
    submit(rig, ANN, request_of(rig), None)
    with rig.store.begin() as tx:  # an order that is drawn, or waits for money, has not ended either
        tx.jobs.update(first.id, state="running")
        tx.picture_orders.pause([second.id])
    assert refused(rig, asked())[0].used == 2
    with rig.store.begin() as tx:
        tx.jobs.update(first.id, state="queued")
    cancel(rig, ANN, first.id)
    assert read_quotas(rig, ANN, "ann").open_orders.used == 1
    submit(rig, ANN, asked(), None)
    with pytest.raises(OverQuota, match="2 of 2 orders"):
        retry(rig, ANN, first.id)


def test_two_orders_at_one_moment_get_one_last_place(ctx: Context) -> None:
    rig = replace(ctx, model_sources=FakeSources(files={}))
    add_model(rig, ANN, AddModel(name="base", sha256=have(rig, ANN, BASE)))
    limit(rig, max_open_orders=1)
    both = submit_each(rig, [JobRequest(caller=ANN, request=asked()), JobRequest(caller=ANN, request=asked())])
    assert [isinstance(each, OverQuota) for each in both] == [False, True]


# ---- quotas and budgets together


def test_refusal_names_quotas_and_budgets_together(ctx: Context) -> None:
    set_project_budget(ctx, ROOT, "ann", SetBudget(budget_micro_usd=0, monthly_budget_micro_usd=0))
    limit(ctx, max_queued_jobs=0)
    faults = refused(ctx, request_of(ctx, budget_micro_usd=7))
    assert [each.quota for each in faults] == ["queued_jobs", "budget_micro_usd", "monthly_budget_micro_usd"]
    assert [each.limit for each in faults] == [0, 0, 0]
    assert [each.free_at_ms is not None for each in faults] == [False, False, True]
    limit(ctx, max_queued_jobs=None)
    with pytest.raises(OverBudget, match=r"budget of project ann, \$0.*; of the budget of project ann for 20"):
        submit(ctx, ANN, request_of(ctx, budget_micro_usd=7), None)


def test_refused_job_leaves_nothing_of_what_was_looked_up_for_its_budgets(ctx: Context) -> None:
    set_project_budget(ctx, ROOT, "ann", SetBudget(budget_micro_usd=0))
    limit(ctx, max_queued_jobs=0)
    request = request_of(ctx)
    with ctx.store.read() as tx:
        before = tx.spending.reserved("ann")
    refused(ctx, request)
    with ctx.store.read() as tx:
        assert (tx.quotas.queued("ann"), tx.spending.reserved("ann")) == (0, before)


# ---- what the platform pays for


def test_jobs_that_the_platform_pays_for_take_no_place_and_no_money(ctx: Context, clock: ManualClock) -> None:
    job, _ = submit(ctx, ANN, request_of(ctx), None)
    lease = claim(ctx)
    complete(ctx, lease.attempt_id, CompleteAttempt(step=10))
    with ctx.store.begin() as tx:
        tx.jobs.update(job.id, suspect=True)
    again = retry(ctx, ANN, job.id)
    assert (again.retry_of, read_quotas(ctx, ANN, "ann").queued_jobs.used) == (job.id, 0)
    spent = read_quotas(ctx, ANN, "ann").monthly_spend_micro_usd.used
    lease = claim(ctx)
    assert lease.job_id == again.id
    limit(ctx, max_running_jobs=1)
    submit(ctx, ANN, request_of(ctx), None)
    assert read_quotas(ctx, ANN, "ann").running_jobs.used == 0
    assert ask(ctx, 3).lease is not None
    assert read_quotas(ctx, ANN, "ann").running_jobs.used == 1
    clock.advance_s(60)
    complete(ctx, lease.attempt_id, CompleteAttempt(step=10))
    assert read_quotas(ctx, ANN, "ann").monthly_spend_micro_usd.used == spent


# ---- sweeps


def test_sweep_takes_a_place_for_each_of_its_jobs_or_is_refused_whole(ctx: Context) -> None:
    spec = request_of(ctx).spec
    limit(ctx, max_queued_jobs=2)
    with pytest.raises(OverQuota) as refusal:
        submit_sweep(ctx, ANN, SubmitSweep(spec=spec, grid={"rank": (4, 8, 16)}), None)
    (fault,) = refusal.value.faults
    assert isinstance(fault, QuotaFault)
    assert (fault.quota, fault.limit, fault.used, _jobs(ctx)) == ("queued_jobs", 2, 0, [])
    submit_sweep(ctx, ANN, SubmitSweep(spec=spec, grid={"rank": (4, 8)}), None)
    used = read_quotas(ctx, ANN, "ann")
    assert (used.queued_jobs.used, used.running_jobs.used) == (2, 0)


def test_sweep_of_models_that_are_not_allowed_is_over_quota(ctx: Context) -> None:
    limit(ctx, allowed_base_models=("other/*",))
    with pytest.raises(OverQuota) as refusal:
        submit_sweep(ctx, ANN, SubmitSweep(spec=request_of(ctx).spec, grid={"rank": (4, 8)}), None)
    assert {fault.where for fault in refusal.value.faults} == {"spec.pretrained_model_name_or_path"}


# ---- stored bytes


def test_last_bytes_are_given_to_one_of_several_uploads(ctx: Context) -> None:
    servers = [another_server(ctx) for _ in range(4)]

    def open_one(number: int, used: int) -> str:
        file = Bytes(f"{number} {used}".encode().ljust(100)).file
        try:
            request_uploads(servers[number], ANN, UploadRequest(files=(file,)))
        except OverQuota as error:
            (fault,) = error.faults
            assert isinstance(fault, QuotaFault)
            assert fault.limit == used + 150
            return error.code
        return "open"

    for used in range(0, 600, 100):
        limit(ctx, max_stored_bytes=used + 150)
        outcomes = at_once(*(lambda number=number, used=used: open_one(number, used) for number in range(4)))  # type: ignore[misc]
        assert sorted(outcomes, key=str) == ["open", *["over-quota"] * 3]
        assert read_quotas(ctx, ANN, "ann").stored_bytes.used == used + 100


def test_full_store_takes_no_new_job_and_no_model_from_outside(ctx: Context) -> None:
    url = "https://example.org/a.safetensors"
    rig = replace(ctx, model_sources=FakeSources(files={url: LORA}))
    request = request_of(rig)
    used = read_quotas(rig, ANN, "ann").stored_bytes.used
    assert used > 0
    limit(rig, max_stored_bytes=used)
    (fault,) = refused(rig, request)
    assert (fault.quota, fault.limit, fault.used) == ("stored_bytes", used, used)
    with pytest.raises(OverQuota):
        add_model(rig, ANN, AddModel(name="lora", reference=url))
    assert read_quotas(rig, ANN, "ann").stored_bytes.used == used


# ---- models


def test_only_allowed_models_are_taken(ctx: Context) -> None:
    rig = replace(ctx, model_sources=FakeSources(files={}))
    add_model(rig, ROOT, AddModel(name="base", sha256=have(rig, ROOT, BASE), shared=True))
    add_model(rig, ANN, AddModel(name="own", sha256=have(rig, ANN, LORA)))
    limit(rig, allowed_base_models=("base",), allowed_adapters=("source:job", f"sha256:{'0' * 64}"))
    submit(rig, ANN, asked(), None)
    with_lora = asked(loras=[{"name": "own"}])
    (fault,) = refused(rig, with_lora)
    assert (fault.where, fault.quota) == ("spec.loras.0", "adapters")
    assert {each.name: each.allowed for each in list_models(rig, ANN, None, 10).items} == {"base": True, "own": False}
    limit(rig, allowed_adapters=(f"sha256:{sha256(LORA).hexdigest()}",))
    submit(rig, ANN, with_lora, None)
    limit(rig, allowed_base_models=("family:sd15",), allowed_adapters=())
    assert [each.quota for each in refused(rig, with_lora)] == ["base_models", "adapters"]
    limit(rig, allowed_base_models=None, allowed_adapters=None)
    submit(rig, ANN, with_lora, None)


def test_name_that_a_tenant_chose_makes_no_model_allowed(ctx: Context) -> None:
    rig = replace(ctx, model_sources=FakeSources(files={}))
    add_model(rig, ANN, AddModel(name="trusted", sha256=have(rig, ANN, BASE)))
    limit(rig, allowed_base_models=("trusted",))
    (fault,) = refused(rig, asked(model="trusted"))
    assert fault.quota == "base_models"


def test_model_given_by_its_bytes_is_judged_like_one_given_by_its_name(ctx: Context) -> None:
    rig = replace(ctx, model_sources=FakeSources(files={}))
    own = have(rig, ANN, BASE)
    limit(rig, allowed_base_models=("family:sd15",))
    request = asked(model={"name": "x", "sha256": own})
    bring_order_models(rig, ANN, request)
    (fault,) = refused(rig, request)
    assert fault.quota == "base_models"


def test_training_names_an_allowed_base(ctx: Context) -> None:
    limit(ctx, allowed_base_models=("some/*",), allowed_adapters=("source:job",))
    submit(ctx, ANN, request_of(ctx), None)
    other = train(new_dataset(ctx), model="other/model", init_lora=have(ctx, ANN, LORA))
    assert {each.where for each in refused(ctx, other)} == {"spec.pretrained_model_name_or_path", "spec.init_lora"}


def test_training_on_a_registered_base_is_judged_by_its_bytes_and_not_by_the_name_that_a_tenant_chose(
    ctx: Context,
) -> None:
    rig = replace(ctx, model_sources=FakeSources(files={}))
    add_model(rig, ANN, AddModel(name="trusted", sha256=have(rig, ANN, BASE)))
    request = train(new_dataset(rig), model="trusted")
    limit(rig, allowed_base_models=("trusted",))
    (fault,) = refused(rig, request)
    assert (fault.where, fault.quota) == ("spec.pretrained_model_name_or_path", "base_models")
    limit(rig, allowed_base_models=("family:sdxl",))
    submit(rig, ANN, request, None)


# ---- reading and setting


def test_only_the_operator_sets_quotas_and_members_read_their_own(ctx: Context) -> None:
    for caller in (ANN, ANN_ADMIN, BOB):
        with pytest.raises(Forbidden):
            set_quotas(ctx, caller, "ann", SetQuotas(max_queued_jobs=1))
    assert limit(ctx, max_queued_jobs=7, max_requests_per_s=3).queued_jobs.limit == 7
    assert limit(ctx, max_queued_jobs=None).max_requests_per_s == 3
    read = read_quotas(ctx, ANN, "ann")
    assert (read.queued_jobs.limit, read.max_requests_per_s) == (None, 3)
    for caller, project_id in ((BOB, "ann"), (ANN, "nobody"), (ROOT, "nobody")):
        with pytest.raises(NotFound):
            read_quotas(ctx, caller, project_id)
