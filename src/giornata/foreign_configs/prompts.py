"""Files with prompts for samples."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from giornata.protocol.training.results import MOST_PROMPTS

_OPTION = re.compile(r"\s--[a-z]{1,2}\s")


def prompts_of(given: Any) -> tuple[list[str], str]:
    """The prompts alone, and what is to be said of them. `given` is a file's name, a text, or a list."""
    texts = _read(Path(given)) if isinstance(given, str) and given.endswith((".txt", ".toml", ".json")) else given
    if texts is None:
        return [], f"{given} cannot be read, so that no pictures are drawn"
    lines = texts.splitlines() if isinstance(texts, str) else [_prompt(each) for each in texts]
    found = [_OPTION.split(f"{line.strip()} ")[0].strip() for line in lines]
    found = [line for line in found if line and not line.startswith("#")]
    more = len(found) - MOST_PROMPTS
    return found[:MOST_PROMPTS], f"the first {MOST_PROMPTS} of {len(found)}" if more > 0 else ""


def _prompt(sample: Any) -> str:
    """Read one prompt of a list: a text, or an object with a prompt."""
    return str(sample.get("prompt") or "") if isinstance(sample, dict) else str(sample)


def _read(path: Path) -> Any:
    """The file's text, or the list of objects in it; None when there is none."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".txt":
            return text
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError):
        return None
    if isinstance(found, list):
        return found
    inner = found.get("prompt", found)
    return inner.get("subset", [inner]) if isinstance(inner, dict) else [found]
