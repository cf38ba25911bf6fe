"""A ranking as plain values for `--json`, and what a run needs on whatever machines."""

from dataclasses import asdict, dataclass
from typing import Any

from giornata.pretrain.planning.choices import Choice
from giornata.pretrain.planning.facts import Facts
from giornata.pretrain.planning.ranking import Ranking, rows_that_decide
from giornata.pretrain.planning.reasons import reasons, verdict
from giornata.pretrain.planning.request import PlanRequest

GIGA = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseNeeds:
    """`train_flop`: forward and backward, of all samples. `encode_flop`: both towers, of all rows once; with encoders
    beside the run it is paid in every pass. Stored bytes are those of the two modes that store."""

    resolution: int
    samples: int
    steps: int
    rows: int
    train_flop: float
    encode_flop: float
    offline_bytes: float
    hybrid_bytes: float


def needs_of(request: PlanRequest, facts: Facts) -> tuple[PhaseNeeds, ...]:
    """Of a checked request; `facts` hold what it brings (`with_given`)."""
    return tuple(
        PhaseNeeds(
            resolution=phase.resolution,
            samples=phase.samples,
            steps=-(-phase.samples // phase.global_batch_size),
            rows=request.rows(phase),
            train_flop=phase.samples * flops.train_gflop * GIGA,
            encode_flop=request.rows(phase) * flops.encode_gflop * GIGA,
            offline_bytes=request.rows(phase) * (sizes.moments_bytes + sizes.text_bytes),
            hybrid_bytes=request.rows(phase) * sizes.moments_bytes,
        )
        for phase in request.phases
        for flops in [facts.flops_of(request.model, phase.resolution)]
        for sizes in [facts.row_bytes_of(request.model, phase.resolution)]
    )


def ranking_told(ranking: Ranking) -> dict[str, Any]:
    """The whole ranking, cheapest first; sums in USD."""
    decisive = rows_that_decide(ranking)
    return {
        "name": ranking.request.name,
        "model": ranking.request.model,
        "samples": ranking.request.samples,
        "prices": ranking.request.prices,
        "rows": ranking.request.dataset_rows,
        "verdict": verdict(ranking),
        "rows_that_decide": None
        if decisive is None
        else {
            "rows": decisive.rows,
            "below": decisive.below.name,
            "above": decisive.above.name,
        },
        "configured": None if ranking.configured is None else choice_told(ranking.configured),
        "needs": [asdict(each) for each in needs_of(ranking.request, ranking.facts)],
        "choices": [choice_told(choice) for choice in ranking.choices],
        "reasons": reasons(ranking),
        "notes": list(ranking.request.notes),
        "left_out": list(ranking.left_out),
    }


def choice_told(choice: Choice) -> dict[str, Any]:
    """One choice with its phases."""
    machines, bill = choice.machines, choice.bill
    return {
        "mode": choice.mode.value,
        "trainers": {
            "instances": machines.instances,
            "instance": machines.trainer.name,
            "gpu": machines.trainer.gpu,
            "gpus": machines.gpus,
            "usd_per_hour": machines.trainer_offer.usd_per_hour,
            "price": machines.trainer_offer.basis,
        },
        "encoders": {
            "instance": machines.encoder.name,
            "gpu": machines.encoder.gpu,
            "usd_per_hour": machines.encoder_offer.usd_per_hour,
            "price": machines.encoder_offer.basis,
        }
        if choice.encodes_with_others
        else None,
        "estimated": choice.estimated,
        "stored_bytes": choice.stored_bytes,
        **asdict(bill),
        "hours": bill.hours,
        "total_usd": bill.total_usd,
        "phases": [asdict(phase) for phase in choice.phases],
    }
