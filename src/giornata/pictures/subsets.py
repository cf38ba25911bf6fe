"""Combines several folders of pictures into one dataset, each with its own repeats, captions and resolution."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from giornata.domain.errors import Fault
from giornata.domain.files.datasets import MAX_REPEATS
from giornata.pictures.check import CheckedFolder, check_folder
from giornata.pictures.folder import PictureFile

TXT = ".txt"
CAPTION = ".caption"
_PLACES = ("[trigger]", "[name]")
_IN_A_FILE = "(captions stand in a file of their own)"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptParts:
    """The parts of a caption that a shuffle keeps: the first `count`, or all (None), stay while a job shuffles the
    others. `separator` stands between the parts. `mark` is the job's keep_tokens_separator."""

    count: int | None
    separator: str = ","
    mark: str = "|||"

    @property
    def words(self) -> str:
        """Describe the kept parts for a person."""
        if self.count is None:
            return "captions are not shuffled"
        return f"captions keep {self.count} {'part' if self.count == 1 else 'parts'} in front"

    def marked(self, caption: str) -> str:
        """Return the caption with a mark behind the parts that stay."""
        if self.count == 0:
            return caption
        parts = caption.split(self.separator)
        count = len(parts) if self.count is None else self.count
        kept, others = (self.separator.join(some).strip() for some in (parts[:count], parts[count:]))
        return f"{kept} {self.mark} {others}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subset:
    """One folder of several. `caption` is that of pictures without one; `prefix` and `suffix` stand before and behind
    every caption; `trigger` stands in the place of [trigger], and before captions that do not have it.
    `caption_extension` None: `.caption` where the folder has such files, and `.txt` where not. With
    `captions`, by stems of names, the pictures are those that it names, and their captions stand in it. `resolution`,
    in pixels, is that of pictures without one; None: the job's. `kept` marks in captions what is not shuffled."""

    path: Path
    repeats: int = 1
    caption: str | None = None
    caption_extension: str | None = None
    prefix: str = ""
    suffix: str = ""
    trigger: str = ""
    captions: Mapping[str, str] | None = None
    resolution: int | None = None
    kept: KeptParts | None = None


def check_subsets(
    subsets: Sequence[Subset], *, instance_prompt: str | None, minimum: int = 1, masks_into: Path | None = None
) -> CheckedFolder:
    """Read and inspect every folder. A picture that several folders hold, with one caption and resolution, has the
    sum of their repeats. Folders with several resolutions may hold it once for each."""
    names = [subset.path.resolve().name for subset in subsets]
    often, checked = Counter(names), []
    for number, (subset, name) in enumerate(zip(subsets, names, strict=True), start=1):
        label = name if often[name] == 1 else f"{name} {number}"
        into = None if masks_into is None else masks_into / str(number)
        checked.append(_check(subset, label, instance_prompt, into))
    inspections, faults = [], [fault for one in checked for fault in one.faults]
    merged = dict[tuple[str, int | None], PictureFile]()
    for one in checked:
        for item, inspection in zip(one.items, one.inspections, strict=True):
            key = item.sha256, item.resolution
            first = merged.get(key)
            if first is None:
                inspections.append(inspection)
                merged[key] = item
            elif first.caption == item.caption:
                merged[key] = replace(first, repeats=first.repeats + item.repeats)
            else:
                message = f"is the same picture as {first.name}, with another caption"
                faults.append(Fault(where=item.name, message=message, hint="delete one of the two"))
    faults += [_too_often(item) for item in merged.values() if item.repeats > MAX_REPEATS]
    if not faults and len({sha256 for sha256, _ in merged}) < minimum:
        message = f"hold {len(merged)} different pictures together; at least {minimum} are needed"
        faults.append(
            Fault(where=", ".join(str(subset.path) for subset in subsets), message=message, hint="add some")
        )
    return CheckedFolder(
        items=tuple(merged.values()),
        inspections=tuple(inspections),
        faults=tuple(faults),
        notes=tuple(note for one in checked for note in one.notes),
    )


def _too_often(item: PictureFile) -> Fault:
    message = f"is repeated {item.repeats} times; at most {MAX_REPEATS} are possible"
    return Fault(where=item.name, message=message, hint="lower the repeats")


def _check(subset: Subset, label: str, instance_prompt: str | None, into: Path | None) -> CheckedFolder:
    if into is not None:
        into.mkdir(parents=True, exist_ok=True)
    checked = check_folder(
        subset.path,
        instance_prompt=subset.caption or instance_prompt or (None if subset.captions is None else _IN_A_FILE),
        minimum=1,
        caption_ending=subset.caption_extension or _usual_extension(subset.path),
        masks_into=into,
    )
    pairs = [
        (item, inspection)
        for item, inspection in zip(checked.items, checked.inspections, strict=True)
        if subset.captions is None or Path(item.name).stem in subset.captions
    ]
    return replace(
        checked,
        items=tuple(_told(item, subset, label, instance_prompt) for item, _ in pairs),
        inspections=tuple(inspection for _, inspection in pairs),
        faults=tuple(_placed(fault, subset, label) for fault in checked.faults),
    )


def _told(item: PictureFile, subset: Subset, label: str, instance_prompt: str | None) -> PictureFile:
    """Apply the subset's settings to the picture."""
    named = None if subset.captions is None else subset.captions[Path(item.name).stem]
    caption = named or item.caption or subset.caption or (instance_prompt if subset.kept is not None else None)
    if caption is not None:
        caption = " ".join(part for part in (subset.prefix, caption, subset.suffix) if part)
        for place in _PLACES if subset.trigger else ():
            caption = caption.replace(place, subset.trigger)
        caption = caption if subset.trigger in caption else f"{subset.trigger} {caption}"
        caption = caption if subset.kept is None else subset.kept.marked(caption)
    return replace(
        item,
        name=f"{label} - {item.name}",
        caption=caption,
        repeats=item.repeats * subset.repeats,
        resolution=subset.resolution if item.resolution is None else item.resolution,
    )


def _placed(fault: Fault, subset: Subset, label: str) -> Fault:
    return fault if fault.where == str(subset.path) else replace(fault, where=f"{label} - {fault.where}")


def _usual_extension(folder: Path) -> str:
    """Return `.caption` where the folder has such files, and `.txt` where not. sd-scripts reads `.caption` by
    default, which hardly any folder has."""
    return CAPTION if folder.is_dir() and any(folder.glob(f"*{CAPTION}")) else TXT
