"""Near pairs are all found, each once, whatever the hashes have in common; what goes is what goes when pictures are
asked one after the other. The references compare all with all."""

import tempfile
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from giornata.pretrain.data.near_duplicates import ROW, WORKING_BYTES, Partitions, masks, near_duplicates, near_pairs

ALL_BITS = 2**64 - 1
Picture = tuple[int, int, int]
"""key, pixels, hash; its number is its place."""


def partitioned(pictures: list[Picture], folder: str | Path, rows_at_once: int = 10**6) -> Partitions:
    rows = [(key.to_bytes(32, "big"), number, pixels, each) for number, (key, pixels, each) in enumerate(pictures)]
    partitions = Partitions(Path(folder), len(rows), rows_at_once * WORKING_BYTES)
    for row in np.array(rows, ROW).reshape(-1, 1):
        partitions.add(row, row["hash"])
    return partitions


def found(hashes: list[int], distance: int, *, crowd: int = 1000, rows_at_once: int = 10**6) -> list[tuple[int, ...]]:
    with tempfile.TemporaryDirectory() as folder:
        rows = partitioned([(1, 1, each) for each in hashes], folder, rows_at_once)
        one, other = near_pairs(rows, distance, crowd=crowd)
    pairs = zip(one["number"].tolist(), other["number"].tolist(), strict=True)
    return sorted((min(pair), max(pair)) for pair in pairs)


def by_definition(hashes: list[int], distance: int) -> list[tuple[int, ...]]:
    numbered = enumerate(hashes)
    return [(one, two) for (one, a), (two, b) in combinations(numbered, 2) if (a ^ b).bit_count() <= distance]


# Hashes that have most of their bits in common, and these anywhere
FEW_BITS = st.lists(st.integers(0, 63), min_size=1, max_size=12, unique=True)


@st.composite
def crowds(draw: st.DrawFn) -> list[int]:
    bits, base = draw(FEW_BITS), draw(st.integers(0, ALL_BITS))
    flips = st.sets(st.sampled_from(bits)).map(lambda chosen: base ^ sum(1 << bit for bit in chosen))
    return draw(st.lists(flips, min_size=1, max_size=40, unique=True))


@settings(max_examples=40)
@given(crowds(), st.integers(1, 5), st.integers(1, 10), st.sampled_from([5, 20, 1000]))
@example(list(range(32)), 5, 1, 3)
@example([0, 1, 3, 7, 15, 31, 63, 127, ALL_BITS], 3, 1, 1)
def test_all_near_pairs_are_found_once(hashes: list[int], distance: int, crowd: int, rows_at_once: int) -> None:
    assert found(hashes, distance, crowd=crowd, rows_at_once=rows_at_once) == by_definition(hashes, distance)


@pytest.mark.parametrize("rows_at_once", [200, 10**6])
def test_what_many_share_is_divided_again(rows_at_once: int) -> None:
    # 40 bits are the same for all of them
    hashes = [(each * 0x9E3779B97F4A7C15 & ALL_BITS) >> 40 | 0xABCDEF << 40 for each in range(1500)]
    hashes = [*sorted(set(hashes)), hashes[7] ^ 0b101]
    pairs = found(hashes, 3, crowd=20, rows_at_once=rows_at_once)
    assert pairs == by_definition(hashes, 3)
    assert pairs


@given(st.sets(st.integers(0, 63)), st.integers(1, 6), st.sampled_from([10**3, 10**9]))
def test_hashes_that_are_near_agree_in_one_choice(varying: set[int], distance: int, rows: int) -> None:
    bits = sum(1 << bit for bit in varying)
    chosen = masks(bits, distance, rows=rows)
    assert bool(chosen) == (len(varying) > distance)
    assert all(mask and not mask & ~bits for mask in chosen)
    for differ in combinations(sorted(varying)[: distance + 4], distance if chosen else 0):
        assert not chosen or any(all(not mask >> bit & 1 for bit in differ) for mask in chosen)


@pytest.mark.parametrize(("rows", "choices"), [(1000, 4), (10**7, 10), (10**11, 20)])
def test_the_more_rows_the_more_bits_must_agree(rows: int, choices: int) -> None:
    chosen = masks(ALL_BITS, 3, rows=rows)
    assert len(chosen) == choices
    assert rows / 2 ** min(mask.bit_count() for mask in chosen) < 64


def decided(pictures: list[Picture], distance: int, rows_at_once: int) -> dict[int, int]:
    """Number of what goes to that of what it is like."""
    with tempfile.TemporaryDirectory() as folder:
        goes, kept = near_duplicates(partitioned(pictures, folder, rows_at_once), distance)
    assert len(set(goes.tolist())) == len(goes)
    return dict(zip(goes.tolist(), kept.tolist(), strict=True))


def one_by_one(pictures: list[Picture], distance: int) -> dict[int, int]:
    """Asked in order; whoever is near one that stays goes, and is like the first of these."""
    kept, goes = list[int](), dict[int, int]()
    for number in sorted(range(len(pictures)), key=lambda each: (-pictures[each][1], pictures[each][0])):
        near = [each for each in kept if (pictures[number][2] ^ pictures[each][2]).bit_count() <= distance]
        if near:
            goes[number] = near[0]
        else:
            kept.append(number)
    return goes


@st.composite
def galleries(draw: st.DrawFn) -> list[Picture]:
    """With copies, chains and hubs: hashes of a few bits that lie together."""
    keys = draw(st.lists(st.integers(1, 200), min_size=1, max_size=30, unique=True))
    hashes = st.integers(0, 127) | st.integers(0, 2**64 - 1)
    return [(key, draw(st.integers(1, 4)), draw(hashes)) for key in keys]


@settings(max_examples=40)
@given(galleries(), st.integers(0, 4), st.sampled_from([2, 12, 1000]))
def test_what_goes_is_what_goes_one_by_one(pictures: list[Picture], distance: int, rows_at_once: int) -> None:
    assert decided(pictures, distance, rows_at_once) == one_by_one(pictures, distance)


@pytest.mark.parametrize("rows_at_once", [7, 1000])
def test_a_chain_through_all_partitions(rows_at_once: int) -> None:
    chain = [(place + 1, 1, (1 << place) - 1) for place in range(30)]  # each one bit from the next
    for distance in (1, 2):
        goes = decided(chain, distance, rows_at_once)
        assert goes == one_by_one(chain, distance)
        assert sorted({*range(30)} - set(goes)) == list(range(0, 30, distance + 1))


def test_copies_go_where_their_first_goes() -> None:
    pictures = [(1, 1, 0b11), (2, 1, 0b11), (3, 9, 0b10), (4, 1, 0b1 << 50)]
    assert decided(pictures, 1, 2) == {0: 2, 1: 2}
    assert decided(pictures, 0, 2) == {1: 0}


def rows_of(numbers: range) -> np.ndarray:
    rows = np.zeros(len(numbers), ROW)
    rows["number"] = numbers
    rows["hash"] = np.array(numbers) // 3
    return rows


@pytest.mark.parametrize("at_once", [1, 7, 100, 1000])
def test_rows_of_a_value_are_together_and_nothing_is_lost(tmp_path: Path, at_once: int) -> None:
    partitions = Partitions(tmp_path, 300, at_once * WORKING_BYTES)
    for first in range(0, 300, 50):
        rows = rows_of(range(first, first + 50))
        partitions.add(rows, rows["hash"])
    for _ in range(2):
        found = [set(part["hash"].tolist()) for part in partitions]
        assert sorted(np.concatenate(list(partitions))["number"]) == list(range(300))
        assert sum(map(len, found)) == 100
    assert partitions.rows == 300
    assert any(tmp_path.iterdir()) == (at_once < 300)
    if at_once < 300:
        assert max(len(part) for part in partitions) <= 4 * max(at_once, 6)
    partitions.drop()
    assert list(partitions) == []
