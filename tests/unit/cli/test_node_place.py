"""`giornata node` on a machine of SaladCloud."""

from pathlib import Path

import pytest
from tests.fixtures.salad_imds import SaladKeys, SaladWorkload

from giornata.agent.machine.instance_metadata import WorkloadToken
from giornata.cli.operate.fleet.node import agent_settings_of, place_of, unpriced_words
from giornata.cli.operate.serve import with_all_kinds
from giornata.cli.settings import Settings
from giornata.domain.errors import InvalidInput
from giornata.protocol.node.work import NodeInfo

WORKLOAD = SaladWorkload(keys=SaladKeys(), now_s=0.0)


def settings(tmp_path: Path, **more: object) -> Settings:
    return Settings(url="http://server", data=tmp_path, **more)  # type: ignore[arg-type]


def test_node_on_salad_takes_machine_instance_and_fleet_from_environment_and_needs_no_key(tmp_path):
    own = settings(tmp_path)
    agent = agent_settings_of(own, place_of(own, WORKLOAD.environment()))
    assert (agent.machine_id, agent.instance_id) == (WORKLOAD.machine_id, WORKLOAD.instance_id)
    assert agent.fleet == "loras"
    assert agent.key == ""
    assert isinstance(agent.bearer, WorkloadToken)
    assert not (tmp_path / "machine-id").exists()


def test_node_outside_salad_uses_its_key_and_own_machine_id(tmp_path):
    own = settings(tmp_path, node_key="gk_x")
    place = place_of(own, {"HOSTNAME": "laptop"})
    assert place is None
    agent = agent_settings_of(own, place)
    assert agent.machine_id.startswith("machine-")
    assert (agent.instance_id, agent.fleet, agent.bearer) == (None, "static", None)


def test_node_settings_override_values_from_salad_environment(tmp_path):
    own = settings(tmp_path, node_key="gk_x", fleet="night", machine_id="m", instance_id="i")
    agent = agent_settings_of(own, place_of(own, WORKLOAD.environment()))
    assert (agent.key, agent.bearer) == ("gk_x", None)
    assert (agent.fleet, agent.machine_id, agent.instance_id) == ("night", "m", "i")


def test_provider_setting_none_ignores_salad_and_salad_requires_its_environment(tmp_path):
    assert place_of(settings(tmp_path, provider="none"), WORKLOAD.environment()) is None
    assert place_of(settings(tmp_path, provider="salad"), WORKLOAD.environment()) is not None
    with pytest.raises(InvalidInput, match="SALAD_MACHINE_ID"):
        place_of(settings(tmp_path, provider="salad"), {})


def test_a_node_before_a_cluster_is_asked_for_the_clusters_price(tmp_path):
    assert "--price" in (unpriced_words(settings(tmp_path, kinds=("train", "pretrain"))) or "")
    assert unpriced_words(settings(tmp_path, kinds=("train",))) is None
    priced = settings(tmp_path, kinds=("pretrain",), price_usd_per_hour=1_500.0, node_key="gk_x")
    assert unpriced_words(priced) is None
    said = NodeInfo(
        node_id="node_12345678",
        machine_id="m",
        name="m",
        price_micro_usd_per_hour=agent_settings_of(priced).price_micro_usd_per_hour,
    )
    assert said.price_micro_usd_per_hour == 1_500_000_000


def test_node_without_key_or_salad_environment_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="key"):
        agent_settings_of(settings(tmp_path), None)


def test_nodes_of_one_machine_annotate_unless_their_kinds_are_named() -> None:
    assert with_all_kinds(Settings()).kinds == ("train", "generate", "preprocess")
    assert with_all_kinds(Settings(kinds=("train",))).kinds == ("train",)
    assert Settings().kinds == ("train", "generate")
