"""The model for as long as one likes: `make soak OPS=1000000`.

Three ways take turns: one thing after the other on SQLite, the same on PostgreSQL, and threads on PostgreSQL. Every
episode has a seed of its own, so that one that breaks can be played again; it is cut down to what matters first.
"""

import argparse
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count, cycle
from pathlib import Path

from tests.contract.model.house import House
from tests.contract.model.play import STEPS_PER_EPISODE, draw, play, play_at_once, shrink
from tests.contract.model.sudden_death import SuddenDeath
from tests.contract.model.town_deeds import Step
from tests.fixtures.postgres import serving_postgres

from giornata.store.database import open_store
from giornata.store.migrate import migrate

ROUNDS_PER_EPISODE = 6
SAY_EVERY_S = 30.0
Episode = Callable[[int], int]  # seed → operations done
Player = Callable[[House, Sequence[Step]], int]


def main() -> int:
    """0 when nothing broke."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--ops", type=int, default=1_000_000)
    arguments.add_argument("--seed", type=int, default=0, help="of the first episode; they count up")
    arguments.add_argument("--on", choices=["sqlite", "postgresql", "threads"], action="append")
    arguments.add_argument("--as-is", action="store_true", help="do not cut a schedule down that breaks the house")
    asked = arguments.parse_args()
    one_by_one = play if asked.as_is else _play_or_shrink
    with ExitStack() as stack:
        ways = [(name, stack.enter_context(WAYS[name](one_by_one))) for name in asked.on or WAYS]
        return soak(ways, ops=asked.ops, first_seed=asked.seed)


def soak(ways: Sequence[tuple[str, Episode]], *, ops: int, first_seed: int) -> int:
    """Play episodes until that many operations are done."""
    began_s = said_s = time.monotonic()
    done = 0
    for seed, (name, episode) in zip(count(first_seed), cycle(ways), strict=False):
        try:
            done += episode(seed)
        except Exception:  # noqa: BLE001 - whatever it is, it is what we were looking for
            sys.stdout.write(f"{name}, episode {seed}, after {done} operations\n{traceback.format_exc()}\n")
            return 1
        if done >= ops or time.monotonic() - said_s > SAY_EVERY_S:
            said_s = time.monotonic()
            rate = done / (said_s - began_s)
            sys.stdout.write(f"{done} operations, {seed + 1 - first_seed} episodes, {rate:.0f} a second\n")
            sys.stdout.flush()
        if done >= ops:
            return 0
    return 0


@contextmanager
def _house(url: str) -> Iterator[House]:
    migrate(url)
    store, death = open_store(url), SuddenDeath()
    try:
        with death.watching():
            yield House(store, death)
    finally:
        store.close()


@contextmanager
def _sqlite() -> Iterator[House]:
    memory = Path("/dev/shm")  # the logic is what is tested, not the disk
    with (
        tempfile.TemporaryDirectory(prefix="giornata-soak-", dir=memory if memory.is_dir() else None) as folder,
        _house(f"sqlite:///{folder}/giornata.db") as house,
    ):
        yield house


@contextmanager
def _postgres() -> Iterator[House]:
    with serving_postgres() as url, _house(url) as house:
        yield house


@contextmanager
def _one_by_one(opened: Callable[[], "contextmanager[House]"], player: Player) -> Iterator[Episode]:
    with opened() as house:
        yield lambda seed: player(house, draw(random.Random(seed), STEPS_PER_EPISODE + seed % 2))


@contextmanager
def _threads(_: Player) -> Iterator[Episode]:
    with _postgres() as house:
        yield lambda seed: play_at_once(house, random.Random(seed), rounds=ROUNDS_PER_EPISODE)


WAYS = {
    "sqlite": lambda player: _one_by_one(_sqlite, player),
    "postgresql": lambda player: _one_by_one(_postgres, player),
    "threads": _threads,
}


def _play_or_shrink(house: House, steps: Sequence[Step]) -> int:
    try:
        return play(house, steps)
    except Exception as failure:
        kind = type(failure)
        few = shrink(steps, lambda fewer: _fails_alike(house, fewer, kind))
        sys.stdout.write(f"as few steps as break it, for an @example:\n{few}\n")
        play(house, few)
        raise


def _fails_alike(house: House, steps: Sequence[Step], kind: type[Exception]) -> bool:
    try:
        play(house, steps)
    except Exception as other:  # noqa: BLE001 - another failure is another matter
        return type(other) is kind
    return False


if __name__ == "__main__":
    sys.exit(main())
