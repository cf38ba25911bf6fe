"""From what a trainer is fed to what it computes in one step."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from giornata.pretrain.feeding.batch import Batch, Feed
from giornata.pretrain.feeding.examples import Draws, Example, pieces
from giornata.pretrain.feeding.ledger import Use


@dataclass(frozen=True, slots=True, kw_only=True)
class Portioned:
    """One trainer's share of a step, in passes of at most the micro-batch."""

    examples: Sequence[Example]
    uses: Sequence[Use]
    unreadable: Sequence[Use]

    @property
    def empty(self) -> bool:
        """Nothing was fed: the stream has ended."""
        return not self.uses and not self.unreadable


NOTHING = Portioned(examples=(), uses=(), unreadable=())


def portioner(draws: Draws, phase: int, micro_batch: int, device: torch.device) -> Callable[[Feed], Portioned]:
    """What makes a step's examples of a feed. Runs beside the training."""

    def make(feed: Feed) -> Portioned:
        examples = [draws.example(part, phase) for batch in feed.batches for part in pieces(batch, micro_batch)]
        return Portioned(
            examples=bound_for(device, examples),
            uses=[use for batch in feed.batches for use in batch.uses],
            unreadable=list(feed.unreadable),
        )

    return make


def bound_for(device: torch.device, examples: Sequence[Example]) -> list[Example]:
    """The same in memory from which this device can copy while it works."""
    return [each.pinned() if device.type == "cuda" else each for each in examples]


def examples_of(batches: Iterator[Batch] | Sequence[Batch], draws: Draws, micro_batch: int) -> list[Example]:
    """Of rows for validation: the same draws whenever and wherever they are judged."""
    return [draws.example(part, 0) for batch in batches for part in pieces(batch, micro_batch)]


def filled(examples: Sequence[Example], blank: Callable[[], Example], count: int) -> list[Example]:
    """`count` of them, so that all trainers make as many passes: those that weigh nothing come first."""
    return [blank() for _ in range(count - len(examples))] + list(examples)
