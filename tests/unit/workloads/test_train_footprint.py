"""What a job may be laid out as, and whether it fits."""

from typing import Any

import pytest
import torch

from giornata.diffusion.base.memory import GIB
from giornata.diffusion.base.recompute import Recompute
from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import BAN, RETRY, STRIKE, Reason
from giornata.protocol.specs import TrainSpec
from giornata.workloads.train.device.memory_budget import (
    CONTEXT_BYTES,
    MemoryBudget,
    MemoryPlan,
    MemorySizes,
    below_on,
    budget_of,
    fallbacks,
    fitted,
    from_fingerprint,
    smaller_of,
    to_fingerprint,
    why_not_drawn,
    without_footprint,
)

OFF, SELECTIVE, FULL = Recompute


def spec_with(**changes: Any) -> TrainSpec:
    return TrainSpec(pretrained_model_name_or_path="m", dataset="ds_1", seed=1, **changes)


def plan(recompute: Recompute, rows: int = 1) -> MemoryPlan:
    return MemoryPlan(recompute=recompute, rows=rows)


def test_the_ladder_begins_with_what_was_asked_for_and_ends_with_single_pictures() -> None:
    assert fallbacks(spec_with()) == (plan(OFF), plan(SELECTIVE), plan(FULL))
    assert fallbacks(spec_with(gradient_checkpointing=True)) == (plan(FULL),)
    expected = (plan(SELECTIVE, 6), plan(FULL, 6), plan(FULL, 3), plan(FULL, 2), plan(FULL, 1))
    assert fallbacks(spec_with(gradient_checkpointing="selective", train_batch_size=6)) == expected


def test_fallback_plans_keep_train_batch_size_while_gradient_checkpointing_helps() -> None:
    spec = spec_with(train_batch_size=2, gradient_accumulation_steps=4)
    expected = (plan(OFF, 8), plan(OFF, 4), plan(OFF, 2), plan(SELECTIVE, 2), plan(FULL, 2), plan(FULL, 1))
    assert fallbacks(spec) == expected


def test_smaller_memory_plans_are_those_further_down_the_fallbacks() -> None:
    plans = fallbacks(spec_with(train_batch_size=4))
    for number, each in enumerate(plans):
        assert below_on(plans, each) == list(plans[number + 1 :])
    assert smaller_of(plan(SELECTIVE, 2), plan(FULL, 4)) == plan(FULL, 2)


def test_a_footprint_travels_in_the_fingerprint_when_it_is_not_the_specs_own() -> None:
    spec = spec_with(train_batch_size=2)
    assert to_fingerprint(plan(OFF, 2), spec) == {}
    assert from_fingerprint({}, spec) == plan(OFF, 2)
    for each in fallbacks(spec):
        said = {"torch": "1"} | to_fingerprint(each, spec)
        assert from_fingerprint(said, spec) == each
        assert without_footprint(said) == {"torch": "1"}


def sizes(**changes: Any) -> MemorySizes:
    """Weights 5 GiB; 7 GiB per picture, 1 + 0.5 with full gradient checkpointing."""
    fields: dict[str, Any] = {
        "weights_bytes": 5 * GIB,
        "trained_bytes": GIB,
        "kept_bytes": {OFF: 7 * GIB, SELECTIVE: 5 * GIB, FULL: GIB},
        "unit_bytes": {OFF: 0, SELECTIVE: GIB // 2, FULL: GIB // 2},
        "preparing_bytes": 2 * GIB,
        "sample_sets": 1,
    }
    return MemorySizes(**(fields | changes))


def device(gib: float, others_gib: float = 0.0) -> MemoryBudget:
    """One with so much room for tensors."""
    return MemoryBudget(total_bytes=int((gib * GIB + CONTEXT_BYTES) / 0.95) + 2, others_bytes=int(others_gib * GIB))


@pytest.mark.parametrize(
    ("gib", "expected"),
    [(34, plan(OFF, 4)), (33, plan(SELECTIVE, 4)), (27, plan(FULL, 4)), (11.9, plan(FULL, 2)), (7.5, plan(FULL, 1))],
)
def test_the_largest_that_fits_is_chosen(gib: float, expected: MemoryPlan) -> None:
    spec = spec_with(train_batch_size=4)
    assert fitted(spec, sizes(), device(gib), plan(OFF, 4)) == expected
    assert fitted(spec, sizes(), device(gib), plan(FULL, 4)).recompute is FULL  # never larger than before


def test_an_unbounded_device_takes_everything() -> None:
    assert fitted(spec_with(), sizes(), None, plan(OFF)) == plan(OFF)
    assert budget_of(torch.device("cpu")) is None


def test_job_too_large_for_gpu_memory_is_refused_with_figures_and_no_strike() -> None:
    with pytest.raises(WorkloadFailed) as caught:
        fitted(spec_with(train_batch_size=4), sizes(), device(7.4), plan(OFF, 4))
    assert caught.value.reason is Reason.NODE_TOO_SMALL
    for figure in ("7.5 GiB at the least", "5.0 GiB of weights", "1.5 GiB of activations", "room for 7.4 GiB"):
        assert figure in caught.value.message
    assert RETRY[Reason.NODE_TOO_SMALL]
    assert BAN[Reason.NODE_TOO_SMALL]
    assert not STRIKE[Reason.NODE_TOO_SMALL]


def test_the_caching_phase_has_to_fit_as_well() -> None:
    with pytest.raises(WorkloadFailed):
        fitted(spec_with(), sizes(preparing_bytes=9 * GIB), device(13.5), plan(OFF))


def test_pictures_at_the_end_are_not_tried_where_they_do_not_fit_and_refuse_nothing() -> None:
    drawing = sizes(decoding_bytes=9 * GIB)
    assert fitted(spec_with(), drawing, device(13.5), plan(OFF)) == plan(OFF)
    assert why_not_drawn(drawing, device(15)) is None
    assert why_not_drawn(drawing, None) is None
    assert "15.0 GiB" in str(why_not_drawn(drawing, device(14.9)))


def test_memory_that_others_hold_is_the_machines_fault_and_does_not_change_the_layout() -> None:
    spec = spec_with(train_batch_size=4)
    assert fitted(spec, sizes(), device(60, others_gib=25), plan(OFF, 4)) == plan(OFF, 4)
    with pytest.raises(WorkloadFailed) as caught:
        fitted(spec, sizes(), device(60, others_gib=27), plan(OFF, 4))
    assert caught.value.reason is Reason.NODE_VRAM
    assert "27.0 GiB" in caught.value.message


def test_class_pictures_double_activation_memory() -> None:
    assert sizes(sample_sets=2).activation_bytes(plan(FULL, 1)) == 2 * 1.5 * GIB
    assert sizes(sample_sets=2).activation_bytes(plan(OFF, 4)) == 8 * 7 * GIB
