"""Named starting points: each is a function that returns fields of a train spec, to be overridden at will."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any


def subject() -> dict[str, Any]:
    """One person, animal or thing, from a handful of pictures."""
    return {"rank": 16, "learning_rate": 1e-4, "lr_scheduler": "cosine", "max_train_steps": 1000}


def ancestor() -> dict[str, Any]:
    """What the system that this one descends from ran: four micro-batches a step, both text encoders, rank 4."""
    return {
        "rank": 4,
        "learning_rate": 2e-6,
        "text_encoder_lr": 5e-6,
        "train_text_encoder": True,
        "gradient_accumulation_steps": 4,
        "lr_scheduler": "constant",
        "max_train_steps": 500,
        "checkpointing_steps": 100,
    }


PRESETS: Mapping[str, Callable[[], dict[str, Any]]] = MappingProxyType({"subject": subject, "ancestor": ancestor})
