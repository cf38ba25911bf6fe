"""The orders of a benchmark, and the file that lets a benchmark go on where it was interrupted."""

import hashlib
import json
import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from giornata.client import Client
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.generation.specs import GENERATE_KIND
from giornata.protocol.jobs import Job

STATE = "--state"
BENCH, PART = "bench", "bench-part"
"""The labels of a benchmark's orders: the benchmark, and the place of the order in it."""
FORMAT = 1
MOST_FIRST_SEED = 2**32


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderPart:
    """The part of a benchmark that is one order: `repeats` pictures of each prompt. `first` is its first picture."""

    number: int
    first: int
    prompts: tuple[str, ...]
    repeats: int

    @property
    def pictures(self) -> int:
        """The number of pictures of the part."""
        return len(self.prompts) * self.repeats


def order_parts(prompts: Sequence[str], count: int, *, most: int) -> Iterator[OrderPart]:
    """Divide `count` pictures into orders of at most `most`. Each prompt has as many pictures as any other, or one
    more."""
    done = number = place = 0
    while done < count:
        rounds = min(most, count - done) // len(prompts) if place == 0 else 0
        taken = prompts if rounds else prompts[place : place + min(most, count - done)]
        part = OrderPart(number=number, first=done, prompts=tuple(taken), repeats=max(1, rounds))
        yield part
        done, number, place = done + part.pictures, number + 1, (place + len(taken)) % len(prompts)


@dataclass(slots=True, kw_only=True)
class BenchState:
    """A benchmark's seed, its name in idempotency keys, and the orders that are placed, by their places."""

    file: Path
    digest: str
    key: str
    seed: int
    orders: dict[int, str] = field(default_factory=dict)

    @classmethod
    def opened(cls, file: Path, asked: Mapping[str, Any], *, seed: int | None) -> Self:
        """Return the benchmark in the file, or a new one. Raises InvalidInput for the file of another benchmark."""
        digest = hashlib.sha256(json.dumps([asked, seed], sort_keys=True).encode()).hexdigest()
        hint = "name another file, or give the options that the benchmark has begun with"
        try:
            told = json.loads(file.read_text(encoding="utf-8"))
            if told["format"] != FORMAT:
                raise ValueError(f"format {told['format']}")
            orders = {int(number): str(job) for number, job in told["orders"].items()}
            found = cls(file=file, digest=told["digest"], key=told["key"], seed=told["seed"], orders=orders)
        except FileNotFoundError:
            drawn = random.SystemRandom().randrange(MOST_FIRST_SEED) if seed is None else seed
            return cls(file=file, digest=digest, key=uuid.uuid4().hex, seed=drawn)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"{file} is not the state of a benchmark ({type(error).__name__}: {error})"
            raise InvalidInput([Fault(where=STATE, message=message, hint=hint)]) from None
        if found.digest != digest:
            raise InvalidInput(
                [Fault(where=STATE, message=f"{file} belongs to a benchmark with other settings", hint=hint)]
            )
        return found

    def save(self) -> None:
        """Write the file whole, so that a kill leaves the old or the new one."""
        told = {"format": FORMAT, "digest": self.digest, "key": self.key, "seed": self.seed, "orders": self.orders}
        new = self.file.with_name(f"{self.file.name}.new")
        try:
            new.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
            new.replace(self.file)
        except OSError as error:
            message = f"{self.file} cannot be written: {error.strerror}"
            raise InvalidInput([Fault(where=STATE, message=message, hint="name another file")]) from None


def place_orders(
    client: Client, state: BenchState, parts: Sequence[OrderPart], spec: Mapping[str, Any], terms: Mapping[str, Any]
) -> None:
    """Place the orders that are not placed yet. `spec` is what all of them share, and `terms` go to `submit`.

    An order that was placed just before a kill is found by its labels, and by its idempotency key.
    """
    state.save()
    if len(state.orders) < len(parts):
        state.orders |= {int(job.labels[PART]): job.id for job in bench_jobs(client, state.key)}
    whole = sum(part.pictures for part in parts)
    budget = terms.get("budget_micro_usd")
    for part in parts:
        if part.number in state.orders:
            continue
        share = None if budget is None else max(1, budget * part.pictures // whole)
        seeded = {
            "prompts": list(part.prompts),
            "num_images_per_prompt": part.repeats,
            "seed": state.seed + part.first,
        }
        job = client.submit(
            {**spec, **seeded},
            kind=GENERATE_KIND,
            labels={BENCH: state.key, PART: str(part.number)},
            idempotency_key=f"bench-{state.key}-{part.number}",
            **{**terms, "budget_micro_usd": share},
        )
        state.orders[part.number] = job.id
        state.save()


def bench_jobs(client: Client, key: str) -> list[Job]:
    """Return the orders of a benchmark, without their specs."""
    return list(client.jobs(kind=GENERATE_KIND, labels={BENCH: key}))
