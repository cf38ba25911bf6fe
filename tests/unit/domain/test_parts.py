"""How files are cut."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from giornata.domain.errors import TooLarge
from giornata.domain.files.transfers import LARGEST_OBJECT_BYTES, MIB, MOST_PARTS, plan_parts

SIZES = st.integers(0, LARGEST_OBJECT_BYTES) | st.integers(0, 64 * MIB)


@given(SIZES)
@example(16 * MIB - 1)
@example(16 * MIB)
@example(MOST_PARTS * 8 * MIB)
@example(MOST_PARTS * 8 * MIB + 1)
@example(LARGEST_OBJECT_BYTES)
def test_parts_add_up_and_s3_takes_them(size_bytes: int) -> None:
    parts = plan_parts(size_bytes)
    if size_bytes < 16 * MIB:
        assert parts is None
        return
    assert parts is not None
    assert sum(parts) == size_bytes
    assert 2 <= len(parts) <= MOST_PARTS <= 10_000
    assert min(parts) >= 1
    assert len(set(parts[:-1])) == 1
    assert parts[0] >= 8 * MIB
    assert parts[0] % MIB == 0
    assert parts[-1] <= parts[0] <= 5 * 2**30


def test_a_size_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="negative"):
        plan_parts(-1)
    with pytest.raises(TooLarge):
        plan_parts(LARGEST_OBJECT_BYTES + 1)
