"""After any schedule of kills and resizes every row of every epoch was trained once, but those in quarantine.

What was trained is counted from what trainers said that they computed, and not from the ledger: of each start what
came after the checkpoint from which the next one went on is lost, and all else is in the weights.
"""

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest
from tests.fixtures.pretrain_feeds import SHARD_ROWS, pinned_feeds, rows_of, run_of, tiny_config, uses_of
from tests.fixtures.pretrain_trainers import die, run_trainers

from giornata.pretrain.data.storage import Storage
from giornata.pretrain.feeding.feed import Feed
from giornata.pretrain.feeding.ledger import Use, UseLedger
from giornata.pretrain.run_state.committed import COMMIT, FOLDER, CheckpointDamaged, newest
from giornata.pretrain.run_state.progress import TrainingOutcome
from giornata.pretrain.training.loop import train
from giornata.protocol.pretraining import Parallel, PretrainConfig

pytestmark = pytest.mark.timeout(900)
EPOCHS = (2, 1)
"""Whole ones, of each phase."""
UNREADABLE: tuple[Use, ...] = ((0, 2), (1, 5), (4, 7))
KINDS = ("feed", "files", "commit", "preemption")
DAMAGED = "damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledStart:
    """One start of trainers, and what ends it: at which feed, file or commit of its own, `after` so many."""

    number: int
    seed: int
    world: int
    parallel: Parallel
    ends: str | None
    after: int
    victim: int
    damage: str | None
    """Done to the newest checkpoint before."""


def schedule(seed: int) -> list[ScheduledStart]:
    """Every way to end, one of them twice, in a random order; then one start to the end."""
    drawn = random.Random(seed)
    ends = [*KINDS, drawn.choice(KINDS)]
    worlds, damages = [1, 1, 1, 2, 2, 2], ["bytes", "size", None, None, None]
    for each in (ends, worlds, damages):
        drawn.shuffle(each)
    return [
        ScheduledStart(
            number=number,
            seed=seed,
            world=worlds[number],
            parallel=drawn.choice([Parallel.DDP, Parallel.FSDP2]),
            ends=end,
            after=drawn.randint(3, 5) if end == "feed" else drawn.randint(1, 2),
            victim=0 if end == "commit" else drawn.randrange(worlds[number]),
            # What a preemption left is kept, so that in every schedule something is gone on with.
            damage=None if number == 0 or ends[number - 1] == "preemption" else damages[number - 1],
        )
        for number, end in enumerate([*ends, None])
    ]


class Mortal(Storage):
    """Storage during whose writing the process dies: when half of a shard is there, or all but the list of files."""

    __slots__ = ("ends", "left")

    def put(self, path: Path, name: str) -> None:
        if self.ends == "files" and name.endswith(".safetensors"):
            if not self.left:
                content = path.read_bytes()
                self.write(name, content[: len(content) // 2])
                die()
            object.__setattr__(self, "left", self.left - 1)
        super().put(path, name)

    def write(self, name: str, content: bytes | memoryview) -> None:
        if self.ends == "commit" and name.endswith(COMMIT):
            if not self.left:
                die()
            object.__setattr__(self, "left", self.left - 1)
        super().write(name, content)


def config_of(folder: Path, parallel: Parallel) -> PretrainConfig:
    return tiny_config(folder, samples=tuple(sum(SHARD_ROWS) * each for each in EPOCHS), parallel=parallel)


def train_one(rank: int, folder: Path, start: ScheduledStart) -> None:
    """One trainer of one start. Notes what it computed, step by step."""
    config, mine = config_of(folder, start.parallel), start.ends is not None and rank == start.victim
    shuffled = random.Random(f"{start.seed} {start.number}")
    storage, asked = Mortal(str(folder)), iter(range(10**6))
    object.__setattr__(storage, "ends", start.ends if mine else None)
    object.__setattr__(storage, "left", start.after)

    def change(feed: Feed, number: int) -> Feed:
        if mine and start.ends == "feed" and number == start.after:
            die()
        return feed

    with (folder / f"computed-{start.number}-{rank}.jsonl").open("w") as notes:

        def traced(phase: int, step: int, uses: Sequence[Use]) -> None:
            notes.write(json.dumps([phase, step, list(uses)]) + "\n")
            notes.flush()

        given = {"rank": rank, "world": start.world, "unreadable": UNREADABLE, "order": shuffled.shuffle}
        run = run_of(
            config,
            folder,
            start=newest(Storage.at(folder)),
            feeds=pinned_feeds(config, change=change, **given),  # type: ignore[arg-type]
            preempted=lambda: next(asked) >= start.after and mine and start.ends == "preemption",
            traced=traced,
        )
        try:
            outcome = train(replace(run, storage=storage))
        except CheckpointDamaged:
            outcome = None
    assert outcome in {None, TrainingOutcome.FINISHED, TrainingOutcome.PREEMPTED}
    if rank == 0:
        (folder / f"outcome-{start.number}").write_text(DAMAGED if outcome is None else str(outcome))


def spoil(folder: Path, how: str) -> None:
    """The newest checkpoint, if there is one."""
    found = newest(Storage.at(folder))
    if found is not None:
        path = sorted((folder / FOLDER / found.name).glob("*.safetensors"))[-1]
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content if how == "bytes" else content[:-1])


def begin(folder: Path, start: ScheduledStart) -> tuple[str, int]:
    """How it ended, and the step from which it went on. A checkpoint that is found to be damaged is passed over."""
    found = newest(Storage.at(folder))
    meeting = folder / f"meeting-{start.number}-{found.name if found else ''}"
    victim = start.victim if start.ends in KINDS[:3] else None
    whole = run_trainers(train_one, folder, start, world=start.world, meeting=meeting, victim=victim)
    outcome = (folder / f"outcome-{start.number}").read_text() if whole else "killed"
    return begin(folder, start) if outcome == DAMAGED else (outcome, found.step if found else 0)


def kept_of(folder: Path, starts: Sequence[tuple[ScheduledStart, int]]) -> list[tuple[int, Use]]:
    """(phase, row) of each row that is in the weights at the end."""
    kept: list[tuple[int, int, Use]] = []
    for start, step in starts:
        kept = [each for each in kept if each[1] <= step]
        for rank in range(start.world):
            lines = (folder / f"computed-{start.number}-{rank}.jsonl").read_text().splitlines()
            rows = [(phase, at, (use[0], use[1])) for phase, at, uses in map(json.loads, lines) for use in uses]
            assert all(at > step for _, at, _ in rows)
            kept += rows
    return [(phase, use) for phase, _, use in kept]


@pytest.mark.parametrize("seed", [1])
def test_every_row_of_every_epoch_is_trained_once_but_those_in_quarantine(tmp_path: Path, seed: int) -> None:
    starts, outcomes = list[tuple[ScheduledStart, int]](), Counter[str]()
    for start in schedule(seed):
        if start.damage:
            spoil(tmp_path, start.damage)
        outcome, step = begin(tmp_path, start)
        starts.append((start, step))
        outcomes[outcome] += 1
    assert outcome == TrainingOutcome.FINISHED, [asdict(start) for start, _ in starts]
    assert outcomes["killed"] >= 3
    assert any(step for _, step in starts)
    kept = kept_of(tmp_path, starts)
    found = newest(Storage.at(tmp_path))
    assert found is not None
    ledgers = found.progress(Storage.at(tmp_path)).ledgers
    for phase, rows in enumerate(rows_of(config_of(tmp_path, Parallel.DDP))):
        portions = {each.number: each for each in rows.portions()}
        trained = Counter(
            (portions[number].epoch, portions[number].shard, row) for at, (number, row) in kept if at == phase
        )
        every = {
            (epoch, shard, row)
            for epoch in range(EPOCHS[phase])
            for shard, n in enumerate(SHARD_ROWS)
            for row in range(n)
        }
        bad = [
            (portions[n].epoch, portions[n].shard, row)
            for n, row in UNREADABLE
            if n in portions and row in portions[n].rows
        ]
        assert trained == Counter(every - set(bad))
        assert Counter(uses_of(UseLedger.from_json(ledgers[phase], rows))) == trained
