"""The results of an examination: findings in order of harm."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Harm(StrEnum):
    """The harm of a finding, the greatest first."""

    LOSS = "loss"  # of data, or of secrets
    STOPPED = "stopped"  # no work is done, or soon none is
    DEGRADED = "degraded"  # work goes on, slower or with less safety


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFinding:
    """One thing that is wrong, and the next step."""

    check: str
    harm: Harm
    message: str
    fix: str


class NotChecked(Exception):
    """A check could not be made. The text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All findings in order of harm, the checks that were made, and why others were not."""

    findings: Sequence[DoctorFinding]
    checked: Sequence[str]
    not_checked: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return {
            "findings": [asdict(each) for each in self.findings],
            "checked": list(self.checked),
            "not_checked": dict(self.not_checked),
        }
