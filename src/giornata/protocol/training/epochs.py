"""Epochs to steps."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from giornata.protocol.specs import TrainSpec


def steps_of(spec: "TrainSpec", *, pictures: int) -> int:
    """Optimizer steps of the spec's `num_train_epochs` over so many pictures, as diffusers' scripts count them: the
    last batch of an epoch may be short, and so may its last accumulation. Raises ValueError without epochs."""
    if spec.num_train_epochs is None:
        raise ValueError("the spec counts in steps")
    batches = -(-pictures // spec.train_batch_size)
    return spec.num_train_epochs * -(-batches // spec.gradient_accumulation_steps)
