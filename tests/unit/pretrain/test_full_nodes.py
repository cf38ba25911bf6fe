"""How many trainers share a node, from what each says of its own."""

import pytest

from giornata.pretrain.training.parallel import full_nodes


@pytest.mark.parametrize("sizes", [[2, 2, 2, 2], [2, 2]])
def test_equal_nodes_are_what_they_are(sizes: list[int]) -> None:
    assert full_nodes(sizes) == 2


@pytest.mark.parametrize("sizes", [[2, 2, 1], [2, 2, 1, 1], [3, 3, 3, 1]])
def test_unequal_ones_are_none_for_every_trainer(sizes: list[int]) -> None:
    """Of four trainers two would see nodes of two, and the others nodes of one: meshes that do not fit together."""
    assert full_nodes(sizes) is None
