"""Find the faults of an order's prompts, in the spec as it came: faults of other fields hide none of these."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from giornata.domain.clip import token_count
from giornata.domain.errors import Fault, InvalidInput, collecting
from giornata.domain.generation.prompt_choices import (
    Cost,
    PromptTemplate,
    Wildcards,
    largest_cost,
    no_list,
    options_of,
    parse_template,
    wildcards_of,
    without_choices,
)
from giornata.domain.generation.prompt_grammar import parse
from giornata.domain.generation.prompt_loras import blanked, lora_faults, without_loras
from giornata.protocol.generation.grid import PROMPTS, with_each_value
from giornata.protocol.generation.picture import MAX_PROMPT_CHARS
from giornata.protocol.generation.picture_fields import MAX_LORAS

CHUNK_TOKENS = 75
MAX_CHUNKS = 10
"""Chunks of 75 tokens that a prompt may have. Each costs a node memory at every step."""
MOST_FAULTS = 100
NEGATIVE = "negative_prompt"
_MARKED = re.compile(r"[()\[\]{}<\\]|__|BREAK")
_BREAK = re.compile(r"\bBREAK\b")
_BRACKETS = re.compile(r"[()\[\]]")
Named = tuple[str, str]
"""Where a text stands, and the text."""


def prompt_faults(spec: Mapping[str, Any]) -> list[Fault]:
    """Return the faults of the prompts and wildcards of a spec as it came. After a hundred nothing more is read."""
    lists = _lists(spec.get("wildcards"))
    check = _PromptCheck(lists=lists, circular=_circular(lists), shared_loras=len(_list(spec.get("loras"))))
    of_texts = (check.of_text(where, text) for where, text in prompt_texts(spec))
    found = list(islice(chain(check.of_lists(), chain.from_iterable(of_texts)), MOST_FAULTS))
    if len(found) == MOST_FAULTS:
        found.append(Fault(where="spec", message="may have more faults in prompts", hint="mend these first"))
    return found


def prompt_texts(spec: Mapping[str, Any]) -> Iterator[Named]:
    """Yield prompts with their places. A prompt with slots stands with each value of each slot. The spec need not be
    valid."""
    axes = [(number, axis) for number, axis in enumerate(_list(spec.get("axes"))) if isinstance(axis, Mapping)]
    for name in ("prompts", *PROMPTS):
        given = spec.get(name)
        if isinstance(given, str):
            yield from _with_slots(f"spec.{name}", given, axes)
        for number, each in enumerate(_list(given)):
            if isinstance(each, str):
                yield f"spec.{name}.{number}", each
    for number, each in enumerate(_list(spec.get("pictures"))):
        for name in PROMPTS:
            if isinstance(each, Mapping) and isinstance(each.get(name), str):
                yield f"spec.pictures.{number}.{name}", each[name]
    for number, axis in axes:
        if axis.get("field") in PROMPTS:
            for place, value in enumerate(_list(axis.get("values"))):
                yield f"spec.axes.{number}.values.{place}", str(value)


def _with_slots(where: str, text: str, axes: list[tuple[int, Mapping[str, Any]]]) -> Iterator[Named]:
    slots = [(number, axis["slot"], _list(axis.get("values"))) for number, axis in axes if axis.get("slot")]
    for written, changed in with_each_value(text, [(str(slot), values) for _, slot, values in slots]):
        yield where if changed is None else f"spec.axes.{slots[changed[0]][0]}.values.{changed[1]}", written


@dataclass(slots=True, kw_only=True)
class _PromptCheck:
    lists: Wildcards
    circular: set[str]
    shared_loras: int
    sums: dict[str, Mapping[str, int]] = field(default_factory=dict)
    """The largest cost of each list, by the name of the cost."""

    def of_lists(self) -> Iterator[Fault]:
        """Yield faults of the lines of the wildcards' lists."""
        for name, lines in self.lists.items():
            if not lines:
                hint = "give it at least one line, or leave the list out"
                yield Fault(where=f"spec.wildcards.{name}", message="is empty", hint=hint)
            for number, line in enumerate(lines):
                if _MARKED.search(line):
                    yield from self._grammar(f"spec.wildcards.{name}.{number}", line)
        for name in sorted(self.circular):
            message, hint = "names itself, or a list that does", "take the wildcard out of its own list"
            yield Fault(where=f"spec.wildcards.{name}", message=message, hint=hint)

    def of_text(self, where: str, text: str) -> list[Fault]:
        """Return the faults of a prompt: its grammar, then its length as drawn."""
        marked = _MARKED.search(text) is not None
        faults = list(self._grammar(where, text)) if marked else []
        if where.endswith(NEGATIVE) and without_loras(text)[1]:
            message, hint = "names a LoRA", "a LoRA acts on the whole picture; name it in the prompt"
            faults.append(Fault(where=where, message=message, hint=hint))
        if not faults and not self.circular:
            faults += self._lengths(where, text)
        return faults

    def _grammar(self, where: str, text: str) -> Iterator[Fault]:
        yield from lora_faults(text, where=where)
        try:
            template = parse_template(text, where=where)
        except InvalidInput as refusal:
            yield from refusal.faults
            return
        for each in (template, *options_of(template)):
            found: list[Fault] = []
            with collecting(found):
                parse(blanked(without_choices(each)), where=where, offset=each.start)
            yield from found
        for wildcard in wildcards_of(template):
            if wildcard.name not in self.lists:
                yield no_list(wildcard, where=where, known=self.lists)

    def _lengths(self, where: str, text: str) -> Iterator[Fault]:
        template = parse_template(text, where=where)
        chars = self._largest(template, "chars", len)
        if chars > MAX_PROMPT_CHARS:
            message = f"has up to {chars} characters as drawn; at most {MAX_PROMPT_CHARS} are taken"
            yield Fault(where=where, message=message, hint="shorten it, or the lists that it names")
            return
        loras = self.shared_loras + self._largest(template, "loras", _lora_count)
        if loras > MAX_LORAS:
            message = f"has up to {loras} LoRAs with those of the order; at most {MAX_LORAS} are taken"
            yield Fault(where=where, message=message, hint="leave some out")
        # A token has at least one byte, so a text as short as this fits.
        if self._largest(template, "bytes", _byte_count) <= MAX_CHUNKS * CHUNK_TOKENS:
            return
        tokens = self._largest(template, "tokens", _token_count)
        if tokens > MAX_CHUNKS * CHUNK_TOKENS:
            chunks = math.ceil(tokens / CHUNK_TOKENS)
            message = f"has up to {chunks} chunks of {CHUNK_TOKENS} tokens; at most {MAX_CHUNKS} are taken"
            yield Fault(where=where, message=message, hint="shorten it; each BREAK begins a chunk")

    def _largest(self, template: PromptTemplate, name: str, cost: Cost) -> int:
        if name not in self.sums:
            self.sums[name] = _largest_of_lists(self.lists, cost)
        return largest_cost(template, cost, self.sums[name])


def _largest_of_lists(lists: Wildcards, cost: Cost) -> Mapping[str, int]:
    """Return the largest cost of a line of each list. No list may name itself."""
    found: dict[str, int] = {}

    def of(name: str) -> int:
        if name not in found:
            templates = [parse_template(line) for line in lists.get(name, ())]
            for inner in {wildcard.name for each in templates for wildcard in wildcards_of(each)}:
                of(inner)
            found[name] = max((largest_cost(each, cost, found) for each in templates), default=0)
        return found[name]

    for name, lines in lists.items():
        try:
            of(name)
        except InvalidInput:
            found[name] = max(map(cost, lines), default=0)  # the list has faults of its own
    return found


def _circular(lists: Wildcards) -> set[str]:
    """Return the lists that name themselves, or a list that does: those left when all others are taken away."""
    names: dict[str, set[str]] = {}
    for name, lines in lists.items():
        names[name] = set()
        for line in lines:
            with collecting([]):
                names[name] |= {wildcard.name for wildcard in wildcards_of(parse_template(line))} & set(lists)
    while done := {name for name, inner in names.items() if not inner & set(names)}:
        names = {name: inner for name, inner in names.items() if name not in done}
    return set(names)


def _byte_count(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass")) + CHUNK_TOKENS * len(_BREAK.findall(text))


def _token_count(text: str) -> int:
    """Return the tokens of a text; a section before a BREAK fills its last chunk."""
    *before, last = _BREAK.split(_BRACKETS.sub(" ", without_loras(text)[0]))
    filled = sum(max(1, math.ceil(token_count(each) / CHUNK_TOKENS)) for each in before)
    return filled * CHUNK_TOKENS + max(1, token_count(last))


def _lora_count(text: str) -> int:
    return len(without_loras(text)[1])


def _lists(given: object) -> dict[str, list[str]]:
    if not isinstance(given, Mapping):
        return {}
    return {
        name: [line for line in lines if isinstance(line, str)]
        for name, lines in given.items()
        if isinstance(name, str) and isinstance(lines, list | tuple)
    }


def _list(given: object) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else []
