"""The cases of `giornata simulate audits`: shares of liars and of audits, and what has to hold."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from giornata.simulate.audits.audited_fleet import STRETCH_MS, AuditedFleet, LiarSetting

MAX_COST = 1.2
"""Audits may cost so many times their share of the bill."""
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LiarCase:
    """One setting with its name."""

    name: str
    about: str
    setting: LiarSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class LiarFindings:
    """The figures of a case, over all its seeds.

    `cost` is the audits' part of the bill. `mean_stretches` and `longest_stretches` are how many a liar made before
    it was out; `liars_left` were not out at the end, and `sound_out` counts sound machines that were.
    """

    case: LiarCase
    cost: float
    mean_stretches: float
    longest_stretches: int
    liars: int
    liars_left: int
    sound_out: int
    undecided: int

    @property
    def ok(self) -> bool:
        """True when the audits cost no more than they may, and no sound machine is out."""
        return self.cost <= MAX_COST * self.case.setting.share and not self.sound_out

    def as_json(self) -> dict[str, Any]:
        """Return the figures for `--json`."""
        hours = self.mean_stretches * STRETCH_MS / HOUR_MS
        told = {name: value for name, value in asdict(self).items() if name != "case"}
        return {"name": self.case.name, **asdict(self.case.setting), **told, "mean_hours": hours, "ok": self.ok}


CASES: Sequence[LiarCase] = (
    LiarCase(name="few", about="One machine in twenty lies, always.", setting=LiarSetting()),
    LiarCase(name="careful", about="One in twenty lies in a tenth of its stretches.", setting=LiarSetting(lies=0.1)),
    LiarCase(name="many", about="One machine in five lies, always.", setting=LiarSetting(liars=0.2)),
    LiarCase(
        name="agreeing",
        about="One in twenty lies; all liars are of one owner, and tell the same lie.",
        setting=LiarSetting(agreeing=True),
    ),
    LiarCase(
        name="often", about="Five stretches in a hundred are audited.", setting=LiarSetting(share=0.05, stretches=500)
    ),
)


def play_liars(case: LiarCase, *, seeds: Iterable[int]) -> LiarFindings:
    """Play a case with each seed."""
    fleets = [AuditedFleet(case.setting, seed) for seed in seeds]
    for fleet in fleets:
        fleet.play()
    liars = [each for fleet in fleets for each in fleet.machines if each.liar]
    sound = [each for fleet in fleets for each in fleet.machines if not each.liar]
    out = [each.out_after for each in liars if each.out_after is not None]
    return LiarFindings(
        case=case,
        cost=sum(fleet.replays for fleet in fleets) / max(1, sum(fleet.made for fleet in fleets)),
        mean_stretches=fmean(out) if out else 0.0,
        longest_stretches=max(out, default=0),
        liars=len(liars),
        liars_left=len(liars) - len(out),
        sound_out=sum(each.out_after is not None for each in sound),
        undecided=sum(fleet.undecided for fleet in fleets),
    )
