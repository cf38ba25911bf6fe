"""The order of samples is a function of seed, role and counter, over samples sorted by content."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from giornata.diffusion.draws.sample_order import Sample, SampleOrder, by_content

seeds = st.integers(0, 2**63 - 1)


def sample(sha256: str, *, caption: str = "a", name: str = "x.png") -> Sample:
    return Sample(role="instance", sha256=sha256, caption=caption, name=name, path=Path(name))


@given(st.permutations(range(8)), st.permutations(range(8)))
def test_neither_arrival_nor_names_decide(arrival: list[int], names: list[int]) -> None:
    """D70 of the ancestor: downloads landed in any order, and the script listed files by name."""
    contents = [f"{number:064x}" for number in range(8)]
    first = by_content(sample(content, name=f"{number}.png") for number, content in enumerate(contents))
    second = by_content(sample(contents[at], name=f"{names[at]}.png") for at in arrival)
    assert [one.sha256 for one in first] == [one.sha256 for one in second]


def test_equal_pictures_are_told_apart_by_their_captions() -> None:
    one, other = sample("0" * 64, caption="a", name="2.png"), sample("0" * 64, caption="b", name="1.png")
    assert by_content([one, other]) == by_content([other, one]) == (one, other)


@settings(max_examples=60, deadline=None)
@given(seed=seeds, count=st.integers(1, 40), epoch=st.integers(0, 1000))
def test_an_epoch_holds_every_sample_once(seed: int, count: int, epoch: int) -> None:
    order = SampleOrder(seed=seed, role="instance", count=count)
    assert sorted(order.sample_at(epoch * count + place) for place in range(count)) == list(range(count))
    assert order.epoch_and_place(epoch * count) == (epoch, 0)


@settings(max_examples=60, deadline=None)
@given(
    seed=seeds,
    count=st.integers(1, 12),
    batch=st.integers(1, 5),
    micros=st.integers(1, 4),
    steps=st.integers(1, 12),
    resumed_at=st.integers(0, 11),
)
def test_resuming_anywhere_is_arithmetic(
    seed: int, count: int, batch: int, micros: int, steps: int, resumed_at: int
) -> None:
    """What a fresh Order says from any step on is what the uninterrupted sequence had there."""
    whole = [SampleOrder(seed=seed, role="class", count=count).sample_at(n) for n in range(steps * micros * batch)]
    resumed = SampleOrder(seed=seed, role="class", count=count)
    seen = [
        index
        for step in range(resumed_at, steps)
        for micro in range(micros)
        for index in resumed.batch_at(step * micros + micro, batch)
    ]
    assert seen == whole[resumed_at * micros * batch :]


def test_epochs_roles_and_seeds_have_orders_of_their_own() -> None:
    def epoch(seed: int, role: str, number: int) -> tuple[int, ...]:
        order = SampleOrder(seed=seed, role=role, count=20)  # type: ignore[arg-type]
        return tuple(order.sample_at(number * 20 + place) for place in range(20))

    orders = {epoch(1, "instance", 0), epoch(1, "instance", 1), epoch(1, "class", 0), epoch(2, "instance", 0)}
    assert len(orders) == 4


def test_an_order_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        SampleOrder(seed=1, role="instance", count=0)
