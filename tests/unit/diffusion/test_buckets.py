"""Buckets are kohya's sizes; every picture lies in the one that fits it best; batches are of one bucket."""

import math
from collections import Counter

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from giornata.diffusion.draws.sample_order import BucketOrder, by_bucket
from giornata.domain.files.buckets import bucket_sizes, nearest, shrunk

SDXL = bucket_sizes(resolution=1024, steps=64, least=256, most=2048)
seeds = st.integers(0, 2**63 - 1)


def kohyas(resolution: int, steps: int, least: int, most: int) -> set[tuple[int, int]]:
    """The published formula, written out with its own loop and names."""
    max_area = resolution * resolution
    width = int(math.sqrt(max_area) // steps) * steps
    resos = {(width, width)}
    width = least
    while width <= most:
        height = min(most, int((max_area // width) // steps) * steps)
        if height >= least:
            resos |= {(width, height), (height, width)}
        width += steps
    return resos


@settings(max_examples=80, deadline=None)
@given(st.sampled_from([8, 16, 32, 64]), st.integers(1, 8), st.integers(8, 16), st.integers(16, 40))
def test_the_sizes_are_kohyas(steps: int, least: int, resolution: int, most: int) -> None:
    sides = {"resolution": resolution * steps, "steps": steps, "least": least * steps, "most": most * steps}
    sizes = bucket_sizes(**sides)
    assert set(sizes) == kohyas(**sides)
    assert sizes == tuple(sorted(sizes))
    for height, width in sizes:
        assert height * width <= sides["resolution"] ** 2
        assert height % steps == width % steps == 0
        assert sides["least"] <= min(height, width) <= max(height, width) <= sides["most"]


@pytest.mark.parametrize(
    ("original", "bucket"),
    [
        ((1000, 1000), (1024, 1024)),
        ((3000, 4000), (896, 1152)),
        ((4000, 3000), (1152, 896)),
        ((500, 4000), (256, 2048)),
    ],
)
def test_a_picture_goes_where_it_fits(original: tuple[int, int], bucket: tuple[int, int]) -> None:
    assert nearest(original, SDXL) == bucket


@settings(max_examples=200, deadline=None)
@given(st.integers(64, 5000), st.integers(64, 5000))
def test_no_other_bucket_has_a_ratio_that_is_nearer(height: int, width: int) -> None:
    def misfit(size: tuple[int, int]) -> float:
        return abs(math.log(height / width) - math.log(size[0] / size[1]))

    chosen = nearest((height, width), SDXL)
    assert misfit(chosen) == pytest.approx(min(map(misfit, SDXL)), abs=1e-9)
    assert nearest((width, height), SDXL) == chosen[::-1]


def kohyas_without_upscaling(width: int, height: int, resolution: int, steps: int) -> tuple[int, int]:
    """(height, width) as `BucketManager.select_bucket` of sd-scripts computes it with bucket_no_upscale."""

    def round_to_steps(side: float) -> int:
        whole = int(side + 0.5)
        return whole - whole % steps

    max_area, aspect_ratio = resolution * resolution, width / height
    if width * height > max_area:
        resized_width = math.sqrt(max_area * aspect_ratio)
        resized_height = max_area / resized_width
        b_width_rounded = round_to_steps(resized_width)
        b_height_in_wr = round_to_steps(b_width_rounded / aspect_ratio)
        ar_width_rounded = b_width_rounded / b_height_in_wr
        b_height_rounded = round_to_steps(resized_height)
        b_width_in_hr = round_to_steps(b_height_rounded * aspect_ratio)
        ar_height_rounded = b_width_in_hr / b_height_rounded
        if abs(ar_width_rounded - aspect_ratio) < abs(ar_height_rounded - aspect_ratio):
            resized_size = (b_width_rounded, int(b_width_rounded / aspect_ratio + 0.5))
        else:
            resized_size = (int(b_height_rounded * aspect_ratio + 0.5), b_height_rounded)
    else:
        resized_size = (width, height)
    return resized_size[1] - resized_size[1] % steps, resized_size[0] - resized_size[0] % steps


@settings(max_examples=300, deadline=None)
@given(st.integers(64, 5000), st.integers(64, 5000), st.sampled_from([512, 1024]), st.sampled_from([8, 32, 64]))
def test_buckets_without_upscaling_equal_kohyas_and_fit_inside_picture(
    height: int, width: int, resolution: int, steps: int
) -> None:
    assume(max(height, width) <= 8 * min(height, width))  # as the inspection allows
    bucket = shrunk((height, width), resolution=resolution, steps=steps)
    assert bucket == kohyas_without_upscaling(width, height, resolution, steps)
    assert bucket[0] <= height and bucket[1] <= width
    assert bucket[0] % steps == bucket[1] % steps == 0


@pytest.mark.parametrize(
    ("original", "bucket"),
    [((300, 500), (256, 448)), ((1024, 1024), (1024, 1024)), ((4000, 3000), (1088, 832)), ((64, 70), (64, 64))],
)
def test_a_small_picture_has_a_bucket_of_its_own_size(original: tuple[int, int], bucket: tuple[int, int]) -> None:
    assert shrunk(original, resolution=1024, steps=64) == bucket


def test_a_side_has_at_least_one_step() -> None:
    assert shrunk((70, 200), resolution=1024, steps=128) == (128, 128)


def order(seed: int, counts: list[int], batch: int, repeats: list[int] | None = None) -> BucketOrder:
    """One bucket for each count of pictures."""
    buckets = [(64, 64 + 8 * number) for number, count in enumerate(counts) for _ in range(count)]
    members = by_bucket(repeats or [1] * len(buckets), buckets)
    return BucketOrder(seed=seed, role="instance", batch=batch, members=members)


def epoch_starts(counts: list[int], batch: int, epochs: int) -> list[int]:
    return [sum(math.ceil(epoch * count / batch) for count in counts) for epoch in range(epochs + 1)]


some_buckets = st.lists(st.integers(1, 7), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(seeds, some_buckets, st.integers(1, 5))
def test_a_batch_is_full_and_of_one_bucket(seed: int, counts: list[int], batch: int) -> None:
    made = order(seed, counts, batch)
    bucket_of = {index: size for size, indices in made.members for index in indices}
    for number in range(30):
        drawn = made.batch_at(number)
        assert len(drawn) == batch
        assert len({bucket_of[index] for index in drawn}) == 1


@settings(max_examples=60, deadline=None)
@given(seeds, some_buckets, st.integers(1, 5), st.integers(1, 6))
def test_after_each_epoch_all_pictures_were_seen_about_equally_often(
    seed: int, counts: list[int], batch: int, epochs: int
) -> None:
    """At least once per epoch, and nothing of a bucket more often than its last batch had to be filled."""
    made, end = order(seed, counts, batch), epoch_starts(counts, batch, epochs)[-1]
    seen = Counter(index for number in range(end) for index in made.batch_at(number))
    for _, indices in made.members:
        surplus = sum(seen[index] for index in indices) - epochs * len(indices)
        assert 0 <= surplus < batch
        assert all(epochs <= seen[index] <= epochs + math.ceil(surplus / len(indices)) for index in indices)


def test_repeats_are_seen_as_often_as_they_say() -> None:
    made = order(1, [2, 3], 2, repeats=[1, 3, 2, 2, 2])
    seen = Counter(index for number in range(2 + 3) for index in made.batch_at(number))
    assert seen == {0: 1, 1: 3, 2: 2, 3: 2, 4: 2}


@settings(max_examples=30, deadline=None)
@given(seeds, some_buckets, st.integers(1, 5), st.integers(0, 40))
def test_batch_at_number_is_same_wherever_iteration_begins(
    seed: int, counts: list[int], batch: int, number: int
) -> None:
    whole = order(seed, counts, batch)
    before = [whole.batch_at(earlier) for earlier in range(number + 1)]
    assert order(seed, counts, batch).batch_at(number) == before[-1]


def test_epochs_roles_and_seeds_have_orders_of_their_own() -> None:
    def batches(seed: int, first: int, role: str = "instance") -> tuple[tuple[int, ...], ...]:
        made = BucketOrder(seed=seed, role=role, batch=2, members=order(seed, [6, 6], 2).members)
        return tuple(tuple(made.batch_at(number)) for number in range(first, first + 6))

    assert len({batches(1, 0), batches(1, 6), batches(2, 0), batches(1, 0, "class")}) == 4
    assert len({tuple(number // 6 for number, *_ in batches(1, first)) for first in range(0, 60, 6)}) > 3


def test_an_order_of_nothing_is_refused() -> None:
    for members in ((), (((64, 64), ()),)):
        with pytest.raises(ValueError, match="at least one"):
            BucketOrder(seed=1, role="instance", batch=1, members=members)
