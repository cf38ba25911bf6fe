"""Published step times: found by the device's name, and scaled within a range that never turns round."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from giornata.domain.jobs.estimates import PUBLISHED_PACES, published_pace


@pytest.mark.parametrize(
    ("device", "gpu"),
    [
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 3090 Ti", "RTX 3090 Ti"),
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("nvidia l40s", "L40S"),
    ],
)
def test_a_device_is_known_by_the_name_that_its_driver_gives(device: str, gpu: str) -> None:
    pace = published_pace(device)
    assert pace is not None
    assert pace.gpu == gpu


@pytest.mark.parametrize("device", ["", "cpu", "NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 4090 Laptop GPU", "L40"])
def test_a_device_of_which_nobody_published_anything_is_unknown(device: str) -> None:
    assert published_pace(device) is None


@given(
    pace=st.sampled_from(PUBLISHED_PACES),
    side_px=st.sampled_from([64, 512, 768, 1024, 1536]),
    pictures=st.integers(1, 64),
)
def test_more_pictures_and_larger_ones_never_take_less(pace, side_px: int, pictures: int) -> None:
    least, greatest = pace.step_s(side_px=side_px, pictures=pictures)
    assert 0 < least <= greatest
    more = pace.step_s(side_px=side_px, pictures=pictures + 1)
    larger = pace.step_s(side_px=side_px + 64, pictures=pictures)
    assert least < more[0] and greatest < more[1]
    assert least < larger[0] and greatest <= larger[1]
