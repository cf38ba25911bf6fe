"""LoRAs that a prompt names, as A1111 does: `<lora:NAME:0.8>`, or `<lora:NAME:TEXT_ENCODER:UNET>`.

The mark itself is no text for the text encoders: it is cut out, and the LoRA joins those of the picture.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from giornata.domain.errors import Fault
from giornata.domain.generation.prompt_grammar import MAX_WEIGHT

_MARK = re.compile(r"(?<!\\)<(lora|lyco|hypernet):([^<>]*)(>?)")
_WEIGHTS = re.compile(r"([^:]+?)(?::([+-]?(?:\d+\.?\d*|\.\d+)))?(?::([+-]?(?:\d+\.?\d*|\.\d+)))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLora:
    """A LoRA that a prompt names. `text_encoder_weight` is given where it differs from `weight`."""

    name: str
    weight: float = 1.0
    text_encoder_weight: float | None = None


def without_loras(prompt: str) -> tuple[str, tuple[PromptLora, ...]]:
    """Return the prompt without its marks of LoRAs, and the LoRAs. Broken marks stay; `lora_faults` tells them."""
    if "<" not in prompt:
        return prompt, ()
    loras = [lora for found in _MARK.finditer(prompt) if (lora := _lora_of(found)) is not None]
    if not loras:
        return prompt, ()
    return _MARK.sub(lambda found: "" if _lora_of(found) else found[0], prompt).strip(), tuple(loras)


def blanked(prompt: str) -> str:
    """Return the prompt with spaces in place of its marks, so that places in the prompt stay."""
    return _MARK.sub(lambda found: " " * len(found[0]), prompt) if "<" in prompt else prompt


def lora_faults(prompt: str, *, where: str) -> Iterator[Fault]:
    """Yield a fault for each broken mark of a LoRA, with its character counted from 1."""
    for found in _MARK.finditer(prompt) if "<" in prompt else ():
        at = f"character {found.start() + 1}: "
        if not found[3]:
            yield Fault(
                where=where, message=f"{at}< is not closed", hint="write <lora:NAME:0.8>, or \\< for the text"
            )
        elif found[1] == "hypernet":
            yield Fault(where=where, message=f"{at}hypernetworks are not offered", hint="leave the mark out")
        elif re.search(r"[{}|]|__", found[2]):
            hint = "choose between whole marks, such as {<lora:a:1>|<lora:b:1>}"
            yield Fault(where=where, message=f"{at}the name or weight of a LoRA is not drawn", hint=hint)
        elif _lora_of(found) is None:
            hint = f"write <lora:NAME:0.8>, with a weight between -{MAX_WEIGHT:g} and {MAX_WEIGHT:g}"
            yield Fault(where=where, message=f"{at}{found[0]} names no LoRA with a weight", hint=hint)


def _lora_of(found: re.Match[str]) -> PromptLora | None:
    told = _WEIGHTS.fullmatch(found[2].strip())
    if told is None or not found[3] or found[1] == "hypernet":
        return None
    first = 1.0 if told[2] is None else float(told[2])
    if told[3] is None:
        lora = PromptLora(name=told[1], weight=first)
    else:
        lora = PromptLora(name=told[1], weight=float(told[3]), text_encoder_weight=first)
    weights = (lora.weight, lora.text_encoder_weight or 0.0)
    return lora if all(abs(weight) <= MAX_WEIGHT for weight in weights) else None
