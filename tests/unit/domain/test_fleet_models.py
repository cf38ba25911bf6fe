"""Which nodes hold which models: an index that agrees with counting."""

from hypothesis import given, settings
from hypothesis import strategies as st

from giornata.domain.generation.fleet_models import TRIED_AGAIN_MS, BaseFiles, FleetModels, NodeModels
from giornata.domain.generation.model_routing import Holders, Tier

BASES = {"one": BaseFiles(name="one", sha256s=("f",)), "two": BaseFiles(name="two", sha256s=("f", "g"))}
files = st.frozensets(st.sampled_from("fgh"))
nodes = st.builds(
    NodeModels,
    seen_at_ms=st.just(1),
    owner=st.sampled_from([None, None, "ann", "bob"]),
    gpu=st.frozensets(st.sampled_from(["one", "two"]), max_size=1),
    host=files,
    disk=files,
    fetching=st.sampled_from([None, "one", "two"]),
    version=st.sampled_from([None, 3, 3]),
)


def tier(base_key: str, node: NodeModels) -> str | None:
    wanted = set(BASES[base_key].sha256s)
    if base_key in node.gpu:
        return "gpu"
    if wanted <= node.host:
        return "host"
    if wanted <= node.disk or node.version is None:
        return "disk"
    return "fetching" if node.fetching == base_key else None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.none() | nodes), max_size=12))
def test_holders_are_those_that_counting_finds_whatever_came_and_went(
    changes: list[tuple[int, NodeModels | None]],
) -> None:
    fleet, live = FleetModels(), dict[str, NodeModels]()
    fleet.remember_bases(BASES, but_at_most=10)
    for number, models in changes:
        node_id = f"node_{number}"
        if models is None:
            live.pop(node_id, None)
            fleet.keep_only(live, at_ms=1)
        else:
            live[node_id] = models
            fleet.put(node_id, models)
    for base_key in BASES:
        tiers = [tier(base_key, node) for node in live.values() if node.owner in {None, "ann"}]
        counts = {name: tiers.count(name) for name in ("gpu", "host", "disk", "fetching")}
        assert fleet.holders(base_key, project_id="ann") == Holders(**counts)
    assert fleet.serving("ann") == sum(node.owner in {None, "ann"} for node in live.values())


def test_base_that_was_not_fetched_counts_as_held_until_it_may_be_tried_again() -> None:
    fleet = FleetModels()
    fleet.remember_bases(BASES, but_at_most=10)
    fleet.put("node_1", NodeModels(seen_at_ms=1, version=1))
    fleet.note_hinted("node_1", "one", at_ms=1)
    assert (fleet.held("node_1").tier_of("one"), fleet.held("node_1").fetching) == (None, "one")
    fleet.note_given_up("node_1")
    assert fleet.held("node_1").tier_of("one") is Tier.DISK
    fleet.keep_only(["node_1"], at_ms=1 + TRIED_AGAIN_MS)
    assert fleet.held("node_1").tier_of("one") is None


def test_base_that_a_lease_names_takes_the_place_of_others_on_the_gpu() -> None:
    fleet = FleetModels()
    fleet.put("node_1", NodeModels(seen_at_ms=1, gpu=frozenset({"one"}), version=1))
    fleet.note_leased("node_1", "two", at_ms=2)
    assert fleet.holders("one", project_id="ann").gpu == 0
    assert fleet.holders("two", project_id="ann").gpu == 1
