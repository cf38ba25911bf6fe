"""Clusters of several nodes: trainers that come when there is room for them, and leave when a cloud says so."""

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.contract.pretrain.test_storage import on_s3
from tests.fixtures.seaweed import Seaweed, seaweed  # noqa: F401
from tests.system.pretrain.clusters import ACCELERATOR, RayCluster
from tests.system.pretrain.ends import (
    FIRST_STEPS,
    bytes_at_the_end,
    changed,
    changed_half_way,
    check,
)
from tests.system.pretrain.runs import EXIT_STOPPED, SAMPLES, Command, after, killing, losses, small_run

from giornata.pretrain.run_state.committed import progress_of, run_storage
from giornata.pretrain.run_state.metrics_log import metrics_of
from giornata.pretrain.run_state.proof import proof_of
from giornata.protocol.pretraining import Parallel, PretrainConfig

pytestmark = pytest.mark.timeout(1500)
ENDLESS, NEVER = 20_000, 10**6
NOTICE_S = 120.0
PAIRS = "PAIR"
"""What nodes of two trainers are said to have."""
QUICKLY = {"RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "1"}


class TracedAttempt(NamedTuple):
    """As its trainers wrote it down. `first` and `last` are steps; 0 when there was none."""

    began_ms: int
    trainers: int
    first: int
    last: int


def attempts(config: PretrainConfig) -> list[TracedAttempt]:
    """In the order of time."""
    found: dict[int, list[list[int]]] = {}
    for path in (Path(config.storage) / config.name / "trace").glob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
        if lines:
            found.setdefault(lines[0]["ms"], []).append([line["step"] for line in lines[1:]] or [0])
    return [
        TracedAttempt(ms, len(steps), min(map(min, steps)), max(map(max, steps)))
        for ms, steps in sorted(found.items())
    ]


def test_trainers_come_with_nodes_and_leave_on_notice(cluster: RayCluster, tmp_path: Path) -> None:
    """One trainer, because there is room for one; two, when a node comes; one again, when that is announced to end.
    Weights and moments are sharded over however many there are."""
    config = small_run(tmp_path, parallel=Parallel.FSDP2, checkpoint_steps=NEVER)
    workers = replace(config.workers, accelerator_type=ACCELERATOR, min_trainers=1, resize_interval_s=3.0)
    first, second = config.phases
    config = replace(config, workers=workers, phases=(replace(first, samples=ENDLESS), second))
    cluster.add()
    command = Command(config, address=cluster.address, **QUICKLY)

    def trains(number: int, trainers: int) -> bool:
        now = attempts(config)
        return len(now) >= number and now[number - 1].trainers == trainers and now[number - 1].last > 0

    command.until(lambda: trains(1, 1), "one trainer")
    leaving = cluster.add()
    command.until(lambda: trains(2, 2), "two trainers")
    cluster.announce_end(leaving, in_s=NOTICE_S)
    command.until(lambda: trains(3, 1), "one trainer again")
    leaving.kill()
    assert command.send(signal.SIGTERM) == EXIT_STOPPED

    alone, together, after, *more = attempts(config)
    assert not more
    # Checkpoints are far apart: growth and notices are answered with a checkpoint of everything.
    assert (alone.first, together.first, after.first) == (1, alone.last + 1, together.last + 1)
    proof, progress = proof_of(config), progress_of(run_storage(config))
    assert (proof.repeated, proof.undone, proof.steps) == (0, 0, after.last)
    assert progress.interruptions == 0
    assert proof.trained_once + proof.unreadable == progress.used


def test_trainers_of_two_nodes_meet_in_s3(
    cluster: RayCluster,
    seaweed: Seaweed,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Latents, checkpoints, curves and Ray Train's notes; stopped by Ctrl-C and gone on with."""
    config = small_run(tmp_path, storage=on_s3(seaweed).address)
    config = replace(config, workers=replace(config.workers, accelerator_type=ACCELERATOR))
    for _ in range(config.workers.trainers - cluster.rooms()):
        cluster.add()
    command = Command(config, address=cluster.address)
    command.until_safe(3)
    assert command.send(signal.SIGINT) == EXIT_STOPPED
    assert not proof_of(config).finished
    assert Command(config, address=cluster.address).wait() == 0
    proof = proof_of(config)
    assert (proof.finished, proof.missed, proof.planned) == (True, 0, sum(SAMPLES))
    curve = [(int(row["step"]), int(row["samples"])) for row in metrics_of(run_storage(config))]
    assert [step for step, _ in curve] == list(range(1, proof.steps + 1))
    assert curve[-1][1] == proof.trained_once
    left = {name.partition("/")[0] for name in run_storage(config).names()}
    assert left == {"checkpoints", "metrics", "model", "owner.json"}
    assert not [path for path in tmp_path.iterdir() if path.name != "shards"]


def sharded(folder: Path) -> PretrainConfig:
    """Two trainers that shard between them, on a node each."""
    config = small_run(folder, trainers=2, parallel=Parallel.FSDP2, pinned_order=True)
    return replace(config, workers=replace(config.workers, accelerator_type=ACCELERATOR))


@pytest.fixture(scope="module")
def whole(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> PretrainConfig:
    """Two nodes of one trainer each, which nothing disturbed."""
    config = sharded(tmp_path_factory.mktemp("whole"))
    for _ in range(config.workers.trainers - cluster.rooms()):
        cluster.add()
    assert Command(config, address=cluster.address).wait() == 0
    assert check(config).attempts == 1
    return config


def test_two_nodes_end_with_the_same_bytes_although_the_second_is_killed(
    cluster: RayCluster, whole: PretrainConfig, tmp_path: Path
) -> None:
    """Within the checkpoint between the phases, right after it, and after the first step of the next phase."""
    broken = sharded(tmp_path)
    with killing(
        broken,
        at=[changed_half_way, changed, after(FIRST_STEPS + 1)],
        slowed_from=FIRST_STEPS - 1,
        rank=1,
    ) as killed:
        assert Command(broken, address=cluster.address).wait() == 0
    assert len(killed) == 3
    assert check(broken).attempts == 4
    assert losses(broken) == losses(whole)
    assert bytes_at_the_end(broken) == bytes_at_the_end(whole)


def test_pairs_of_trainers_shard_on_their_node_and_are_replicas_of_one_another(
    cluster: RayCluster, whole: PretrainConfig, tmp_path: Path
) -> None:
    """HSDP: 2 nodes x 2 trainers, which have one address here. One of them is killed; all go on from a checkpoint."""
    config = small_run(tmp_path, trainers=4, parallel=Parallel.HSDP, pinned_order=True)
    config = replace(config, workers=replace(config.workers, accelerator_type=PAIRS))
    for _ in range(2):
        cluster.add(cpus=2, kind=PAIRS)
    with killing(config, at=[after(5)], rank=3) as killed:
        assert Command(config, address=cluster.address).wait() == 0
    assert len(killed) == 1
    assert check(config).attempts == 2
    assert [each.trainers for each in attempts(config)] == [4, 4]
    # One replica's, once: of four trainers that all shard there would be four pieces.
    assert {len(pieces) for pieces in bytes_at_the_end(config).values()} == {2}
    pairs, two = losses(config), losses(whole)
    assert list(pairs) == list(two)
    assert list(pairs.values()) == pytest.approx(list(two.values()), rel=1e-3)
