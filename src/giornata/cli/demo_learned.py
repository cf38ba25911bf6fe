"""What the demo's LoRAs have learned and kept, as giornata.diffusion.shapes.learned marks it. No I/O."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LEAST_SUBJECT = 0.4
LEAST_OLD = 0.8
"""Marks below which the demo fails, as means over all LoRAs. They are far below those in docs/benchmarks.md: other
processors round otherwise, and a single LoRA's marks are of few pictures."""

HEADERS = ("LoRA", "subject drawn: base", "LoRA", "mean IoU: base", "LoRA", "old prompts: base", "LoRA")
RIGHT = (1, 2, 3, 4, 5, 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Shares of pictures, 0 to 1: those that show the subject, their mean IoU, and old prompts that are followed."""

    subject: float
    subject_iou: float
    old: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """The base's marks and those with the LoRA, from the same noise."""

    base: Marks
    lora: Marks


def read_learned(found: Mapping[str, Any]) -> dict[str, Learned]:
    """What the program wrote, by subject."""
    return {subject: Learned(base=_marks(both["base"]), lora=_marks(both["lora"])) for subject, both in found.items()}


def _marks(found: Mapping[str, float]) -> Marks:
    return Marks(**{name: float(found[name]) for name in Marks.__dataclass_fields__})


def learned_rows(learned: Mapping[str, Learned]) -> list[tuple[str, ...]]:
    """One row for each LoRA; the columns are HEADERS."""
    return [(name, *_cells(each)) for name, each in learned.items()]


def _cells(each: Learned) -> Iterator[str]:
    for before, after in (
        (percent(each.base.subject), percent(each.lora.subject)),
        (f"{each.base.subject_iou:.2f}", f"{each.lora.subject_iou:.2f}"),
        (percent(each.base.old), percent(each.lora.old)),
    ):
        yield before
        yield after


def percent(share: float) -> str:
    """`88 %`."""
    return f"{round(100 * share)} %"


def taught(learned: Collection[Learned]) -> float:
    """How often subjects are drawn, as a mean over the LoRAs; 0 when there are none."""
    return sum(each.lora.subject for each in learned) / max(1, len(learned))


def kept(learned: Collection[Learned]) -> float:
    """How often old prompts are followed, likewise."""
    return sum(each.lora.old for each in learned) / max(1, len(learned))


def both(before: Sequence[float], after: Sequence[float]) -> str:
    """`0 % before, 81 to 94 % with LoRA`."""
    return f"{spread(before)} before, {spread(after)} with LoRA" if before else "not measured"


def spread(shares: Sequence[float]) -> str:
    """`81 to 94 %`, or one figure when all are alike."""
    least, most = percent(min(shares)), percent(max(shares))
    return most if least == most else f"{least.removesuffix(' %')} to {most}"


def plain(learned: Mapping[str, Learned]) -> dict[str, dict[str, float]]:
    """For --json."""
    return {
        name: {
            "subject_base": round(each.base.subject, 4),
            "subject": round(each.lora.subject, 4),
            "iou_base": round(each.base.subject_iou, 4),
            "iou": round(each.lora.subject_iou, 4),
            "old_base": round(each.base.old, 4),
            "old": round(each.lora.old, 4),
        }
        for name, each in learned.items()
    }
