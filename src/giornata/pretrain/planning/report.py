"""Rankings and the seed's tables as plain values, for `--json`."""

from dataclasses import asdict
from typing import Any

from giornata.pretrain.planning.choices import Choice
from giornata.pretrain.planning.facts import Facts
from giornata.pretrain.planning.needs import needs_of
from giornata.pretrain.planning.paper import headline, paper, table_3
from giornata.pretrain.planning.ranking import Ranking, online_against_offline
from giornata.pretrain.planning.reasons import reasons


def ranking_told(ranking: Ranking) -> dict[str, Any]:
    """The whole ranking, cheapest first; sums in USD."""
    best = ranking.best
    even = None if best is None else online_against_offline(ranking, best)
    return {
        "name": ranking.request.name,
        "model": ranking.request.model,
        "samples": ranking.request.samples,
        "prices": ranking.request.prices,
        "rows": ranking.request.dataset_rows,
        "configured": None if ranking.configured is None else choice_told(ranking.configured),
        "needs": [asdict(each) for each in needs_of(ranking.request, ranking.facts)],
        "choices": [choice_told(choice) for choice in ranking.choices],
        "reasons": reasons(ranking),
        "notes": list(ranking.request.notes),
        "left_out": list(ranking.left_out),
        "break_even": None if even is None else asdict(even),
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
            "price": f"{machines.trainer_offer.mark}: {machines.trainer_offer.source}",
        },
        "encoders": {
            "instance": machines.encoder.name,
            "gpu": machines.encoder.gpu,
            "usd_per_hour": machines.encoder_offer.usd_per_hour,
            "price": f"{machines.encoder_offer.mark}: {machines.encoder_offer.source}",
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


def paper_told(facts: Facts) -> dict[str, Any]:
    """The seed's tables; the figures that are compared to the dollar stand last."""
    rows = [asdict(row) | {"difference": row.difference} for row in paper(facts)]
    return {"rows": rows, "steps": [asdict(row) for row in table_3(facts)], **asdict(headline(facts))}
