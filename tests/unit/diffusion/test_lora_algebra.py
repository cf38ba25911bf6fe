"""Resized and merged updates, held to dense matrices."""

import pytest
import torch

from giornata.diffusion.files.lora_algebra import Cut, LokrFactors, LoraFactors, Method, add, merge, resize

EXACT = 1e-12


def linear(seed, *, outputs=24, inputs=40, rank=8, scale=0.5, dtype=torch.float32):
    draw = torch.Generator().manual_seed(seed)
    down = torch.randn(rank, inputs, generator=draw).to(dtype)
    return LoraFactors(down=down, up=torch.randn(outputs, rank, generator=draw).to(dtype), scale=scale)


def convolution(seed, *, rank=6, scale=2.0):
    draw = torch.Generator().manual_seed(seed)
    down = torch.randn(rank, 5, 3, 3, generator=draw)
    return LoraFactors(down=down, up=torch.randn(16, rank, 1, 1, generator=draw), scale=scale)


def near(first, second):
    return float((first - second).norm()) <= EXACT * max(1.0, float(second.norm()))


@pytest.mark.parametrize(
    "layer", [linear(1), convolution(2), linear(3, rank=64), linear(4, outputs=3), linear(5, scale=-0.3)]
)
def test_the_factors_singular_values_are_those_of_the_dense_update(layer):
    outputs_OR, values_R, inputs_RI = layer.factorized()
    dense = torch.linalg.svdvals(layer.delta())
    assert torch.allclose(values_R, dense[: len(values_R)], atol=1e-10)
    assert near(outputs_OR * values_R @ inputs_RI, layer.delta())


@pytest.mark.parametrize("layer", [linear(1), convolution(2), linear(3, rank=64), linear(5, scale=-0.3)])
@pytest.mark.parametrize("rank", [1, 3, 5])
def test_a_resized_update_is_the_best_of_its_rank(layer, rank):
    """Eckart and Young: what is lost are the singular values that are cut off, and no more."""
    made = resize(layer, Cut(rank=rank))
    dense = torch.linalg.svdvals(layer.delta())
    lost = float((layer.delta() - made.layer.delta()).norm())
    assert lost == pytest.approx(float(dense[rank:].norm()), abs=1e-9)
    assert made.kept_norm == pytest.approx(float(dense[:rank].norm() / dense.norm()))
    assert (made.layer.rank, made.layer.scale) == (rank, layer.scale)
    assert made.layer.down.shape[1:] == layer.down.shape[1:]
    assert made.layer.up.shape[2:] == layer.up.shape[2:]


def test_at_its_own_rank_or_above_nothing_is_lost():
    for rank in (8, 100):
        made = resize(linear(1), Cut(rank=rank))
        assert near(made.layer.delta(), linear(1).delta()) and made.layer.rank == 8


@pytest.mark.parametrize("layer", [linear(1), linear(5, scale=-0.3), convolution(2)])
def test_lora_with_changed_alpha_has_same_delta(layer):
    made = layer.with_alpha(1.5)
    assert made.scale * made.rank == pytest.approx(1.5)
    assert near(made.delta(), layer.delta())


def test_an_update_of_zeros_stays_one():
    zero = LoraFactors(down=torch.randn(4, 6), up=torch.zeros(5, 4), scale=1.0)
    for cut in (Cut(rank=2), Cut(rank=2, method=Method.SV_FRO, target=0.9)):
        made = resize(zero, cut)
        assert float(made.layer.delta().norm()) == 0.0 and made.kept_norm == 1.0


@pytest.mark.parametrize(
    ("method", "target", "kept"),
    [
        # of 8, 4, 2, 1: sums 8, 12, 14, 15; squares 64, 80, 84, 85
        (Method.FIXED, 0.0, 4),
        (Method.SV_RATIO, 2.0, 1),
        (Method.SV_RATIO, 3.0, 2),
        (Method.SV_RATIO, 100.0, 4),
        (Method.SV_CUMULATIVE, 0.5, 1),
        (Method.SV_CUMULATIVE, 0.8, 2),
        (Method.SV_CUMULATIVE, 0.9, 3),
        (Method.SV_CUMULATIVE, 1.0, 4),
        (Method.SV_FRO, 0.8, 1),
        (Method.SV_FRO, 0.9, 2),
        (Method.SV_FRO, 0.98, 3),
        (Method.SV_FRO, 1.0, 4),
    ],
)
def test_the_methods_count_singular_values_by_their_formulas(method, target, kept):
    values_R = torch.tensor([8.0, 4.0, 2.0, 1.0], dtype=torch.float64)
    assert Cut(rank=4, method=method, target=target).kept(values_R) == kept
    assert Cut(rank=2, method=method, target=target).kept(values_R) == min(kept, 2)


def test_a_sum_is_the_weighted_sum_of_the_dense_updates():
    parts = [(linear(1), 0.7), (linear(2, rank=3, scale=-2.0), 0.4), (linear(3, rank=5), -1.5)]
    made = add(parts)
    assert near(made.delta(), sum(weight * layer.delta() for layer, weight in parts))
    assert (made.rank, made.scale) == (16, 1.0)


def test_convolutions_add_up_too():
    parts = [(convolution(1), 0.5), (convolution(2, rank=2), 2.0)]
    assert near(add(parts).delta(), sum(weight * layer.delta() for layer, weight in parts))


def test_layers_that_only_one_file_has_are_taken_of_that():
    made = merge([({"a": linear(1), "b": linear(2)}, 2.0), ({"b": linear(3)}, 0.5)])
    assert list(made) == ["a", "b"]
    assert near(made["a"].layer.delta(), 2.0 * linear(1).delta())
    assert near(made["b"].layer.delta(), 2.0 * linear(2).delta() + 0.5 * linear(3).delta())


def lokr(seed, *, second=(6, 10), scale=-0.7):
    draw = torch.Generator().manual_seed(seed)
    first, other = (torch.randn(shape, generator=draw, dtype=torch.float64) for shape in ((4, 4), second))
    return LokrFactors(first=first, second=other, scale=scale, numbers=1)


@pytest.mark.parametrize("layer", [lokr(1), lokr(2, second=(3, 7, 3, 3))])
def test_a_lokr_is_cut_down_to_the_best_lora_of_a_rank(layer):
    dense = torch.linalg.svdvals(layer.delta())
    outputs_OR, values_R, inputs_RI = layer.factorized()
    assert torch.allclose(values_R, dense[: len(values_R)], atol=1e-10)
    assert near(outputs_OR * values_R @ inputs_RI, layer.delta())
    made = resize(layer, Cut(rank=5))
    lost = float((layer.delta() - made.layer.delta()).norm())
    assert lost == pytest.approx(float(dense[5:].norm()), abs=1e-9)
    assert made.layer.size == layer.size and made.layer.up.ndim == made.layer.down.ndim


def test_a_lokr_and_a_lora_add_up_to_the_best_lora_of_a_rank():
    whole = 0.5 * lokr(1).delta() + 2.0 * linear(1).delta()
    made = merge([({"a": lokr(1)}, 0.5), ({"a": linear(1)}, 2.0)], Cut(rank=7))["a"]
    dense = torch.linalg.svdvals(whole)
    assert float((whole - made.layer.delta()).norm()) == pytest.approx(float(dense[7:].norm()), abs=1e-9)
    assert made.kept_norm == pytest.approx(float(dense[:7].norm() / dense.norm()))


def test_a_sum_can_be_cut_to_the_best_of_a_rank():
    whole = add([(linear(1), 0.7), (linear(2), 0.4)])
    dense = torch.linalg.svdvals(whole.delta())
    lost = whole.delta() - resize(whole, Cut(rank=6)).layer.delta()
    assert float(lost.norm()) == pytest.approx(float(dense[6:].norm()), abs=1e-9)
