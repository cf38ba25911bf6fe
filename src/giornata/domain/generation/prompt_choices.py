r"""Draw the choices of a prompt: `{a|b}`, `{2::a|b}` with weights, and `__name__` for a line of a list.

Options and lines may have choices of their own. `\{`, `\|` and `\_` are text. A drawn prompt has no choice left, and
keeps its brackets and escapes, which `prompt_grammar` reads.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate

from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.named_draws import drawn_integer, drawn_share

MAX_DEPTH = 20
MAX_CHANCE = 1e6
Wildcards = Mapping[str, Sequence[str]]

_NAME = r"[A-Za-z0-9]+(?:[_/ .-][A-Za-z0-9]+)*"
WILDCARD_NAME = re.compile(_NAME)
_TOKEN = re.compile(
    rf"\\[()\[\]{{}}<>|:\\_]|[{{}}|]|__(?P<wildcard>{_NAME})__|(?:[^\\{{}}|_]|_(?!_))+|_+?(?=__{_NAME}__)|_+|.",
    re.DOTALL,
)
_CHOICE = re.compile(rf"[{{}}]|__{_NAME}__")
_OPTION_WEIGHT = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)::")
_SEVERAL = re.compile(r"\s*\d*(?:-\d*)?\$\$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wildcard:
    """A place for a line of the list of this name. `start` and `end` are places in the source."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTemplate:
    """A prompt with its choices, or one option of a choice. `start` is its place in the source."""

    parts: tuple["str | Wildcard | PromptChoice", ...]
    source: str
    start: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptChoice:
    """Options of which one is drawn. `weights` are their chances, not yet divided by the sum."""

    options: tuple[PromptTemplate, ...]
    weights: tuple[float, ...]
    start: int
    end: int


def has_choices(prompt: str) -> bool:
    """Say whether the prompt may have something to draw. A prompt without is drawn as it is."""
    return _CHOICE.search(prompt) is not None


@lru_cache(maxsize=256)
def parse_template(prompt: str, *, where: str = "prompt") -> PromptTemplate:
    """Return the prompt with its choices. Raises InvalidInput with every fault of its braces."""
    if not has_choices(prompt):
        return PromptTemplate(parts=(prompt,) if prompt else (), source=prompt)
    reader = _TemplateReader(text=prompt, where=where)
    template = reader.read()
    if reader.faults:
        raise InvalidInput(reader.faults)
    return template


def draw_prompt(prompt: str, *, seed: int, purpose: str, wildcards: Wildcards) -> str:
    """Return the prompt as drawn: a function of the arguments alone. Raises InvalidInput for a broken prompt, and
    for a wildcard without a list.
    """
    if not has_choices(prompt):
        return prompt
    return "".join(_Drawing(seed=seed, purpose=purpose, wildcards=wildcards).texts(parse_template(prompt)))


@dataclass(slots=True, kw_only=True)
class _Drawing:
    seed: int
    purpose: str
    wildcards: Wildcards
    count: int = 0
    """Choices drawn so far, the counter of the next draw."""

    def texts(self, template: PromptTemplate, depth: int = 0) -> Iterator[str]:
        for part in template.parts:
            if isinstance(part, str):
                yield part
            elif isinstance(part, PromptChoice):
                yield from self.texts(part.options[self._place(part.weights)], depth)
            else:
                yield from self._line(part, depth)

    def _line(self, wildcard: Wildcard, depth: int) -> Iterator[str]:
        lines = self.wildcards.get(wildcard.name)
        if not lines or depth == MAX_DEPTH:
            raise InvalidInput([no_list(wildcard, where=self.purpose, known=self.wildcards)])
        self.count += 1
        place = drawn_integer(self.seed, self.purpose, self.count, below=len(lines))
        yield from self.texts(parse_template(lines[place]), depth + 1)

    def _place(self, weights: tuple[float, ...]) -> int:
        self.count += 1
        if len(set(weights)) == 1:
            return drawn_integer(self.seed, self.purpose, self.count, below=len(weights))
        sums = list(accumulate(weights))
        drawn = drawn_share(self.seed, self.purpose, self.count) * sums[-1]
        likely = [place for place, weight in enumerate(weights) if weight > 0]
        return next((place for place in likely if drawn < sums[place]), likely[-1])


def no_list(wildcard: Wildcard, *, where: str, known: Wildcards) -> Fault:
    """Return the fault of a wildcard without a list."""
    message = f"character {wildcard.start + 1}: there is no list for __{wildcard.name}__"
    lists = ", ".join(sorted(known)[:10])
    hint = f"lists are {lists}" if lists else "give lists as wildcards, such as {color: [red, blue]}"
    return Fault(where=where, message=message, hint=f"{hint}; write \\_\\_ for the characters")


@dataclass(slots=True)
class _OpenChoice:
    start: int
    options: list[PromptTemplate] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class _TemplateReader:
    text: str
    where: str
    faults: list[Fault] = field(default_factory=list)
    place: int = 0

    def read(self) -> PromptTemplate:
        parts = self._parts(None, 0)
        return PromptTemplate(parts=parts, source=self.text)

    def _parts(self, choice: _OpenChoice | None, depth: int) -> tuple[str | Wildcard | PromptChoice, ...]:
        """Read up to the end of an option, or of the prompt where no choice is open."""
        parts: list[str | Wildcard | PromptChoice] = []
        while found := _TOKEN.match(self.text, self.place):
            piece = found[0]
            if choice is not None and piece in {"|", "}"}:
                break
            self.place = found.end()
            if piece == "{":
                parts.append(self._choice(found.start(), depth + 1))
            elif found["wildcard"] is not None:
                parts.append(Wildcard(name=found["wildcard"], start=found.start(), end=found.end()))
            elif piece == "}":
                self._fault(found.start(), "} closes nothing", "write \\} for the character itself")
            elif parts and isinstance(parts[-1], str):
                parts[-1] += piece
            else:
                parts.append(piece)
        return tuple(parts)

    def _choice(self, start: int, depth: int) -> PromptChoice:
        choice = _OpenChoice(start)
        if depth > MAX_DEPTH:
            self._fault(start, f"choices are nested more than {MAX_DEPTH} deep", "choose from a list of wildcards")
            self.place = len(self.text)
        while self.place <= len(self.text):
            self._option(choice, depth)
            closing = self.text[self.place : self.place + 1]
            self.place += 1
            if closing == "}":
                break
            if not closing:
                self._fault(start, "{ is not closed", "write \\{ for the character itself")
                self.place = len(self.text) + 1
        if max(choice.weights) > MAX_CHANCE:
            self._fault(start, f"a weight is above {MAX_CHANCE:g}", "weights are relative, such as {2::a|b}")
        if not any(choice.weights):
            self._fault(start, "no option has a chance", "one weight has to be above 0, such as {2::a|b}")
            choice.weights = [1.0] * len(choice.options)
        options, weights = tuple(choice.options), tuple(choice.weights)
        return PromptChoice(options=options, weights=weights, start=start, end=self.place)

    def _option(self, choice: _OpenChoice, depth: int) -> None:
        weight = _OPTION_WEIGHT.match(self.text, self.place)
        if _SEVERAL.match(self.text, self.place):
            self._fault(self.place, "$$ chooses several options", "one option is drawn; write {a|b}, {a|b}")
        start = self.place = self.place if weight is None else weight.end()
        parts = self._parts(choice, depth)
        choice.options.append(PromptTemplate(parts=parts, source=self.text[start : self.place], start=start))
        choice.weights.append(1.0 if weight is None else float(weight[1]))

    def _fault(self, place: int, message: str, hint: str) -> None:
        self.faults.append(Fault(where=self.where, message=f"character {place + 1}: {message}", hint=hint))


def without_choices(template: PromptTemplate) -> str:
    """Return the source with a letter for each character of its choices, so that places stay and brackets count."""
    texts = []
    place = template.start
    for part in template.parts:
        if not isinstance(part, str):
            texts += [
                template.source[place - template.start : part.start - template.start],
                "x" * (part.end - part.start),
            ]
            place = part.end
    return "".join([*texts, template.source[place - template.start :]])


def options_of(template: PromptTemplate) -> Iterator[PromptTemplate]:
    """Yield every option of every choice, the inner ones too."""
    for part in template.parts:
        for option in part.options if isinstance(part, PromptChoice) else ():
            yield option
            yield from options_of(option)


def wildcards_of(template: PromptTemplate) -> Iterator[Wildcard]:
    """Yield the wildcards of a prompt, those of its options too."""
    for each in (template, *options_of(template)):
        yield from (part for part in each.parts if isinstance(part, Wildcard))


Cost = Callable[[str], int]


def largest_cost(template: PromptTemplate, cost: Cost, lists: Mapping[str, int]) -> int:
    """Return the largest sum of `cost` over the texts that can be drawn. `lists` has the largest of each list."""
    total = 0
    for part in template.parts:
        if isinstance(part, str):
            total += cost(part)
        elif isinstance(part, Wildcard):
            total += lists.get(part.name, 0)
        else:
            total += max(largest_cost(option, cost, lists) for option in part.options)
    return total
