"""Sorts the names of files in a training folder and its subfolders into kinds. Opens no file."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from giornata.domain.errors import Fault
from giornata.domain.files.datasets import some_names
from giornata.pictures.caption_text import printable
from giornata.pictures.kohya_folders import KohyaFolder
from giornata.pictures.metadata import METADATA_NAME

# Also kinds that inspection will refuse: to skip a user's photographs in silence would be worse.
PICTURE_SUFFIXES = frozenset(
    {
        ".jpg",
        ".jpeg",
        ".jpe",
        ".jfif",
        ".png",
        ".apng",
        ".webp",
        ".bmp",
        ".tif",
        ".tiff",
        ".gif",
        ".avif",
        ".heic",
        ".heif",
        ".hif",
        ".jxl",
        ".jp2",
        ".svg",
    }
)
LITTER = frozenset({"thumbs.db", "desktop.ini", "ehthumbs.db", "__macosx"})
MASK_ENDING = "-masklabel"
DEEPEST = 8  # a link may lead back to a folder above it


@dataclass(slots=True, kw_only=True)
class Listing:
    """The sorted names of one folder. `prefix` stands before the names of its files when people and the platform are
    told of them."""

    path: Path
    prefix: str = ""
    pictures: list[Path] = field(default_factory=list)
    masks: list[Path] = field(default_factory=list)
    texts: list[Path] = field(default_factory=list)
    metadata: Path | None = None
    folders: list[Path] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    kohya: KohyaFolder | None = None

    def fault(self, where: str, message: str, hint: str = "") -> None:
        self.faults.append(Fault(where=where, message=message, hint=hint))

    def name_of(self, name: str) -> str:
        """Return the name by which people and the platform are told of a file in this folder."""
        return self.prefix + name


def list_folder(directory: Path, *, caption_ending: str, prefix: str = "") -> Listing | None:
    """Sort the folder's names into kinds. None when it cannot be listed."""
    try:
        paths = sorted(directory.iterdir(), key=lambda path: path.name)
    except OSError:
        return None
    listing = Listing(path=directory, prefix=prefix)
    others = [path.name for path in paths if not _is_hidden(path) and not _sorted_in(path, listing, caption_ending)]
    if others:
        what = f"neither pictures nor captions ({caption_ending}, {METADATA_NAME}), and not read"
        where = f"{printable(prefix.removesuffix(' - '))}: " if prefix else ""
        listing.notes.append(f"{where}{what}: {some_names([*map(printable, others)])}")
    return listing


def _is_hidden(path: Path) -> bool:
    return path.name.startswith(".") or path.name.lower() in LITTER


def _sorted_in(path: Path, listing: Listing, caption_ending: str) -> bool:
    """Add the path to the listing; return True when it is something to read, or a folder."""
    suffix = path.suffix.lower()
    if path.is_dir():
        listing.folders.append(path)
    elif suffix == ".png" and path.stem.endswith(MASK_ENDING):
        listing.masks.append(path)
    elif suffix in PICTURE_SUFFIXES:
        listing.pictures.append(path)
    elif suffix == caption_ending.lower():
        listing.texts.append(path)
    elif path.name.lower() == METADATA_NAME:
        listing.metadata = path
    else:
        return False
    return True


def list_below(listing: Listing, *, caption_ending: str, depth: int = 1) -> Iterator[Listing]:
    """Yield every folder below that can be listed, each before the folders below it."""
    for path in listing.folders if depth <= DEEPEST else ():
        if depth > 1 and path.is_symlink():
            continue
        below = list_folder(path, caption_ending=caption_ending, prefix=f"{listing.prefix}{path.name} - ")
        if below is None:
            listing.fault(printable(listing.name_of(path.name)), "cannot be listed", "check its permissions")
            continue
        yield below
        yield from list_below(below, caption_ending=caption_ending, depth=depth + 1)
