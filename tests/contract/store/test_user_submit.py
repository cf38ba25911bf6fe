"""Submission and estimates."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from tests.fixtures.contexts import ManualClock
from tests.fixtures.users import ANN, BOB, NODE, claim, end, move_in, new_dataset, new_job, progress, train

from giornata.control.context import Context
from giornata.control.jobs.reading.job_outputs import read_events
from giornata.control.jobs.reading.read_jobs import get_job
from giornata.control.jobs.submission.estimate import estimate
from giornata.control.jobs.submission.submit import submit
from giornata.domain.errors import Fault, Forbidden, IdempotencyMismatch, InvalidInput
from giornata.domain.jobs.job import JobEvent, JobState
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.jobs import SubmitJob
from giornata.store.database.database import Database
from giornata.store.schema import idempotency, jobs


@pytest.fixture(autouse=True)
def _home(ctx: Context) -> None:
    move_in(ctx)


def job_count(store: Database) -> int:
    with store.read() as tx:
        return tx.connection.scalar(sa.select(sa.func.count()).select_from(jobs)) or 0


def faults_of(ctx: Context, request: SubmitJob) -> dict[str, Fault]:
    with pytest.raises(InvalidInput) as caught:
        submit(ctx, ANN, request, None)
    with pytest.raises(InvalidInput) as estimated:
        estimate(ctx, ANN, request)
    assert estimated.value.faults == caught.value.faults
    return {fault.where: fault for fault in caught.value.faults}


def test_the_stored_spec_is_whole(ctx: Context) -> None:
    job, created = submit(ctx, ANN, train(new_dataset(ctx), rank=8), None)
    assert created
    assert job.state is JobState.QUEUED
    assert isinstance(job.spec["seed"], int)
    assert job.spec["alpha"] == 8.0
    assert job.spec["pretrained_model_name_or_path"] == "some/model"
    assert job.spec["learning_rate"] == 1e-4
    assert (job.name, job.total_steps) == (job.id, 10)
    assert get_job(ctx, ANN, job.id) == job
    given, _ = submit(ctx, ANN, train(new_dataset(ctx), seed=7, alpha=2.5), None)
    assert (given.spec["seed"], given.spec["alpha"]) == (7, 2.5)
    (event,) = read_events(ctx, ANN, job.id, 0, 10).items
    assert (event.type, event.data) == ("job.submitted", {"kind": "train", "retry_of": None})


@pytest.mark.parametrize(
    ("batch", "accumulation", "epochs", "steps"),
    [(1, 1, 3, 12), (3, 1, 3, 6), (1, 3, 3, 6), (3, 2, 5, 5), (8, 1, 7, 7)],
)
def test_epochs_are_counted_into_steps(ctx: Context, batch: int, accumulation: int, epochs: int, steps: int) -> None:
    """As diffusers' scripts count them: 4 pictures are ceil(ceil(4 / batch) / accumulation) steps."""
    fields = {"train_batch_size": batch, "gradient_accumulation_steps": accumulation, "num_train_epochs": epochs}
    request = train(new_dataset(ctx), **fields, lr_scheduler="constant_with_warmup", lr_warmup_steps=5)
    spec = {name: value for name, value in request.spec.items() if name != "max_train_steps"}
    job, _ = submit(ctx, ANN, request.model_copy(update={"spec": spec}), None)
    assert (job.spec["max_train_steps"], job.spec["num_train_epochs"], job.total_steps) == (steps, None, steps)


def test_epochs_that_come_to_too_few_or_too_many_steps_are_refused(ctx: Context) -> None:
    request = train(new_dataset(ctx))
    bare = {name: value for name, value in request.spec.items() if name != "max_train_steps"}
    for fields, where in (
        ({"num_train_epochs": 1, "lr_scheduler": "linear", "lr_warmup_steps": 5}, "spec.lr_warmup_steps"),
        ({"num_train_epochs": 100_000, "gradient_accumulation_steps": 1}, None),
        ({"num_train_epochs": 0}, "spec.num_train_epochs"),
    ):
        wanted = request.model_copy(update={"spec": bare | fields})
        if where is None:
            assert submit(ctx, ANN, wanted, None)[0].total_steps == 400_000
            continue
        with pytest.raises(InvalidInput) as caught:
            submit(ctx, ANN, wanted, None)
        assert where in {fault.where for fault in caught.value.faults}


def test_d8_a_repeated_request_with_a_key_makes_one_job(ctx: Context, store: Database) -> None:
    dataset = new_dataset(ctx)
    first, created = submit(ctx, ANN, train(dataset), "key 1".replace(" ", "-"))
    again, created_again = submit(ctx, ANN, train(dataset), "key-1")
    assert (created, created_again) == (True, False)
    assert again == first
    with pytest.raises(IdempotencyMismatch, match=first.id):
        submit(ctx, ANN, train(dataset, rank=4), "key-1")
    with pytest.raises(IdempotencyMismatch):
        submit(ctx, ANN, train(dataset).model_copy(update={"priority": 1}), "key-1")
    assert submit(ctx, BOB, train(new_dataset(ctx, BOB)), "key-1")[1], "a key is the project's own"
    assert submit(ctx, ANN, train(dataset), None)[1]
    assert job_count(store) == 3
    with pytest.raises(InvalidInput, match="Idempotency-Key"):
        submit(ctx, ANN, train(dataset), "not\nvisible")


def test_d8_many_equal_requests_at_one_moment_make_one_job(ctx: Context, store: Database) -> None:
    request = train(new_dataset(ctx))
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: submit(ctx, ANN, request, "storm"), range(24)))
    assert len({job.id for job, _ in answers}) == 1
    assert sorted(created for _, created in answers) == [False] * 23 + [True]
    assert job_count(store) == 1


def test_d8_a_request_that_was_refused_leaves_its_key_free(ctx: Context, store: Database) -> None:
    dataset = new_dataset(ctx)
    with pytest.raises(InvalidInput):
        submit(ctx, ANN, train(dataset, rank=0), "key-1")
    assert submit(ctx, ANN, train(dataset), "key-1")[1]


def test_a_key_is_forgotten_after_a_day(ctx: Context, store: Database, clock: ManualClock) -> None:
    dataset = new_dataset(ctx)
    submit(ctx, ANN, train(dataset), "key-1")
    clock.advance_s(24 * 3600)
    assert not submit(ctx, ANN, train(dataset), "key-1")[1]
    clock.advance_s(1)
    assert submit(ctx, ANN, train(dataset, rank=4), "key-1")[1]
    with store.read() as tx:
        assert tx.connection.scalar(sa.select(sa.func.count()).select_from(idempotency)) == 1


def test_d37_everything_that_is_wrong_is_told_at_once(ctx: Context, store: Database) -> None:
    dataset = new_dataset(ctx)
    spec = {
        "dataset": dataset.id,
        "class_dataset": "ds_unknown",
        "rank": 0,
        "learning_rat": 1e-4,
        "resolution": 1001,
        "target_modules": ["to_\x00k"],
    }
    request = SubmitJob(kind="train", spec=spec, name="be\x07ll", labels={"a b": "c"})
    found = faults_of(ctx, request)
    assert set(found) == {
        "spec.pretrained_model_name_or_path",
        "spec.instance_prompt",
        "spec.class_dataset",
        "spec.rank",
        "spec.learning_rat",
        "spec.resolution",
        "spec.target_modules.0",
        "name",
        "labels.a b",
    }
    assert found["spec.learning_rat"].hint == "did you mean learning_rate?"
    assert "0.png, 1.png, 2.png, 3.png" in found["spec.instance_prompt"].message
    assert job_count(store) == 0


def test_contradictions_name_their_fields(ctx: Context) -> None:
    found = faults_of(ctx, train(new_dataset(ctx), with_prior_preservation=True, lr_warmup_steps=600))
    assert set(found) == {"spec.class_prompt", "spec.lr_warmup_steps", "spec.lr_scheduler"}
    assert found["spec.lr_scheduler"].hint == "use constant_with_warmup, or lr_warmup_steps 0"


@pytest.mark.parametrize("dataset_id", ["ds_0", "ds_bobs", "nonsense", "ds_\x00", 7, None])
def test_d35_the_dataset_has_to_be_the_projects_own(ctx: Context, dataset_id: object) -> None:
    bobs = new_dataset(ctx, BOB)
    given = bobs.id if dataset_id == "ds_bobs" else dataset_id
    assert "spec.dataset" in faults_of(ctx, train(bobs, dataset=given))


def test_captions_stand_in_for_the_prompt(ctx: Context) -> None:
    dataset = new_dataset(ctx, caption="a photo of sks")
    assert submit(ctx, ANN, train(dataset, instance_prompt=None), None)[1]


def test_kinds_are_known_or_ones_own(ctx: Context) -> None:
    found = faults_of(ctx, SubmitJob(kind="trian", spec={}))
    assert found["kind"].hint == "did you mean train?"
    job, _ = submit(ctx, ANN, SubmitJob(kind="x-script", spec={"steps": 3, "deep": {"er": [1]}}), None)
    assert (job.spec, job.total_steps) == ({"steps": 3, "deep": {"er": [1]}}, 3)
    assert "spec.deep.er.0" in faults_of(ctx, SubmitJob(kind="x-script", spec={"deep": {"er": ["\x00"]}}))


def test_a_nodes_key_submits_nothing(ctx: Context) -> None:
    for forbidden in (submit, lambda *given: estimate(*given[:3])):
        with pytest.raises(Forbidden):
            forbidden(ctx, NODE, SubmitJob(kind="x-script", spec={}), None)


def test_an_estimate_changes_nothing_and_makes_nothing_up(ctx: Context, store: Database) -> None:
    request = train(new_dataset(ctx))
    known = estimate(ctx, ANN, request)
    assert (known.step_s, known.run_s, known.cost_micro_usd) == (None, None, None)
    assert "no finished job" in known.basis
    assert (known.total_steps, known.queue_position) == (10, 1)
    assert job_count(store) == 0
    for caller, priority in ((ANN, 0), (BOB, 1), (BOB, -1)):
        submit(ctx, caller, train(new_dataset(ctx, caller)).model_copy(update={"priority": priority}), None)
    assert estimate(ctx, ANN, request).queue_position == 3


def test_an_estimate_is_the_median_of_comparable_jobs_of_the_project(ctx: Context, clock: ManualClock) -> None:
    for step_s in (2, 3, 10):
        new_job(ctx)
        lease = claim(ctx)
        clock.advance_s(30 + step_s)
        progress(ctx, lease, step=1)
        clock.advance_s(9 * step_s)
        end(ctx, lease, Reason.SUCCEEDED, JobEvent.SUCCEED, step=10)
    known = estimate(ctx, ANN, train(new_dataset(ctx), max_train_steps=100))
    assert (known.step_s, known.run_s) == (3.0, 330.0)
    assert known.cost_micro_usd == 330 * 100, "the node costs 0.36 dollars an hour"
    assert known.basis.startswith("median of 3 finished jobs")
    assert estimate(ctx, ANN, train(new_dataset(ctx), resolution=512)).step_s is None
    assert estimate(ctx, ANN, train(new_dataset(ctx), model="another/model")).step_s is None
    assert estimate(ctx, BOB, train(new_dataset(ctx, BOB))).step_s is None


def test_an_estimate_is_what_jobs_paid_that_shared_a_node(ctx: Context, clock: ManualClock) -> None:
    for _ in range(2):
        new_job(ctx)
    leases = [claim(ctx) for _ in range(2)]
    clock.advance_s(10)
    for lease in leases:
        progress(ctx, lease, step=1)
    clock.advance_s(90)
    for lease in leases:
        end(ctx, lease, Reason.SUCCEEDED, JobEvent.SUCCEED, step=10)
    known = estimate(ctx, ANN, train(new_dataset(ctx)))
    assert (known.step_s, known.run_s, known.cost_micro_usd) == (10.0, 100.0, 100 * 100 // 2)
