"""Of pictures that look alike the hashes are near; which are found is in test_decision.py."""

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from giornata.pretrain.data.examination import hash_of


def photo(seed: int) -> Image.Image:
    """Smooth, with much going on at low frequencies, as photographs have it."""
    rough = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(rough).resize((240, 160), Image.Resampling.BICUBIC)


def apart(left: int, right: int) -> int:
    return (left ^ right).bit_count()


@pytest.mark.parametrize("seed", range(5))
def test_copies_are_near_and_other_pictures_are_far(seed: int) -> None:
    own = hash_of(photo(seed))
    smaller = photo(seed).resize((90, 60), Image.Resampling.LANCZOS)
    brighter = ImageEnhance.Brightness(photo(seed)).enhance(1.1)
    assert apart(own, hash_of(smaller)) <= 4
    assert apart(own, hash_of(brighter)) <= 8
    assert apart(own, hash_of(photo(seed + 100))) >= 16
