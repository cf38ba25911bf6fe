"""Pictures that look alike, against comparing every pair."""

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from giornata.pretrain.perceptual import BITS, alike, hash_of, near_duplicates


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


def hashes_with_neighbours(count: int, seed: int) -> np.ndarray:
    """Random ones, and copies of some with up to eight bits changed."""
    draw = np.random.default_rng(seed)
    values = [int(each) for each in draw.integers(0, 2**64, count, dtype=np.uint64)]
    for place in range(0, count, 3):
        flipped = values[place]
        for bit in draw.choice(BITS, draw.integers(0, 9), replace=False):
            flipped ^= 1 << int(bit)
        values[-1 - place] = flipped
    return np.array(values, np.uint64)


@pytest.mark.parametrize("distance", [0, 1, 3, 6])
def test_bands_find_exactly_the_pairs_that_are_near(distance: int) -> None:
    hashes = hashes_with_neighbours(150, seed=distance)
    every = {
        (left, right)
        for left in range(len(hashes))
        for right in range(left + 1, len(hashes))
        if apart(int(hashes[left]), int(hashes[right])) <= distance
    }
    found = list(alike(hashes, distance))
    assert len(found) == len(set(found))
    assert set(found) == every
    assert every


def test_what_goes_is_like_something_that_stays_and_what_stays_is_not() -> None:
    hashes = hashes_with_neighbours(200, seed=9)
    order = np.random.default_rng(1).permutation(200)
    out = near_duplicates(hashes, order, 5)
    kept = set(range(200)) - set(out)
    assert out
    assert all(
        original in kept and apart(int(hashes[place]), int(hashes[original])) <= 5 for place, original in out.items()
    )
    assert not [pair for pair in alike(hashes, 5) if set(pair) <= kept]


def test_a_chain_is_not_one_picture() -> None:
    chain = np.array([0b0, 0b11, 0b1111], np.uint64)  # neighbours are 2 apart, the ends 4
    assert near_duplicates(chain, np.array([0, 1, 2]), 2) == {1: 0}
    assert near_duplicates(chain, np.array([1, 0, 2]), 2) == {0: 1, 2: 1}
