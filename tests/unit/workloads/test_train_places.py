"""How many jobs share a device, by arithmetic and against what the slots really hold."""

from pathlib import Path

import pytest
import torch
from tests.fixtures.train_rig import spec_for

from giornata.diffusion.adapter.slots import AdapterSlots
from giornata.diffusion.base.memory import GIB
from giornata.diffusion.base.models import load_base
from giornata.diffusion.base.recompute import Recompute
from giornata.protocol.specs import TrainSpec
from giornata.workloads.train.device.layout import needed_bytes, places_within, sizes_in_a_place
from giornata.workloads.train.device.memory_budget import CONTEXT_BYTES, FRAGMENTED, MemoryBudget, MemorySizes

FP32_BYTES = 4
COPIES = 5  # weights, gradients, two of the optimizer, an average


def spec(**changes: object) -> TrainSpec:
    return TrainSpec.model_validate(spec_for(Path("tiny"), **{"gradient_checkpointing": True, **changes}))


def sizes(*, sample_sets: int = 1, preparing_bytes: int = 0) -> MemorySizes:
    """2 GiB of weights; for each job 1 GiB of its own, and 3 GiB for each picture with gradient checkpointing."""
    return MemorySizes(
        weights_bytes=2 * GIB,
        trained_bytes=GIB,
        kept_bytes={Recompute.OFF: 8 * GIB, Recompute.SELECTIVE: 4 * GIB, Recompute.FULL: 2 * GIB},
        unit_bytes={Recompute.OFF: 0, Recompute.SELECTIVE: GIB, Recompute.FULL: GIB},
        preparing_bytes=preparing_bytes,
        sample_sets=sample_sets,
    )


def budget(usable_bytes: int, *, others_bytes: int = 0) -> MemoryBudget:
    """A device on which tensors may take so much."""
    found = MemoryBudget(
        total_bytes=int((usable_bytes + CONTEXT_BYTES) / (1 - FRAGMENTED)) + 2, others_bytes=others_bytes
    )
    assert 0 <= found.usable_bytes - usable_bytes <= 2
    return found


@pytest.mark.parametrize(
    ("usable_gib", "places"), [(1, 1), (5, 1), (6, 1), (10, 2), (13, 2), (14, 3), (18, 4), (99, 4)]
)
def test_the_base_counts_once_and_each_job_once(usable_gib: int, places: int) -> None:
    assert places_within(sizes(), spec(), budget(usable_gib * GIB), most=4) == places


def test_a_jobs_rows_are_those_of_its_batch_and_its_class_pictures() -> None:
    two_rows = 2 * GIB + 1 * (GIB + 2 * 3 * GIB)
    assert needed_bytes(sizes(), spec(train_batch_size=2), 1) == two_rows
    assert needed_bytes(sizes(sample_sets=2), spec(), 1) == two_rows
    assert needed_bytes(sizes(), spec(gradient_checkpointing=False), 3) == 2 * GIB + 3 * 9 * GIB
    # Accumulation is by micro-batches here: the ones before are gone.
    assert needed_bytes(sizes(), spec(gradient_accumulation_steps=8), 1) == needed_bytes(sizes(), spec(), 1)


def test_a_newcomers_pictures_are_encoded_beside_what_the_others_keep() -> None:
    large = sizes(preparing_bytes=10 * GIB)
    assert needed_bytes(large, spec(), 2) == 2 * GIB + 2 * GIB + 10 * GIB
    assert places_within(large, spec(), budget(13 * GIB), most=8) == 1


def test_memory_held_by_other_processes_reduces_places() -> None:
    assert places_within(sizes(), spec(), budget(18 * GIB, others_bytes=4 * GIB), most=4) == 3
    assert places_within(sizes(), spec(), budget(18 * GIB, others_bytes=GIB // 2), most=4) == 4


def test_unbounded_memory_gives_as_many_places_as_wanted() -> None:
    assert places_within(sizes(), spec(), None, most=7) == 7


@pytest.mark.parametrize("changes", [{}, {"train_text_encoder": True}])
def test_a_place_is_as_large_as_a_row_of_the_slots(tiny_folder: Path, changes: dict[str, object]) -> None:
    """Padded to the ceiling of the rank, whichever rank the first job has."""
    given = spec(**{"pretrained_model_name_or_path": str(tiny_folder), "rank": 3, **changes})
    base = load_base(given, device="cpu", dtype=torch.float32)
    found = sizes_in_a_place(base, given)
    with AdapterSlots(base, given, count=2, rank=16) as slots:
        row_bytes = slots.layout.width * FP32_BYTES
    assert found.trained_bytes == COPIES * row_bytes
