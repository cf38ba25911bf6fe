"""Conditions that the header of a checkpoint tells: what a replay repeats of them, and which of them cannot be.

A replay repeats places in a shared batch and smaller memory plans (`to_repeat`). Whatever else it writes into its own
checkpoint depends on the machine alone. So no word of a machine excuses a difference, but for a machine that tells
another device or other settings than all others have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pydantic import ValidationError

from giornata.control.ports.node_queries.audit_store import ReplayAuditRow
from giornata.protocol.node.joint import joint_key, rank_ceiling
from giornata.protocol.specs import TrainSpec

SHARED_BATCH, MEMORY_PLAN = "joint", "footprint"
RECOMPUTED = frozenset({"off", "selective", "full"})

Entry = Mapping[str, Any]
"""`from_step`, `fingerprint`, and `micro` where a condition began within a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StretchConditions:
    """The fingerprints that a checkpoint's weights went through, each with its first step."""

    history: tuple[Entry, ...]

    def before(self, from_step: int) -> tuple[Entry, ...]:
        """Return the entries that the checkpoint at the beginning of a stretch has as well."""
        return tuple(entry for entry in self.history if _begins(entry) < (from_step, 0))

    def in_force(self, from_step: int) -> tuple[Entry, ...]:
        """Return the entries under which the steps after `from_step` were made."""
        within = tuple(entry for entry in self.history if _begins(entry) >= (from_step, 0))
        if within and _begins(within[0]) == (from_step, 0):
            return within
        return (*self.before(from_step)[-1:], *within)

    def to_repeat(self, from_step: int) -> list[dict[str, Any]]:
        """Return the conditions that a replay of the steps after `from_step` has to have, for the spec of an audit;
        empty when they are what any machine chooses.
        """
        entries = self.in_force(from_step)
        if not any(_shared(entry) or _plan(entry) for entry in entries):
            return []
        return [_condition(entry) for entry in entries]

    def contradiction(self, audit: ReplayAuditRow, training: Mapping[str, Any], *, others: int) -> str:
        """Return what cannot be of these conditions; empty when nothing is known against them. `others` is how many
        other attempts the node had at that time.
        """
        entries, spec = self.in_force(audit.from_step), _spec_of(training)
        if any(_begins(entry) >= (audit.to_step, 0) for entry in self.history):
            return "its conditions begin after its last step"
        if any(_begins(one) >= _begins(other) for one, other in pairwise(self.history)):
            return "its conditions are in no order"
        if any(not _may_follow(one, other) for one, other in pairwise(entries)):
            return "its conditions change as they do within no attempt"
        if any(not _is_plan(_plan(entry), spec) for entry in entries):
            return "its memory plan is none of this job"
        if self._has_another_plan_in_batch(audit.from_step, entries):
            return "it tells of another memory plan in a shared batch"
        return _why_never_shared(entries, spec, others=others)

    def _has_another_plan_in_batch(self, from_step: int, entries: Sequence[Entry]) -> bool:
        """A shared batch keeps the plan that the job had when it was alone."""
        earlier = self.before(from_step)[-1:]
        had = _plan(earlier[0]) if earlier else None
        return any(_plan(entry) != had for entry in entries if _shared(entry))


def conditions_in(told: object) -> StretchConditions | None:
    """Return the conditions in a header or in the result of an audit's job; None when they cannot be read."""
    history = told.get("history") if isinstance(told, dict) else None
    if not isinstance(history, list) or not all(_is_entry(entry) for entry in history):
        return None
    return StretchConditions(history=tuple(history))


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and type(entry.get("from_step")) is int
        and type(entry.get("micro", 0)) is int
        and isinstance(entry.get("fingerprint"), dict)
    )


def _begins(entry: Entry) -> tuple[int, int]:
    return entry["from_step"], entry.get("micro", 0)


def _shared(entry: Entry) -> Any:
    return entry["fingerprint"].get(SHARED_BATCH)


def _plan(entry: Entry) -> Any:
    return entry["fingerprint"].get(MEMORY_PLAN)


def _condition(entry: Entry) -> dict[str, Any]:
    shared, plan = _shared(entry) or {}, _plan(entry) or {}
    from_step, micro = _begins(entry)
    return {
        "from_step": from_step,
        "micro": micro,
        "place": shared.get("place"),
        "width": shared.get("width"),
        "gradient_checkpointing": plan.get("gradient_checkpointing"),
        "rows": plan.get("rows"),
    }


def _may_follow(one: Entry, other: Entry) -> bool:
    """Within an attempt a job changes its place in a shared batch, or alone its memory plan; never both."""
    before, after = one["fingerprint"], other["fingerprint"]
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    if SHARED_BATCH in before and SHARED_BATCH in after:
        return changed == {SHARED_BATCH}
    return changed == {MEMORY_PLAN} and _begins(other)[1] == 0


def _is_plan(plan: Any, spec: TrainSpec | None) -> bool:
    """Return True for no plan, and for one that is smaller than what the spec asks for, or may be."""
    if plan is None:
        return True
    if not isinstance(plan, dict) or plan.keys() != {"gradient_checkpointing", "rows"}:
        return False
    rows, most = plan["rows"], None if spec is None else spec.train_batch_size * spec.gradient_accumulation_steps
    return plan["gradient_checkpointing"] in RECOMPUTED and type(rows) is int and 1 <= rows <= (most or rows)


def _why_never_shared(entries: Sequence[Entry], spec: TrainSpec | None, *, others: int) -> str:
    shared = [(entry, _shared(entry)) for entry in entries if SHARED_BATCH in entry["fingerprint"]]
    if not shared:
        return ""
    if not all(_is_composition(each, spec) for _, each in shared):
        return "no shared batch is composed as it tells"
    if spec is not None and joint_key(spec) is None:
        return "it tells of a shared batch, and its job never shares one"
    if spec is not None and any(_begins(entry)[1] >= spec.gradient_accumulation_steps for entry, _ in shared):
        return "its conditions begin after more micro-batches than a step has"
    if any(each["width"] > 1 << others.bit_length() for _, each in shared):
        return "it tells of more jobs in its batch than its node had"
    return ""


def _is_composition(shared: Any, spec: TrainSpec | None) -> bool:
    if not isinstance(shared, dict) or shared.keys() != {"place", "width", "rank"}:
        return False
    place, width, rank = shared["place"], shared["width"], shared["rank"]
    if any(type(each) is not int for each in (place, width, rank)):
        return False
    return 0 <= place < width and (spec is None or rank == rank_ceiling(spec.rank))


def _spec_of(training: Mapping[str, Any]) -> TrainSpec | None:
    try:
        return TrainSpec.model_validate(training)
    except ValidationError:  # of a version that knew other fields
        return None
