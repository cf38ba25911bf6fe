"""Draws are functions of their names: golden values, ranges, and that no two names share a stream."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from giornata.diffusion.draws import randomness
from giornata.diffusion.draws.randomness import integer, normal, normals, permutation, uniform


def test_the_numbers_are_these_for_ever() -> None:
    """A change of any of these would break the resume of every checkpoint in the world."""
    assert randomness.key_of("normal", 7, "noise", (1, 0, "x")) == 334742585638219303254523860568449355117
    assert normal(7, "noise", 1, 0, "x", shape=(4,)).tolist() == [
        2.0462586879730225,
        0.5925649404525757,
        -1.2807213068008423,
        1.4096025228500366,
    ]
    assert uniform(7, "crop", 1, shape=(2, 2)).tolist() == [
        [0.028587698936462402, 0.3865886330604553],
        [0.7089683413505554, 0.09365266561508179],
    ]
    assert [integer(7, "t", i, low=0, high=1000) for i in range(5)] == [343, 193, 116, 376, 51]
    assert permutation(7, "order", 0, n=8) == [5, 7, 0, 6, 4, 1, 2, 3]


def test_no_draw_touches_or_reads_the_global_generators() -> None:
    torch.manual_seed(0)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = normal(1, "a", shape=(3, 5))
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == numpy_before).all()
    torch.manual_seed(1)
    assert torch.equal(first, normal(1, "a", shape=(3, 5)))


def test_names_that_look_alike_are_kept_apart() -> None:
    names: list[tuple[int, str, tuple[int | str, ...]]] = [
        (1, "a", (1,)),
        (1, "a", ("1",)),
        (1, "a1", ()),
        (1, "a", ("1", "")),
        (11, "a", ()),
        (1, "a", (1, 1)),
        (1, "a", (11,)),
        (1, 'a","b', ()),
        (1, "a", ("b",)),
    ]
    draws = {tuple(normal(seed, purpose, *counters, shape=(2,)).tolist()) for seed, purpose, counters in names}
    assert len(draws) == len(names)


def test_the_kinds_of_draw_do_not_share_a_stream() -> None:
    assert len({randomness.key_of(kind, 1, "a", ()) for kind in ("normal", "uniform", "integer")}) == 3


def test_normal_numbers_are_normal_and_float32() -> None:
    values = normal(3, "noise", shape=(200, 500))
    assert values.dtype is torch.float32
    assert values.device.type == "cpu"
    assert abs(float(values.mean())) < 0.02
    assert abs(float(values.std()) - 1.0) < 0.02


def test_uniform_numbers_are_below_one() -> None:
    values = uniform(3, "u", shape=(100_000,))
    assert values.dtype is torch.float32
    assert float(values.min()) >= 0.0
    assert float(values.max()) < 1.0
    assert abs(float(values.mean()) - 0.5) < 0.01
    assert uniform(3, "u", shape=()).shape == ()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**63 - 1), low=st.integers(-(2**40), 2**40), span=st.integers(1, 2**63))
def test_an_integer_is_within_its_bounds(seed: int, low: int, span: int) -> None:
    assert low <= integer(seed, "i", low=low, high=low + span) < low + span


def test_integers_reach_both_ends_evenly() -> None:
    counts = [0, 0, 0]
    for draw in range(3000):
        counts[integer(5, "even", draw, low=0, high=3)] += 1
    assert min(counts) > 900


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(ValueError, match="no integer"):
        integer(1, "i", low=3, high=3)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**63 - 1), n=st.integers(0, 200), epoch=st.integers(0, 2**31))
def test_a_permutation_holds_every_place_once(seed: int, n: int, epoch: int) -> None:
    assert sorted(permutation(seed, "p", epoch, n=n)) == list(range(n))


def test_many_draws_are_each_as_it_is_alone() -> None:
    counters_N: list[tuple[int | str, ...]] = [(1, "a"), (1, "b"), (2,), ()]
    for shape in ((), (3,), (4, 5)):
        drawn = normals(7, "noise", counters_N, shape=shape)
        assert drawn.shape == (4, *shape)
        for each, counters in zip(drawn, counters_N, strict=True):
            assert torch.equal(each, normal(7, "noise", *counters, shape=shape))
    assert normals(7, "noise", [], shape=(3,)).shape == (0, 3)


@given(st.integers(0, 2**128 - 1))
def test_a_key_is_philoxs_own(key: int) -> None:
    ours, numpys = np.random.Philox(randomness._Key(key)), np.random.Philox(key=key)
    assert (ours.state["state"]["key"] == numpys.state["state"]["key"]).all()
    assert (ours.random_raw(6) == numpys.random_raw(6)).all()
