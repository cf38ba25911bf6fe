"""Which jobs have equal steps: what one of them took tells what another will take, on the same hardware."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from giornata.domain.caption_length import CHUNK
from giornata.protocol.specs import model_key

STEP_SIZE = (
    "resolution",
    "train_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "train_text_encoder",
    "with_prior_preservation",
    "prior_prediction",
    "mixed_precision",
    "compile",
    "cuda_graphs",
)
"""What decides how much work one step of training is, besides the base model."""


def shape_key_of(kind: str, spec: Mapping[str, Any]) -> str:
    """The same for jobs of one kind, on one base model, with equal fields of `STEP_SIZE`.

    `spec` is the stored one, in which every default is written down. 32 hexadecimal digits.
    """
    size = {name: spec.get(name) for name in STEP_SIZE}
    if spec.get("validation_steps"):
        size |= {name: spec.get(name) for name in ("validation_steps", "sample_prompts", "sample_steps")}
    if spec.get("validation_split"):
        size |= {name: spec.get(name) for name in ("validation_split", "validate_every_n_steps")}
    if (length := spec.get("max_token_length", CHUNK)) != CHUNK:
        size["max_token_length"] = length
    told = {"kind": kind, "model": model_key(kind, spec), "size": size}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode("ascii")).hexdigest()[:32]
