"""The estimate of a project's first job: ranges, what they rest on, and nothing where nothing is published."""

import pytest
from tests.fixtures.fleets import ToyFleet, governed, with_fleets
from tests.fixtures.users import ANN, BOB, NODE, claim, end, move_in, new_dataset, new_job, progress, train

from giornata.control.attempts.claiming.claim import claim_once
from giornata.control.context import Context
from giornata.control.jobs.submission.estimate import estimate
from giornata.control.storage.datasets import create_dataset
from giornata.domain.jobs.job import JobEvent
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.jobs import Estimate, SubmitJob
from giornata.protocol.node.work import Claim, NodeInfo
from giornata.protocol.uploads import CreateDataset, DatasetItem


@pytest.fixture(autouse=True)
def _home(ctx: Context) -> None:
    move_in(ctx)


def connect_node(ctx: Context, device: str, *, price: int = 360_000, node: str = "node_00000001") -> None:
    info = NodeInfo(node_id=node, machine_id=node, name=node, device=device, price_micro_usd_per_hour=price)
    assert (
        claim_once(ctx, NODE, Claim(request_id=ctx.names.new("request"), node=info, kinds=("train",))).lease is None
    )


def look(ctx: Context, **spec: object) -> Estimate:
    return estimate(ctx, ANN, train(new_dataset(ctx), max_train_steps=1000, resolution=1024, **spec))


def test_the_range_is_of_the_gpus_that_are_connected_at_their_prices(ctx: Context) -> None:
    connect_node(ctx, "NVIDIA GeForce RTX 4090")
    found = look(ctx)
    assert found.step_s_range == (0.45, 2.26)
    assert found.run_s_range == (450.0, 2260.0)
    assert found.cost_micro_usd_range == (450 * 100, 2260 * 100), (
        "0.36 dollars an hour are 100 micro-dollars a second"
    )
    assert (found.step_s, found.run_s, found.cost_micro_usd) == (None, None, None)
    for words in (
        "no finished job",
        "an estimate",
        "RTX 4090",
        "nodes that are connected",
        "November 2026",
        "others",
    ):
        assert words in found.basis
    connect_node(ctx, "NVIDIA GeForce RTX 3060", price=180_000, node="node_00000002")
    wider = look(ctx)
    assert wider.step_s_range == (0.45, 2.8)
    assert wider.cost_micro_usd_range == (450 * 100, 2260 * 100), "the slow one is cheaper by more than it is slower"


def test_the_size_of_a_step_counts(ctx: Context) -> None:
    connect_node(ctx, "NVIDIA GeForce RTX 3090")
    assert look(ctx).step_s_range == (1.23, 1.23)
    assert look(ctx, train_batch_size=2, gradient_accumulation_steps=2).step_s_range == (4.92, 4.92)
    prior = {"with_prior_preservation": True, "class_prompt": "a photo of a dog"}
    assert look(ctx, **prior).step_s_range == (2.46, 2.46)
    small = estimate(ctx, ANN, train(new_dataset(ctx), max_train_steps=10, resolution=512))
    assert small.step_s_range == (1.23 / 4, 1.23), "that a quarter of the picture takes a quarter is not known"


def test_pictures_that_are_trained_smaller_take_less(ctx: Context) -> None:
    """Those that must not be enlarged count with their own size, those with a resolution of their own with that."""
    connect_node(ctx, "NVIDIA GeForce RTX 3090")
    bucketed = {"enable_bucket": True}
    assert look(ctx, **bucketed).step_s_range == (1.23, 1.23)
    small = look(ctx, **bucketed, bucket_no_upscale=True).step_s_range
    assert small == (pytest.approx(1.23 * 64**2 / 1024**2), 1.23), "the inspector found 64 x 64"
    sizes = [512, None, None, None]
    items = [
        DatasetItem(sha256=item.sha256, name=item.name, resolution=resolution, repeats=3 if resolution else 1)
        for item, resolution in zip(new_dataset(ctx).items, sizes, strict=True)
    ]
    own = create_dataset(ctx, ANN, CreateDataset(items=tuple(items)))
    mixed = estimate(ctx, ANN, train(own, max_train_steps=10, resolution=1024, **bucketed)).step_s_range
    assert mixed == (pytest.approx(1.23 * (3 / 4 + 3) / 6), 1.23)
    prior = {"with_prior_preservation": True, "class_prompt": "a dog"}
    drawn = look(ctx, **bucketed, **prior, bucket_no_upscale=True).step_s_range
    assert drawn == (pytest.approx(1.23 * (1 / 256 + 1)), 2.46), "class pictures are drawn in the job's resolution"


@pytest.mark.parametrize("device", ["cpu", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 30900", ""])
def test_for_a_device_without_published_figures_nothing_is_made_up(ctx: Context, device: str) -> None:
    connect_node(ctx, device)
    found = look(ctx)
    assert (found.step_s_range, found.run_s_range, found.cost_micro_usd_range) == (None, None, None)
    assert "no pace is published for" in found.basis
    assert device in found.basis


def test_estimate_without_a_node_uses_fleet_prices_or_published_ones(ctx: Context) -> None:
    alone = look(ctx)
    assert alone.run_s_range == (450.0, 2260.0)
    assert alone.cost_micro_usd_range is not None
    assert "no node is connected" in alone.basis
    assert "SaladCloud" in alone.basis
    with ctx.store.begin() as tx:
        tx.fleets.put("gpu", driver="toy", at_ms=ctx.clock.now_ms(), desired=0)
        tx.fleets.update("gpu", price_micro_usd_per_hour=720_000)
    found = look(with_fleets(ctx, {"gpu": governed(ToyFleet())}))
    assert found.step_s_range == (0.45, 2.8), "any GPU of the table may come"
    assert found.cost_micro_usd_range == (450 * 200, 2800 * 200)
    assert "prices of the fleets" in found.basis


def test_estimate_ignores_jobs_of_other_projects_and_kinds(ctx: Context) -> None:
    connect_node(ctx, "cpu")
    new_job(ctx, BOB)
    lease = claim(ctx)
    ctx.clock.advance_s(30)  # type: ignore[attr-defined]
    progress(ctx, lease, step=1)
    ctx.clock.advance_s(90)  # type: ignore[attr-defined]
    end(ctx, lease, Reason.SUCCEEDED, JobEvent.SUCCEED, step=10)
    assert estimate(ctx, BOB, train(new_dataset(ctx, BOB))).step_s == 10.0
    assert estimate(ctx, ANN, train(new_dataset(ctx))).run_s_range is None
    own_kind = SubmitJob(kind="x-count", spec={"steps": 3})
    assert estimate(ctx, ANN, own_kind).run_s_range is None


def test_estimate_of_project_with_own_jobs_has_medians_and_no_ranges(ctx: Context) -> None:
    new_job(ctx)
    lease = claim(ctx)
    progress(ctx, lease, step=1)
    ctx.clock.advance_s(18)  # type: ignore[attr-defined]
    end(ctx, lease, Reason.SUCCEEDED, JobEvent.SUCCEED, step=10)
    found = estimate(ctx, ANN, train(new_dataset(ctx)))
    assert found.step_s == 2.0
    assert (found.step_s_range, found.run_s_range, found.cost_micro_usd_range) == (None, None, None)
