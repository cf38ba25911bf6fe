"""Whether the demo's run was as it had to be. No I/O."""

from collections.abc import Mapping, Sequence
from typing import Any

from giornata.pretrain.demo.kills import Kill

ENDS = 10
"""Steps whose mean is the loss at the beginning and at the end: that of a single step depends on its noise."""


def verdict(
    refused: Mapping[str, int],
    ingested: Mapping[str, Any],
    trained: Mapping[str, Any],
    kills: Sequence[Kill],
    *,
    rows: Sequence[Mapping[str, float]],
    phases: int,
) -> dict[str, Any]:
    """The report. `refused` is what was put in (reason to rows), `ingested` and `trained` what the programs say,
    `rows` the metrics by step. `ok`: nothing is wrong; what is, stands in `faults_found`."""
    found = {reason: count for reason, count in ingested["quarantined"].items() if count}
    losses = [row["loss"] for row in rows if row.get("loss") is not None]
    judged = [row["validation_loss"] for row in rows if row.get("validation_loss") is not None]
    faults = list(_faults(refused, found, trained, kills, phases))
    return {
        "rows": ingested["rows"],
        "kept": ingested["kept"],
        "quarantined": sum(found.values()),
        "quarantine": dict(sorted(found.items())),
        **{name: trained[name] for name in ("planned", "trained_once", "repeated", "missed", "unreadable")},
        "kills": len(kills),
        "killed": [{"phase": kill.phase, "step": kill.step} for kill in kills],
        "undone": trained["undone"],
        "attempts": trained["attempts"],
        "steps": trained["steps"],
        "loss_first": _mean(losses[:ENDS]),
        "loss_last": _mean(losses[-ENDS:]),
        "validation_loss_first": judged[0] if judged else None,
        "validation_loss_last": judged[-1] if judged else None,
        "faults_found": faults,
        "ok": not faults,
    }


def _faults(
    refused: Mapping[str, int],
    found: Mapping[str, int],
    trained: Mapping[str, Any],
    kills: Sequence[Kill],
    phases: int,
) -> list[str]:
    checks = {
        f"quarantine holds {dict(found)}, and {dict(refused)} was put in": dict(found) == dict(refused),
        "the run did not finish": bool(trained["finished"]),
        f"{trained['repeated']} rows were trained more than once": not trained["repeated"],
        f"{trained['missed']} rows were not trained": not trained["missed"],
        f"{trained['trained_once']} of {trained['planned']} rows were trained once": (
            trained["trained_once"] + trained["unreadable"] + trained["left_out"] == trained["planned"]
        ),
        f"{len(kills)} of {phases} kills happened": {kill.phase for kill in kills} == set(range(phases)),
    }
    return [words for words, held in checks.items() if not held]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
