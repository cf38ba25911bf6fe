"""Encoders on a node of their own, beside trainers on another: as many as the run says."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.system.pretrain.clusters import ACCELERATOR, RayCluster, RayNode
from tests.system.pretrain.ends import check
from tests.system.pretrain.runs import PATIENCE_S, SAMPLES, Command, small_run, traced

from giornata.pretrain.recipes import read_config
from giornata.protocol.pretraining import Mode, PretrainConfig

pytestmark = pytest.mark.timeout(1500)
CHEAP = "CHEAP"
"""What the encoders' node is said to have."""
NEEDED = 2
"""Encoders beside each phase."""
CONFIG = """recipe = "sdxl_tiny"
storage = {storage}
[data]
shards = {shards}
max_quarantined_share = 0.1
[encode]
mode = "hybrid"
accelerator_type = "CHEAP"
gpus_per_encoder = 0.0
encoders = {encoders}
[train]
checkpoint_steps = 3
validation_rows = 4
[workers]
trainers = 2
accelerator_type = "SPOT"
[tracking]
trace_rows = true
[[phases]]
name = "32"
resolution = 32
samples = {first}
train_batch_size = 8
[[phases]]
name = "64"
resolution = 64
samples = {second}
train_batch_size = 8
"""


@pytest.fixture(scope="module")
def nodes(cluster: RayCluster) -> tuple[RayNode, RayNode]:
    """For two trainers, and for encoders."""
    return cluster.add(cpus=2, kind=ACCELERATOR), cluster.add(cpus=NEEDED, kind=CHEAP)


def at_work(nodes: tuple[RayNode, RayNode], first: RayCluster, name: str) -> tuple[int, int, int]:
    """How many processes of that name are on the first node, the trainers' and the encoders'."""
    found = (first.at_work(), *(node.at_work() for node in nodes))
    return tuple(sum(name in line for line in each.values()) for each in found)  # type: ignore[return-value]


def test_pictures_are_encoded_on_one_node_and_trained_on_another(
    cluster: RayCluster, nodes: tuple[RayNode, RayNode], tmp_path: Path
) -> None:
    config = small_run(tmp_path, mode=Mode.ONLINE)
    config = replace(
        config,
        encode=replace(config.encode, accelerator_type=CHEAP, gpus_per_encoder=0.0, encode_batch_size=8),
        workers=replace(config.workers, accelerator_type=ACCELERATOR),
    )
    command = Command(config, address=cluster.address)
    command.until(lambda: at_work(nodes, cluster, "EncodeRows") == (0, 0, 1), "an encoder on its node")
    command.until(lambda: len(traced(config)) == 2, "a step of both trainers")
    assert {pid for _, pid, _ in traced(config)} <= nodes[0].at_work().keys()
    assert command.wait() == 0
    check(config)


def giornata(*words: str) -> "subprocess.Popen[str]":
    """`giornata pretrain`, with an object as its last line."""
    command = [sys.executable, "-m", "giornata", "pretrain", *words, "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)


def told(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """The object, of a command that ends well."""
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


@pytest.fixture
def hybrid(tmp_path: Path) -> Path:
    """A configuration as users write it, whose latents are stored."""
    small_run(tmp_path, mode=Mode.HYBRID)
    folders = {name: json.dumps(str(path)) for name, path in (("storage", tmp_path), ("shards", tmp_path / "shards"))}
    file = tmp_path / "config.toml"
    file.write_text(CONFIG.format(**folders, first=SAMPLES[0], second=SAMPLES[1], encoders=NEEDED))
    return file


def test_encoders_are_measured_on_the_cluster_and_the_run_has_as_many_as_its_configuration_says(
    cluster: RayCluster, nodes: tuple[RayNode, RayNode], hybrid: Path
) -> None:
    """Latents from storage, text encoded beside the run; one of two trainers is measured."""
    there = ["--address", cluster.address]
    report = told(giornata("run", str(hybrid), *there, "--synthetic", "--trainers", "1", "--steps", "2"))
    assert (report["mode"], report["trainers_measured"], report["trainers"]) == ("hybrid", 1, 2)
    for size in report["sizes"]:
        assert min(size["trainers_images_per_s"], size["encoder_images_per_s"]) > 0
        assert (size["estimated"], size["asked"]) == (True, NEEDED)

    config = read_config(str(hybrid))
    run = giornata("run", str(hybrid), *there)
    seen = set[tuple[int, int, int]]()
    while not trained(config) and run.poll() is None:
        seen.add(at_work(nodes, cluster, "EncodeRows"))
        time.sleep(0.2)
    assert told(run)["finished"]
    assert max(seen) == (0, 0, NEEDED), seen
    check(config)


def trained(config: PretrainConfig) -> bool:
    """Whether the second phase is under way."""
    return any(step > -(-SAMPLES[0] // 16) + 1 for _, _, step in traced(config))
