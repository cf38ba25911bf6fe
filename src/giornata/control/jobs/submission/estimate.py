"""Estimate what a job would take and cost, without submitting it."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from giornata.control.access.permissions import require_write
from giornata.control.budgets.history import PaceHistory, experience
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.submission.forecast_start import Expectation, expect
from giornata.control.jobs.submission.prepare_job import prepare_job
from giornata.control.jobs.submission.spec_faults import ParsedSpec
from giornata.control.jobs.submission.submit import turn_of
from giornata.control.pictures.model_coverage import missing_models
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.money_store import NodePlaces
from giornata.control.ports.user_queries.records import JobRecord
from giornata.control.timestamps import instant
from giornata.domain.billing.money import cost_micro_usd
from giornata.domain.generation.picture import ORDER_KINDS
from giornata.domain.jobs.estimates import COLLECTED, PUBLISHED_PACES, PublishedPace, published_pace
from giornata.protocol.generation.expand import planned_pictures
from giornata.protocol.jobs import Estimate, SubmitJob

UNKNOWN = "no finished job of this project is like it: same kind, base model and size of a step"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstEstimate:
    """The least and the greatest values; None where nothing is known. `basis` says in words what they rest on, or
    what is missing.

    The cost is in micro-dollars. Neither the time nor the cost holds the start: fetching and loading the model.
    """

    step_s: tuple[float, float] | None = None
    run_s: tuple[float, float] | None = None
    cost_micro_usd: tuple[int, int] | None = None
    basis: str


def estimate(ctx: Context, caller: Caller, request: SubmitJob, *, parsed_spec: ParsedSpec | None = None) -> Estimate:
    """Check the request as `submit` does, and say what is known of such jobs: medians of the project's own.

    A project without such jobs gets ranges from published figures. When the job would start rests on the pace of the
    whole fleet. An unknown figure is None, and the sentences say so. `parsed_spec` is the spec where `parse_spec` was
    asked already. Raises Forbidden, InvalidInput.
    """
    require_write(caller, request.kind)
    with ctx.store.read() as tx:
        job = prepare_job(ctx, tx, caller, request, parsed_spec=parsed_spec, notes_use=False)
        turn = turn_of(tx, job)
        ahead = tx.job_reads.ahead(kind=job.kind, interrupted=False, priority=job.priority, turn=turn, job_id=job.id)
        known = experience(tx, job)
        run_s = None if known is None or job.total_steps is None else known.run_s(job.total_steps)
        expected = expect(tx, ctx, ctx.policy, job, turn=turn, run_s=run_s)
        if job.kind in ORDER_KINDS and (missing := missing_models(tx, ctx, job.project_id, job.spec)):
            expected = replace(expected, words=f"{expected.words}; {missing}")
        figures = _from_published(first_estimate(tx, ctx, job)) if known is None else _from_experience(job, known)
    return Estimate(
        spec=job.spec,
        total_steps=job.total_steps,
        **_work_of_order(job),
        queue_position=ahead + 1,
        **figures,
        **_instants(expected, now_ms=job.created_at_ms),
    )


def _work_of_order(job: JobRecord) -> dict[str, Any]:
    """Return how many pictures an order has, and their work; nothing for any other job."""
    if job.kind not in ORDER_KINDS:
        return {}
    planned = list(planned_pictures(job.kind, job.spec))
    return {"pictures": len(planned), "pixel_steps": sum(each.pixel_steps for each in planned)}


def _instants(expected: Expectation, *, now_ms: int) -> dict[str, Any]:
    found, now = expected.forecast, instant(now_ms)
    if found is None:
        return {"expectation": expected.words}
    return {
        "expected_start_at": now + timedelta(seconds=found.start_s),
        "expected_end_at": None if found.end_s is None else now + timedelta(seconds=found.end_s),
        "expectation": expected.words,
    }


def _from_published(first: FirstEstimate) -> dict[str, Any]:
    return {
        "step_s_range": first.step_s,
        "run_s_range": first.run_s,
        "cost_micro_usd_range": first.cost_micro_usd,
        "basis": first.basis,
    }


def _from_experience(job: JobRecord, known: PaceHistory) -> dict[str, Any]:
    steps = job.total_steps
    count = "1 finished job" if known.jobs == 1 else f"{known.jobs} finished jobs"
    return {
        "step_s": known.step_s,
        "run_s": None if steps is None else known.run_s(steps),
        "cost_micro_usd": None if steps is None else known.cost_micro_usd(steps),
        "basis": f"median of {count} of this project with the same kind, base model and size of a step",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOffer:
    """A GPU on which the job may run, and its price for an hour; None when no price is known."""

    pace: PublishedPace
    price_micro_usd_per_hour: int | None


def first_estimate(tx: Transaction, ctx: Context, job: JobRecord) -> FirstEstimate:
    """Return the estimate for a job of which the project has no experience.

    Other projects' jobs are left out: what they took would tell which base models other projects train.
    """
    if job.kind != "train" or job.total_steps is None:
        return FirstEstimate(basis=UNKNOWN)
    now_ms = ctx.clock.now_ms()
    nodes = tx.forecasts.places(
        kind=job.kind,
        project_id=job.project_id,
        min_vram_bytes=job.min_vram_bytes,
        seen_since_ms=now_ms - round(ctx.policy.node_gone_after_s * 1000),
    )
    offers, whose = _of_nodes(nodes) if nodes else _without_nodes(tx, ctx, job)
    if not offers:
        return FirstEstimate(basis=f"{UNKNOWN}; and no pace is published for {whose}")
    return _ranges(job, job.total_steps, offers, whose, side_px=_side_px(tx, job))


def _of_nodes(nodes: Sequence[NodePlaces]) -> tuple[list[GpuOffer], str]:
    known = [(pace, node.price_micro_usd_per_hour) for node in nodes if (pace := published_pace(node.device))]
    if not known:
        devices = sorted({node.device or "a device without a name" for node in nodes})
        return [], ", ".join(devices[:3])
    offers = [GpuOffer(pace=pace, price_micro_usd_per_hour=price) for pace, price in known]
    return offers, f"at the prices of the nodes that are connected ({_names(offers)})"


def _without_nodes(tx: Transaction, ctx: Context, job: JobRecord) -> tuple[list[GpuOffer], str]:
    """Return offers on any GPU of the table: at prices of the fleets that give nodes for such jobs, else at
    published ones.
    """
    prices = _prices_of_fleets(tx, ctx, job)
    if prices:
        offers = [GpuOffer(pace=pace, price_micro_usd_per_hour=price) for pace in PUBLISHED_PACES for price in prices]
        return offers, f"on any of {_names(offers)}, for no node is connected, at the prices of the fleets"
    offers = [
        GpuOffer(pace=pace, price_micro_usd_per_hour=pace.price_micro_usd_per_hour)
        for pace in PUBLISHED_PACES
        if pace.price_micro_usd_per_hour is not None
    ]
    sources = "; ".join(dict.fromkeys(each.pace.price_source for each in offers))
    return offers, f"on any of {_names(offers)}, for no node is connected, at published prices ({sources})"


def _prices_of_fleets(tx: Transaction, ctx: Context, job: JobRecord) -> Collection[int]:
    able = {name for name, fleet in ctx.fleets.items() if job.kind in fleet.kinds}
    rows = tx.fleets.all() if able else ()
    return {row.price_micro_usd_per_hour for row in rows if row.name in able and row.price_micro_usd_per_hour}


def _names(offers: Sequence[GpuOffer]) -> str:
    return ", ".join(dict.fromkeys(offer.pace.gpu for offer in offers))


def _side_px(tx: Transaction, job: JobRecord) -> float:
    """Return the side of a square that has as many pixels as a picture of a step has on average.

    It is the job's resolution, or less where pictures have a resolution of their own or must not be enlarged.
    """
    spec = job.spec
    if not spec["enable_bucket"]:
        return float(spec["resolution"])
    areas = [_mean_area_px(tx, job, spec["dataset"])]
    if spec["with_prior_preservation"]:
        areas.append(_mean_area_px(tx, job, spec["class_dataset"]))
    return math.sqrt(sum(areas) / len(areas))


def _mean_area_px(tx: Transaction, job: JobRecord, dataset_id: str | None) -> float:
    """Return the mean area of pictures over an epoch of a dataset, in pixels.

    Without a dataset the base draws squares of the job's resolution.
    """
    side = job.spec["resolution"]
    items = () if dataset_id is None else tx.datasets.items(dataset_id, project_id=job.project_id)
    if not items:
        return float(side**2)
    blobs = tx.uploads.blobs(job.project_id, sorted({item.sha256 for item in items}))
    total = 0
    for item in items:
        area = min(item.resolution or side, side) ** 2
        known = blobs[item.sha256].inspection if item.sha256 in blobs else None
        if job.spec["bucket_no_upscale"] and known is not None and known["width"] and known["height"]:
            area = min(area, known["width"] * known["height"])
        total += item.repeats * area
    return total / sum(item.repeats for item in items)


def _ranges(job: JobRecord, steps: int, offers: Sequence[GpuOffer], whose: str, *, side_px: float) -> FirstEstimate:
    spec = job.spec
    pictures = spec["train_batch_size"] * spec["gradient_accumulation_steps"]
    pictures *= 2 if spec["with_prior_preservation"] else 1
    found = [(offer, offer.pace.step_s(side_px=side_px, pictures=pictures)) for offer in offers]
    step_s = (min(least for _, (least, _) in found), max(greatest for _, (_, greatest) in found))
    costs = [
        cost_micro_usd(price_micro_usd_per_hour=offer.price_micro_usd_per_hour, billed_ms=round(each * steps * 1000))
        for offer, range_s in found
        if offer.price_micro_usd_per_hour is not None
        for each in range_s
    ]
    sources = "; ".join(dict.fromkeys(f"{offer.pace.gpu}: {offer.pace.source}" for offer, _ in found))
    return FirstEstimate(
        step_s=step_s,
        run_s=(step_s[0] * steps, step_s[1] * steps),
        cost_micro_usd=(min(costs), max(costs)) if costs else None,
        basis=(
            f"{UNKNOWN}; the ranges are an estimate for an SDXL base {whose}, without the start, from step times "
            f"that others published (collected in {COLLECTED}; {sources}), and not from runs of Giornata"
        ),
    )
