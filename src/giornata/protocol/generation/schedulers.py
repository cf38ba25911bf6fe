"""Schedulers by the names of A1111, ComfyUI and diffusers. Data only: the node makes the diffusers object.

A canonical name is a sampler of ComfyUI, with its noise schedule behind it unless that is the base model's own:
`dpmpp_2m`, `dpmpp_2m_karras`. Other spellings mean one of these: `DPM++ 2M Karras`, `dpmpp_2m/karras`, `Euler a`,
`EulerDiscreteScheduler`.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import AfterValidator, StringConstraints

from giornata.protocol.generation.samplers import (
    NOT_OFFERED,
    OWN,
    SAMPLERS,
    SCHEDULES,
    NoiseSchedule,
    Sampler,
    Setting,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedScheduler:
    """A scheduler: the diffusers class, and what differs from the base model's scheduler config.

    `a1111` and `comfyui` are sampler and schedule under their names there; empty where there is none.
    """

    name: str
    class_name: str
    settings: Mapping[str, Setting]
    ancestral: bool
    second_order: bool
    a1111: tuple[str, str]
    comfyui: tuple[str, str]


DEFAULT = "euler"
SAMPLER_AND_SCHEDULE = ("sampler_name", "scheduler")
"""The two fields in which A1111's API and ComfyUI's nodes name a scheduler."""
_SEPARATORS = re.compile(r"[\s_/,+-]+")


def spelling(text: str) -> str:
    """Return the text in the form in which names are compared: lower case, words joined by underscores."""
    return _SEPARATORS.sub("_", text.strip().lower().replace("++", "pp")).strip("_")


@cache
def all_schedulers() -> Mapping[str, NamedScheduler]:
    """Return every scheduler by its canonical name, in the order of the samplers."""
    found = {}
    for sampler in SAMPLERS:
        for schedule in (SCHEDULES[OWN], *(SCHEDULES[name] for name in sampler.schedules)):
            scheduler = _named(sampler, schedule)
            found[scheduler.name] = scheduler
    return MappingProxyType(found)


def _named(sampler: Sampler, schedule: NoiseSchedule) -> NamedScheduler:
    comfyui = (sampler.comfyui, schedule.comfyui) if sampler.comfyui and schedule.comfyui else ("", "")
    return NamedScheduler(
        name=sampler.name if schedule.name == OWN else f"{sampler.name}_{schedule.name}",
        class_name=sampler.class_name,
        settings=MappingProxyType({**sampler.settings, **schedule.settings}),
        ancestral=sampler.ancestral,
        second_order=sampler.second_order,
        a1111=(sampler.a1111, schedule.a1111) if sampler.a1111 else ("", ""),
        comfyui=comfyui,
    )


@cache
def _by_spelling() -> Mapping[str, str]:
    """Return the canonical name of each spelling. An earlier sampler keeps a spelling that two have."""
    known: dict[str, str] = {}
    for sampler in SAMPLERS:
        for schedule in (SCHEDULES[OWN], *(SCHEDULES[name] for name in sampler.schedules)):
            for spelled in _spellings(sampler, schedule):
                known.setdefault(spelled, _named(sampler, schedule).name)
    return known


def _spellings(sampler: Sampler, schedule: NoiseSchedule) -> Iterator[str]:
    samplers = (sampler.name, sampler.a1111, sampler.comfyui, *sampler.also)
    if not _shares_class(sampler):
        samplers += (sampler.class_name, sampler.class_name.removesuffix("Scheduler"))
    schedules = (schedule.name, schedule.a1111, schedule.comfyui, *schedule.also)
    for first in filter(None, samplers):
        if schedule.name == OWN:
            yield spelling(first)
        yield from (spelling(f"{first} {second}") for second in filter(None, schedules))


def _shares_class(sampler: Sampler) -> bool:
    first = next(each for each in SAMPLERS if each.class_name == sampler.class_name)
    return first is not sampler


def canonical_scheduler(text: str) -> str:
    """Return the canonical name of a scheduler in any spelling. Raises ValueError with near names."""
    spelled = spelling(text)
    if (name := _by_spelling().get(spelled)) is not None:
        return name
    for away, advice in NOT_OFFERED.items():
        if spelled == away or spelled.startswith(f"{away}_") or spelled.endswith(f"_{away}"):
            raise ValueError(f"{away} is not offered: {advice}")
    near = difflib.get_close_matches(spelled, all_schedulers(), n=3, cutoff=0.5)
    known = ", ".join(near or [sampler.name for sampler in SAMPLERS])
    raise ValueError(f"there is no such scheduler; {'near names are' if near else 'samplers are'} {known}")


def with_one_scheduler(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a spec with sampler and schedule in one name, where it has both of
    `SAMPLER_AND_SCHEDULE`. Any other spec is returned itself.
    """
    sampler, schedule = (spec.get(name) for name in SAMPLER_AND_SCHEDULE)
    if not isinstance(sampler, str) or not isinstance(schedule, str):
        return spec
    others = {name: value for name, value in spec.items() if name != "sampler_name"}
    return {**others, "scheduler": f"{sampler} {schedule}"}


SchedulerName = Annotated[str, StringConstraints(max_length=64), AfterValidator(canonical_scheduler)]
"""A scheduler in any spelling, kept under its canonical name."""
