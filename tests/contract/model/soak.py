"""The model for as long as one likes: `make soak OPS=1000000`.

Half of the operations are done one after the other on SQLite, half by threads on PostgreSQL; `--on postgresql` does
them one by one there. Every episode has a seed of its own, so that one that breaks can be played again; it is cut
down to what matters first. With `--processes 2` the ways run beside each other. The last line is one of JSON.

A sudden death of the server is simulated in this process (nothing behind the chosen statement is executed, and the
transaction is rolled back), so what a disk makes of a power cut is not tested here: the databases lie in memory and
do not sync. Kills of real processes are in tests/system/faults.
"""

import argparse
import gc
import json
import random
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Engine
from tests.contract.model.actions import Step
from tests.contract.model.calls import Actors
from tests.contract.model.model_rig import ModelRig, opened_rig
from tests.contract.model.schedules import draw, play, play_at_once, shrink
from tests.fixtures.postgres import serving_postgres

from giornata.store.database.database import open_store
from giornata.store.database.migrate import migrate

STEPS_PER_EPISODE = 240
ROUNDS_PER_EPISODE = 12
SAY_EVERY_S = 60.0
Episode = Callable[[int], Actors]  # by seed
Player = Callable[[ModelRig, Sequence[Step]], Actors]


@dataclass(slots=True)
class SoakCounts:
    """What was done so far. `repeats` are deliveries besides the operations; `deaths` those of the server."""

    operations: int = 0
    episodes: int = 0
    repeats: int = 0
    deaths: int = 0
    violations: int = 0
    actions: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    by_way: Counter[str] = field(default_factory=Counter)

    def add(self, way: str, actors: Actors) -> None:
        self.operations += actors.operations
        self.episodes += 1
        self.repeats += actors.repeats
        self.deaths += actors.deaths
        self.actions += actors.actions
        self.refusals += actors.refusals
        self.by_way[way] += actors.operations


def main() -> int:
    """0 when nothing broke."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--ops", type=int, default=1_000_000)
    arguments.add_argument("--seed", type=int, default=0, help="of the first episode; they count up")
    arguments.add_argument("--on", choices=list(WAYS), action="append", help="default: sqlite and threads")
    arguments.add_argument("--processes", type=int, default=1, choices=(1, 2))
    arguments.add_argument("--as-is", action="store_true", help="do not cut a schedule down that breaks an invariant")
    asked = arguments.parse_args()
    names = asked.on or ["sqlite", "threads"]
    if asked.processes > 1 and len(names) > 1:
        from tests.contract.model.soak_beside import soak_beside

        return soak_beside(names, ops=asked.ops, seed=asked.seed, as_is=asked.as_is)
    # Most of what is allocated dies at once, and the rest stays: there is little sense in looking for rings in it.
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    one_by_one = play if asked.as_is else _play_or_shrink
    with ExitStack() as stack:
        ways = {name: stack.enter_context(WAYS[name](one_by_one)) for name in names}
        return soak(ways, ops=asked.ops, first_seed=asked.seed)


def soak(ways: dict[str, Episode], *, ops: int, first_seed: int) -> int:
    """Play episodes until that many operations are done, always in the way that is behind."""
    began_s = said_s = time.monotonic()
    counts, seed = SoakCounts(by_way=Counter(dict.fromkeys(ways, 0))), first_seed
    while counts.operations < ops:
        way = min(ways, key=counts.by_way.__getitem__)
        try:
            counts.add(way, ways[way](seed))
        except Exception:  # noqa: BLE001 - whatever it is, it is what we were looking for
            say(f"{way}, episode {seed}, after {counts.operations} operations\n{traceback.format_exc()}")
            counts.violations += 1
            break
        seed += 1
        if time.monotonic() - said_s > SAY_EVERY_S:
            said_s = time.monotonic()
            rate_per_s = counts.operations / (said_s - began_s)
            done = f"{counts.operations} operations, {counts.episodes} episodes"
            say(f"{dict(counts.by_way)}: {done}, {rate_per_s:.0f}/s")
    conclude(counts, seed=first_seed, next_seed=seed, wall_s=time.monotonic() - began_s)
    return 1 if counts.violations else 0


def conclude(counts: SoakCounts, *, seed: int, next_seed: int, wall_s: float) -> None:
    """The last line."""
    rate_per_s = round(counts.operations / wall_s, 1)
    said = {"soak": "model", "seed": seed, "next_seed": next_seed, "wall_s": round(wall_s, 1), "per_s": rate_per_s}
    said["cpu_s"] = round(time.process_time(), 1)
    say(json.dumps({**said, **{it.name: getattr(counts, it.name) for it in fields(counts)}}))


def say(line: str) -> None:
    """At once, also into a pipe."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@contextmanager
def _rig(url: str) -> Iterator[ModelRig]:
    migrate(url)
    store = open_store(url)
    try:
        with opened_rig(store) as rig:
            yield rig
    finally:
        store.close()


@contextmanager
def _sqlite() -> Iterator[ModelRig]:
    memory = Path("/dev/shm")  # the logic is what is tested, not the disk
    with (
        tempfile.TemporaryDirectory(prefix="giornata-soak-", dir=memory if memory.is_dir() else None) as folder,
        _unsynced(),
        _rig(f"sqlite:///{folder}/giornata.db") as rig,
    ):
        yield rig


@contextmanager
def _unsynced() -> Iterator[None]:
    def relax(connection: object, _record: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA synchronous = OFF")

    sa.event.listen(Engine, "connect", relax)
    try:
        yield
    finally:
        sa.event.remove(Engine, "connect", relax)


@contextmanager
def _postgres() -> Iterator[ModelRig]:
    with serving_postgres() as url, _rig(url) as rig:
        yield rig


@contextmanager
def _one_by_one(opened: Callable[[], AbstractContextManager[ModelRig]], player: Player) -> Iterator[Episode]:
    with opened() as rig:
        yield lambda seed: player(rig, draw(random.Random(seed), STEPS_PER_EPISODE + seed % 28))


@contextmanager
def _threads(_: Player) -> Iterator[Episode]:
    with _postgres() as rig:
        yield lambda seed: play_at_once(rig, random.Random(seed), rounds=ROUNDS_PER_EPISODE)


WAYS: dict[str, Callable[[Player], AbstractContextManager[Episode]]] = {
    "sqlite": lambda player: _one_by_one(_sqlite, player),
    "postgresql": lambda player: _one_by_one(_postgres, player),
    "threads": _threads,
}


def _play_or_shrink(rig: ModelRig, steps: Sequence[Step]) -> Actors:
    try:
        return play(rig, steps)
    except Exception as failure:
        kind = type(failure)
        few = shrink(steps, lambda fewer: _fails_alike(rig, fewer, kind))
        say(f"as few steps as break it, for an @example:\n{few}")
        play(rig, few)
        raise


def _fails_alike(rig: ModelRig, steps: Sequence[Step], kind: type[Exception]) -> bool:
    try:
        play(rig, steps)
    except Exception as other:  # noqa: BLE001 - another failure is another matter
        return type(other) is kind
    return False


if __name__ == "__main__":
    sys.exit(main())
