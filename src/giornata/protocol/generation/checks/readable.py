"""Read what can be read of an order's spec with faults, so that these hide no contradiction between other fields."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from giornata.protocol.generation.grid import MAX_SLOT_CHARS, PROMPTS, GridSpec
from giornata.protocol.generation.specs import MAX_PICTURES, GenerateSpec, OrderFields
from giornata.protocol.specs import canonical_names

Place = tuple[int | str, ...]
"""Where a fault is in a spec, as pydantic tells it."""
_MODEL = {"name": "unread"}
_PROMPT = "unread"
_AXIS = {"field": "metadata", "values": [True]}
"""Stands for the axes where none can be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """The parts of a spec that could not be read, for which something else stands.

    `settings` have their defaults, `entries` of `pictures` have a prompt alone, and `axes` are left out. Entries and
    axes are counted from 0, in the spec as it came.
    """

    settings: frozenset[str] = frozenset()
    entries: frozenset[int] = frozenset()
    axes: frozenset[int] = frozenset()

    def axis_numbers(self, axes: int) -> list[int]:
        """Return the places, in the spec as it came, of the axes that are left: so many."""
        return [number for number in range(axes + len(self.axes)) if number not in self.axes][:axes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Readable:
    """The fields of a spec in which every field is fine by itself, and what is not among them."""

    fields: dict[str, Any]
    unread: Unread = field(default_factory=Unread)

    def countable(self) -> "Readable":
        """Return fewer pictures: one of each prompt, of each entry, of each cell of axes that can be a grid's."""
        fields = self.fields | {"num_images_per_prompt": 1}
        if "axes" in fields:
            axes, gone = _axes_of_a_grid(fields, self.unread)
            settings, entries = self.unread.settings, self.unread.entries
            unread = Unread(settings=settings, entries=entries, axes=gone)
            return Readable(fields=fields | {"axes": axes or [_AXIS]}, unread=unread)
        prompts = fields.get("prompts") or [_PROMPT]
        room = MAX_PICTURES - (1 if isinstance(prompts, str) else len(prompts))
        entries_left = [{"prompt": _PROMPT, **each} for each in fields.get("pictures", ())][:room]
        return Readable(fields=fields | {"prompts": prompts, "pictures": entries_left}, unread=self.unread)


def readable(
    expected: type[OrderFields], spec: Mapping[str, Any], places: Iterable[Place], *, unread: Collection[str] = ()
) -> Readable:
    """Return what is left of a spec without the fields, entries and axes at these places. What has to be there is
    made up. `unread` are settings that the spec lacks because they could not be read.
    """
    named = canonical_names(expected, spec)[0]
    lists: dict[str, set[int]] = {"pictures": set(), "axes": set()}
    lost = {_own_name(expected, name) for name in unread} - named.keys()
    for place in places:
        head, inside = _own_name(expected, str(place[0])), place[1] if len(place) > 1 else None
        if head in lists and isinstance(inside, int):
            lists[head].add(inside)
        else:
            lost.add(head)
    fields = {name: value for name, value in named.items() if name in expected.model_fields and name not in lost}
    fields.setdefault("model", _MODEL)
    if "pictures" in fields:
        entries = enumerate(fields["pictures"])
        fields["pictures"] = [{"prompt": _PROMPT} if at in lists["pictures"] else each for at, each in entries]
    if issubclass(expected, GenerateSpec) and lost & {"prompts", "pictures"}:
        fields.setdefault("prompts", [_PROMPT])
    if issubclass(expected, GridSpec):
        fields.setdefault("prompt", _PROMPT)
        axes = list(fields.get("axes", ()))
        lists["axes"] |= _axes_of_unread(axes, lists["axes"], lost)
        fields["axes"] = [axis for at, axis in enumerate(axes) if at not in lists["axes"]] or [_AXIS]
    gone = {name: frozenset(found) for name, found in lists.items()}
    return Readable(
        fields=fields, unread=Unread(settings=frozenset(lost), entries=gone["pictures"], axes=gone["axes"])
    )


def _own_name(expected: type[OrderFields], alias: str) -> str:
    return next(iter(canonical_names(expected, {alias: None})[0]))


def _axes_of_unread(axes: Iterable[Any], faulty: Collection[int], lost: Collection[str]) -> set[int]:
    """Return the axes that change a part of something unread, such as `loras.0.weight` of unread LoRAs."""
    found = set()
    for number, axis in enumerate(axes):
        if number in faulty:
            continue
        head, dot, _ = (axis.get("field") or "").partition(".")
        if (dot and head in lost) or (axis.get("slot") is not None and not set(PROMPTS).isdisjoint(lost)):
            found.add(number)
    return found


def _axes_of_a_grid(fields: Mapping[str, Any], unread: Unread) -> tuple[list[Mapping[str, Any]], frozenset[int]]:
    """Return axes without second ones of a name, and without slots that no prompt has; with fewer values, where they
    make too many pictures. Beside them are the places of all that are left out.
    """
    text, room = "".join(fields.get(name, "") for name in PROMPTS), MAX_PICTURES
    most_texts = MAX_SLOT_CHARS // max(1, len(text)) // len(fields["axes"])
    kept: dict[str, Mapping[str, Any]] = {}
    gone = set(unread.axes)
    for number, axis in zip(unread.axis_numbers(len(fields["axes"])), fields["axes"], strict=True):
        slot = axis.get("slot")
        name = slot or axis["field"]
        if name in kept or (slot is not None and f"{{{slot}}}" not in text):
            gone.add(number)
            continue
        values = axis["values"][: min(room, most_texts) if slot is not None else room]
        room //= len(values)
        kept[name] = {**axis, "values": values}
    return list(kept.values()), frozenset(gone)
