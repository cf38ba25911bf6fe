"""As many jobs share a batch as the device has room for."""

from typing import Any

import torch
from tests.fixtures.joint_train_rig import JOBS, JointTrainRig

from giornata.diffusion.base.models import load_base
from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.specs import TrainSpec
from giornata.workloads.interface import Outcome
from giornata.workloads.train.device.layout import needed_bytes, sizes_in_a_place
from giornata.workloads.train.device.memory_budget import CONTEXT_BYTES, MemoryBudget


def room_for(joint_rig: JointTrainRig, name: str, jobs: int, **changes: Any) -> MemoryBudget:
    """A device on which so many jobs like this one just fit."""
    spec = TrainSpec.model_validate(joint_rig.train_rig(name, **changes).spec)
    base = load_base(spec, device="cpu", dtype=torch.float32)
    need_bytes = needed_bytes(sizes_in_a_place(base, spec), spec, jobs)
    return MemoryBudget(total_bytes=int((need_bytes + CONTEXT_BYTES) / 0.95) + 2)


def test_shared_batch_offers_as_many_places_as_fit_into_memory(joint_rig: JointTrainRig) -> None:
    changes = {name: {"max_train_steps": 2, "resolution": 128} for name in JOBS}
    table, reporters = joint_rig.together(
        ["a", "d", "e"], changes=changes, budget=room_for(joint_rig, "a", 2, **changes["a"])
    )
    assert table.offered == [2]
    assert "up to 2 jobs" in reporters["a"].lines[0]
    widths = []
    for end in table.ends.values():
        assert isinstance(end, Outcome)
        widths += [each["fingerprint"]["joint"]["width"] for each in end.summary["fingerprints"]]
    assert max(widths) == 2


def test_shared_batch_with_room_for_one_trains_it_solo_to_same_bytes_and_others_wait(
    joint_rig: JointTrainRig,
) -> None:
    changes = {"max_train_steps": 2, "resolution": 128}
    budget = room_for(joint_rig, "a", 1, **changes)
    table, reporters = joint_rig.together(["a", "e"], changes={"a": changes}, budget=budget)
    assert table.offered == []
    assert len(table.waiting) == 1
    outcome = table.ends["a"]
    assert isinstance(outcome, Outcome)
    assert outcome.summary["exactness"]["class"] == "solo"
    assert reporters["a"].artifacts == joint_rig.alone("a", **changes).artifacts


def test_a_job_that_does_not_even_fit_alone_is_refused_as_ever(joint_rig: JointTrainRig) -> None:
    table, reporters = joint_rig.together(["a"], budget=MemoryBudget(total_bytes=1))
    end = table.ends["a"]
    assert isinstance(end, WorkloadFailed)
    assert end.reason is Reason.NODE_TOO_SMALL
    assert not reporters["a"].metrics
