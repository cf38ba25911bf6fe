r"""Read the weights of a prompt, in A1111's attention grammar.

    (a)        weight 1.1
    (a:1.3)    weight 1.3
    [a]        weight 1/1.1
    ((a) b)    weights of brackets inside brackets multiply
    BREAK      the next section begins; spaces around it go
    \( \) \:   the character itself, as for every character of `SPECIAL`

A bracket without its partner and a broken weight are faults with their place; A1111 takes both as text. A colon
inside round brackets has to begin a weight, so `(a: b)` is a fault and `(a\: b)` is text.
"""

import re
from dataclasses import dataclass, field

from giornata.domain.errors import Fault, InvalidInput

SPECIAL = r"()[]{}<>|:\_"
"""Characters that a backslash turns into text."""
STRONGER = 1.1
"""Weight of round brackets without a number. Square brackets divide by it."""
MAX_WEIGHT = 10.0
MAX_DEPTH = 50
MOST_FAULTS = 20
"""Faults of one prompt that are told."""
PARTNER = {")": "(", "]": "["}

_TOKEN = re.compile(r"\\[()\[\]{}<>|:\\_]|\bBREAK\b|(?:(?!\bBREAK\b)[^\\()\[\]:|])+|.", re.DOTALL)
_WEIGHT = re.compile(r":\s*([+-]?(?:\d+\.?\d*|\.\d+))\s*\)")
_NOT_PLAIN = re.compile(r"[()\[\]\\]|\bBREAK\b")
_SPECIAL_CHARACTER = re.compile(r"[()\[\]{}<>|:\\_]")
_ESCAPE = re.compile(r"\\([()\[\]{}<>|:\\_])")


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a prompt, and how much weight its tokens have."""

    text: str
    weight: float = 1.0


Section = tuple[Segment, ...]
"""The segments between two BREAKs. Neighbors differ in weight; an empty section has no segment."""


def parse(text: str, *, where: str = "prompt", offset: int = 0) -> tuple[Section, ...]:
    """Return the sections of a prompt, at least one. Raises InvalidInput with every fault.

    A fault names the character, counted from 1. `offset` is the number of characters before `text`.
    """
    if _NOT_PLAIN.search(text) is None:
        return ((Segment(text),) if text else (),)
    reader = _Reader(text=text, where=where, offset=offset)
    reader.read()
    if reader.faults:
        raise InvalidInput(reader.faults)
    last = len(reader.sections) - 1
    numbered = enumerate(reader.sections)
    return tuple(_section(parts, first=number == 0, last=number == last) for number, parts in numbered)


def escaped(text: str) -> str:
    """Return a prompt that stands for this very text, unless the text has the word BREAK."""
    return _SPECIAL_CHARACTER.sub(lambda found: "\\" + found[0], text)


def unescaped(text: str) -> str:
    """Return a text whose escaped characters stand for themselves."""
    return _ESCAPE.sub(lambda found: found[1], text)


@dataclass(slots=True)
class _WeightedText:
    text: str
    weight: float = 1.0


@dataclass(slots=True)
class _Bracket:
    character: str
    place: int
    section: int
    part: int


@dataclass(slots=True, kw_only=True)
class _Reader:
    text: str
    where: str
    offset: int
    faults: list[Fault] = field(default_factory=list)
    sections: list[list[_WeightedText]] = field(default_factory=lambda: [[]])
    open: list[_Bracket] = field(default_factory=list)

    def read(self) -> None:
        place = 0
        while found := _TOKEN.match(self.text, place):
            place = self._piece(found[0], place)
            if len(self.open) > MAX_DEPTH:
                self._fault(place - 1, f"more than {MAX_DEPTH} brackets are open", "use a weight, such as (word:1.5)")
                return
        for bracket in self.open:
            self._fault(bracket.place, f"{bracket.character} is not closed", _escape_hint(bracket.character))

    def _piece(self, piece: str, place: int) -> int:
        """Take one piece of text, and return the place behind it."""
        end = place + len(piece)
        inside = self.open[-1].character if self.open else ""
        if piece in {"(", "["}:
            self._open(piece, place)
        elif piece in PARTNER:
            self._close(piece, place)
        elif piece == ":" and inside == "(":
            return self._weight(place)
        elif inside == "[" and piece in {":", "|"}:
            hint = f"prompts that change while a picture is drawn are not offered; write \\{piece} for the character"
            self._fault(place, f"{piece} inside square brackets", hint)
        elif piece == "BREAK":
            self.sections.append([])
        else:
            self.sections[-1].append(_WeightedText(piece[1:] if len(piece) > 1 and piece[0] == "\\" else piece))
        return end

    def _open(self, character: str, place: int) -> None:
        self.open.append(_Bracket(character, place, len(self.sections) - 1, len(self.sections[-1])))

    def _close(self, character: str, place: int) -> None:
        if not self.open:
            self._fault(place, f"{character} closes nothing", _escape_hint(character))
            return
        bracket = self.open.pop()
        if bracket.character != PARTNER[character]:
            self._fault(place, f"{character} closes {bracket.character}", _escape_hint(character))
        self._multiply(bracket, STRONGER if character == ")" else 1 / STRONGER)

    def _weight(self, place: int) -> int:
        found = _WEIGHT.match(self.text, place)
        if found is None:
            hint = "a weight is a number before the closing bracket, such as (word:1.3); write \\: for a colon"
            self._fault(place, "the colon begins no weight", hint)
            return place + 1
        self._multiply(self.open.pop(), float(found[1]))
        return found.end()

    def _multiply(self, bracket: _Bracket, weight: float) -> None:
        """Multiply the weights of all parts since the bracket."""
        parts = list(self.sections[bracket.section][bracket.part :])
        parts += [part for section in self.sections[bracket.section + 1 :] for part in section]
        for part in parts:
            part.weight *= weight
        if abs(weight) > MAX_WEIGHT or any(abs(part.weight) > MAX_WEIGHT for part in parts):
            message = f"the weight is above {MAX_WEIGHT:g} or below -{MAX_WEIGHT:g}"
            self._fault(bracket.place, message, "usual weights lie between 0.5 and 1.5")

    def _fault(self, place: int, message: str, hint: str) -> None:
        if len(self.faults) == MOST_FAULTS:
            return
        said = f"character {self.offset + place + 1}: {message}"
        self.faults.append(Fault(where=self.where, message=said, hint=hint))


def _escape_hint(character: str) -> str:
    return f"write \\{character} for the character itself"


def _section(parts: list[_WeightedText], *, first: bool, last: bool) -> Section:
    """Join neighbors of equal weight. Spaces beside a BREAK go."""
    merged: list[_WeightedText] = []
    for part in parts:
        if merged and merged[-1].weight == part.weight:
            merged[-1].text += part.text
        else:
            merged.append(_WeightedText(part.text, part.weight))
    if merged and not first:
        merged[0].text = merged[0].text.lstrip()
    if merged and not last:
        merged[-1].text = merged[-1].text.rstrip()
    return tuple(Segment(part.text, part.weight) for part in merged if part.text)
