"""How many trainers share a node, from the node of each."""

import pytest

from giornata.pretrain.training.parallel import full_nodes


@pytest.mark.parametrize(("nodes", "size"), [("aabb", 2), ("bbaa", 2), ("aa", 2), ("abc", 1)])
def test_equal_nodes_are_what_they_are(nodes: str, size: int) -> None:
    assert full_nodes(nodes) == size


@pytest.mark.parametrize("nodes", ["aab", "aabbc", "aabc", "aaabbbcccd"])
def test_unequal_ones_are_none_for_every_trainer(nodes: str) -> None:
    """Of four trainers two would see nodes of two, and the others nodes of one: meshes that do not fit together."""
    assert full_nodes(nodes) is None


@pytest.mark.parametrize("nodes", ["abab", "abba"])
def test_nor_do_nodes_fit_whose_trainers_are_not_one_after_the_other(nodes: str) -> None:
    """A mesh of ranks would shard from node to node."""
    assert full_nodes(nodes) is None
