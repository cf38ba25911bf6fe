"""Captions with more tokens than a job reads, found on this machine before anything is sent."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from giornata.control.length_faults import LengthCheck, length_check
from giornata.protocol.training.model_names import has_clip_vocabulary

CLIP_TOKENS = 49408
VOCABULARIES = ("tokenizer/vocab.json", "tokenizer/tokenizer.json")


def lengths_of(spec: Mapping[str, Any]) -> LengthCheck:
    """What counts captions for this spec; nothing for a folder whose tokenizer has another vocabulary than CLIP's."""
    return length_check(spec, None, knows_clip=_knows_clip)


def _knows_clip(model: str) -> bool:
    folder = Path(model)
    return _folder_knows_clip(folder) if folder.is_dir() else has_clip_vocabulary(model)


@cache
def _folder_knows_clip(folder: Path) -> bool:
    for name in VOCABULARIES:
        try:
            content = json.loads((folder / name).read_bytes())
            known = content if name.endswith("vocab.json") else content["model"]["vocab"]
            return len(known) == CLIP_TOKENS
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return False
