"""The Ray that is begun for one command: its memory."""

import pytest
from ray._private.ray_constants import DEFAULT_OBJECT_STORE_MEMORY_PROPORTION
from ray._private.utils import resolve_object_store_memory

from giornata.pretrain.ray_train.cluster import LEAST_OBJECT_STORE_BYTES, object_store_bytes

GIB = 2**30


@pytest.mark.parametrize("available_gib", [1, 4, 6])
def test_a_small_machine_gets_the_least(available_gib: int) -> None:
    assert object_store_bytes(available_gib * GIB) == LEAST_OBJECT_STORE_BYTES == 2 * GIB


@pytest.mark.parametrize("available_gib", [64, 2048])
def test_a_large_machine_gets_what_ray_takes_by_default(available_gib: int) -> None:
    """A share of the memory, as far as /dev/shm has room."""
    found = object_store_bytes(available_gib * GIB)
    assert found == max(2 * GIB, resolve_object_store_memory(available_gib * GIB))
    assert 2 * GIB <= found <= available_gib * GIB * DEFAULT_OBJECT_STORE_MEMORY_PROPORTION
