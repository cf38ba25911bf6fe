"""How nodes are spread over container groups, for any sizes."""

from hypothesis import given
from hypothesis import strategies as st

from giornata.fleets.salad.container_groups import grown, shrunk

CAP = 5
SIZES = st.lists(st.integers(0, CAP), min_size=1, max_size=5).map(lambda each: dict(enumerate(each, start=1)))
COSTS = st.sampled_from([0, 10, 100, 1000])


@given(sizes=SIZES, data=st.data())
def test_growth_keeps_every_group_and_reaches_the_number(sizes, data):
    nodes = data.draw(st.integers(sum(sizes.values()), CAP * len(sizes)))
    found = grown(sizes, nodes, most_each=CAP)
    assert sum(found.values()) == nodes
    assert all(sizes[number] <= found[number] <= CAP for number in sizes)
    begun = [number for number in sizes if found[number] and not sizes[number]]
    if begun:
        assert all(found[number] == CAP for number in sizes if sizes[number]), "no new group while there is room"


@given(sizes=SIZES, data=st.data())
def test_shrinking_reaches_the_number_and_ends_the_cheapest(sizes, data):
    nodes = data.draw(st.integers(0, sum(sizes.values())))
    present = [
        (data.draw(COSTS), number) for number, size in sizes.items() for _ in range(data.draw(st.integers(0, size)))
    ]
    found = shrunk(sizes, nodes, present)
    assert sum(found.values()) == nodes
    assert all(0 <= found[number] <= sizes[number] for number in sizes)
    ended, kept = list[int](), list[int]()
    for number in sizes:
        costs = sorted(cost for cost, of in present if of == number)
        ends = max(0, len(costs) - found[number])
        ended += costs[:ends]
        kept += costs[ends:]
    assert len(ended) == max(0, len(present) - nodes), "who is present goes only where there are more than wanted"
    assert not ended or not kept or max(ended) <= min(kept), "whoever costs least goes, in whichever group"


def test_among_equals_the_highest_group_is_emptied():
    present = [(1000, 1), (1000, 1), (1000, 2), (1000, 2)]
    assert shrunk({1: 2, 2: 2}, 2, present) == {1: 2, 2: 0}


def test_shrink_takes_nodes_still_to_come_before_running_ones():
    assert shrunk({1: 2, 2: 2}, 3, [(1000, 2), (1000, 2)]) == {1: 1, 2: 2}
