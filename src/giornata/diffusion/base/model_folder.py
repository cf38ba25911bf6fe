"""Checks that a folder in diffusers layout holds a whole base model. Standard library only: loads no torch.

The module tells two kinds of trouble apart. A *layout* fault means that the folder is not a model that can be
trained, wherever it lies: the job asked for the wrong thing. A *damage* fault means that the folder is such a model,
but that bytes of this copy are missing or cut short: another machine may hold a good copy.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from giornata.diffusion.families import FAMILIES, SD15, SDXL, SDXL_REFINER, Family, family_of_index
from giornata.domain.errors import Fault

FIELD = "spec.pretrained_model_name_or_path"
VAE_STEM = "diffusion_pytorch_model"
ONLY_THESE = "only " + " and ".join(family.title for family in FAMILIES) + " models can be trained"
MAX_HEADER_BYTES = 100_000_000
BEGINNING_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFaults:
    """The faults of a model folder: `layout` is the job's fault, `damage` that of this copy."""

    layout: tuple[Fault, ...] = ()
    damage: tuple[Fault, ...] = ()

    def __iter__(self) -> Iterator[Fault]:
        yield from self.layout
        yield from self.damage


def check_model_folder(path: Path, *, variant: str | None = None, field: str = FIELD) -> list[Fault]:
    """Return everything that keeps `path` from being used as a base; empty when it is fine. Reads no weights."""
    return list(inspect_model_folder(path, variant=variant, field=field))


def inspect_model_folder(
    path: Path, *, variant: str | None = None, field: str = FIELD, refiner: bool = False
) -> FolderFaults:
    """Check the folder as `check_model_folder` does, but keep the two kinds of faults apart. With `refiner` it may
    hold a refiner, too."""
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        hint = "give a folder in diffusers layout, with model_index.json at its top, or a .safetensors checkpoint"
        return FolderFaults(layout=(Fault(where=field, message=f"{path} {what}", hint=hint),))
    index, damage = _json_object(path / "model_index.json")
    if index is None:
        if damage:
            return FolderFaults(damage=tuple(damage))
        hint = "give a folder in diffusers layout, or a single .safetensors checkpoint by its file's name"
        missing = Fault(where=field, message=f"{path} holds no model_index.json", hint=hint)
        return FolderFaults(layout=(missing,))
    family = _nearest(index, refiner=refiner)
    layout = list(_index_faults(index, family, field))
    layout += _unet_faults(path, family, field, damage)
    missing_names = [name for name in family.components if not (path / name).is_dir()]
    layout += [_folders_missing(path, missing_names, family, field)] if missing_names else []
    for name, stem in family.weight_stems.items():
        if not (path / name).is_dir():
            continue
        wrong, broken = component_faults(path / name, stem=stem, variant=variant, field=field)
        layout += wrong
        damage += broken
    return FolderFaults(layout=tuple(layout), damage=tuple(damage))


def component_faults(
    folder: Path, *, stem: str, variant: str | None, field: str = FIELD
) -> tuple[list[Fault], list[Fault]]:
    """Return (layout, damage) faults of one component's weight files, from their names, sizes and headers."""
    infix = f".{variant}" if variant else ""
    single = folder / f"{stem}{infix}.safetensors"
    index_path = folder / f"{stem}.safetensors.index{infix}.json"
    if single.is_file():
        return [], damaged(single)
    if index_path.is_file():
        index, damage = _json_object(index_path)
        shards = sorted(set((index or {}).get("weight_map", {}).values()))
        return [], damage + [fault for shard in shards for fault in damaged(folder / shard)]
    held = sorted(file.name for file in folder.iterdir() if file.suffix in {".safetensors", ".bin", ".pt"})
    message = f"{folder.name}/ holds no {single.name}, but {', '.join(held) or 'no weights at all'}"
    hint = "weights are read from safetensors files only, and `variant` has to name one that is there"
    return [Fault(where=field, message=message, hint=hint)], []


def damaged(path: Path) -> list[Fault]:
    """Return faults when a safetensors file is missing, cut short or without a readable header. Reads the header
    only."""
    hint = "fetch the file again"
    try:
        size_bytes = path.stat().st_size
        with path.open("rb") as file:
            beginning = file.read(BEGINNING_BYTES)
            if instead := _something_else(path, beginning):
                return [instead]
            header_bytes = int.from_bytes(beginning[:8], "little")
            if not 2 <= header_bytes <= min(MAX_HEADER_BYTES, size_bytes - 8):
                return [Fault(where=str(path), message="is not a safetensors file, or is cut short", hint=hint)]
            file.seek(8)
            header = json.loads(file.read(header_bytes))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    except OSError as error:
        return [Fault(where=str(path), message=f"cannot be read: {error.strerror}", hint=hint)]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return [Fault(where=str(path), message="has an unreadable safetensors header", hint=hint)]
    expected_bytes = 8 + header_bytes + max(ends, default=0)
    if size_bytes == expected_bytes:
        return []
    message = f"has {size_bytes} bytes where its header promises {expected_bytes}"
    return [Fault(where=str(path), message=message, hint=hint)]


def _something_else(path: Path, beginning: bytes) -> Fault | None:
    """Return a fault when the file is a web page or a Git LFS pointer instead of weights."""
    text = beginning.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        hint = "the address was that of a page, or asks for a login: fetch the file itself"
        return Fault(where=str(path), message="is a web page, not a safetensors file", hint=hint)
    if text.startswith(b"version https://git-lfs"):
        hint = "fetch what it stands for: git lfs pull"
        return Fault(where=str(path), message="is a pointer of Git LFS, not the weights", hint=hint)
    return None


def family_of_folder(path: Path, *, refiner: bool = False) -> Family:
    """Return the family of a folder that was found to be fine. Raises ValueError for one that was not."""
    index, _ = _json_object(path / "model_index.json")
    if refiner and index is not None and _is_refiner(index):
        return SDXL_REFINER
    family = family_of_index((index or {}).get("_class_name"))
    if family is None:
        raise ValueError(f"{path} is not a model that can be trained")
    return family


def _nearest(index: dict[str, Any], *, refiner: bool) -> Family:
    """Return the family that the folder names, or the one that was probably meant."""
    if refiner and _is_refiner(index):
        return SDXL_REFINER
    return family_of_index(index.get("_class_name")) or (SDXL if "text_encoder_2" in index else SD15)


def _is_refiner(index: dict[str, Any]) -> bool:
    """Return True for SDXL's refiner, which lacks the first of SDXL's text encoders."""
    first = index.get("text_encoder")
    return index.get("_class_name") in SDXL_REFINER.pipelines and (first is None or first == [None, None])


def _index_faults(index: dict[str, Any], family: Family, field: str) -> Iterator[Fault]:
    found = index.get("_class_name")
    if found not in family.pipelines:
        wanted = " or ".join(each.pipeline for each in FAMILIES)
        yield Fault(where=field, message=f"model_index.json says {found}, not {wanted}", hint=ONLY_THESE)
    for each in family.text_encoders:
        entry = index.get(each.folder)
        name = entry[1] if isinstance(entry, list) and len(entry) == 2 else entry
        if name != each.class_name:
            yield Fault(where=field, message=f"{each.folder} is {name}, not {each.class_name}", hint=ONLY_THESE)


def _unet_faults(path: Path, family: Family, field: str, damage: list[Fault]) -> Iterator[Fault]:
    config, broken = _json_object(path / "unet" / "config.json")
    damage += broken
    if config is None:
        return
    for key, value in family.unet_settings.items():
        found = config.get(key)
        if (found or None) != (value or None):
            message = f"the UNet's {key} is {found!r}, where {family.title} has {value!r}"
            yield Fault(where=field, message=message, hint=ONLY_THESE)


def _folders_missing(path: Path, names: list[str], family: Family, field: str) -> Fault:
    listed, hint = ", ".join(f"{name}/" for name in names), f"{family.title} has " + ", ".join(family.components)
    return Fault(where=field, message=f"{path} holds no {listed}", hint=hint)


def _json_object(path: Path) -> tuple[dict[str, Any] | None, list[Fault]]:
    """Return the object in a JSON file. (None, []) when there is no such file."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None, []
    except (OSError, ValueError) as error:
        return None, [Fault(where=str(path), message=f"cannot be read: {error}", hint="fetch the file again")]
    if not isinstance(value, dict):
        return None, [Fault(where=str(path), message="is not a JSON object", hint="fetch the file again")]
    return value, []
