"""The tables of a JSON file, in Markdown: for the terminal, and for the marked section of docs/benchmarks.md."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.record import DONE
from benchmarks.rig.figures import spread_words

SECTION = re.compile(r"(<!-- gpu:begin -->\n).*?(<!-- gpu:end -->)", re.DOTALL)
Found = Mapping[str, Any]


def rendered(content: Mapping[str, Any]) -> str:
    """Everything that was found, part by part. A part that failed says so, one that is missing too."""
    about = content["about"]
    facts = [about["device"]]
    if "driver" in about:
        facts += [f"{about['memory_gib']} GiB", f"driver {about['driver']}", f"CUDA {about['cuda']}"]
    facts += [f"torch {about['torch']}", f"diffusers {about['diffusers']}"]
    lines = [", ".join(facts) + ". Medians of the repetitions, with the least and the greatest.", ""]
    for name, part in PARTS.items():
        told = content["parts"].get(name)
        lines += [f"**{part.title}** ({_when(told)})", ""]
        if told is not None and "found" in told:
            lines += [*RENDER[name](told["found"]), ""]
    return "\n".join(lines).rstrip()


def write(content: Mapping[str, Any], page: Path) -> None:
    """Put the tables in the place of those before. Raises SystemExit for figures of a CPU, which mean nothing."""
    if "driver" not in content["about"]:
        raise SystemExit("these are figures of a rehearsal on a CPU, and do not belong into the docs")
    text = page.read_text(encoding="utf-8")
    if not SECTION.search(text):
        raise SystemExit(f"{page} has lost its marks <!-- gpu:begin --> and <!-- gpu:end -->")
    made = rendered(content)
    page.write_text(SECTION.sub(lambda found: f"{found[1]}{made}\n{found[2]}", text), encoding="utf-8")


def _when(told: Mapping[str, Any] | None) -> str:
    if told is None:
        return "not measured yet"
    when = f"{told['date'][:10]}, commit {told['commit']}"
    return when if told["state"] == DONE else f"failed: {told['why']}; {when}"


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    shown = [[_cell(cell) for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (list(head), ["---"] * len(head), *shown)]


def _cell(cell: Any) -> str:
    if cell is None:
        return "–"
    return spread_words(cell) if isinstance(cell, Mapping) else str(cell)


def _tests(found: Found) -> list[str]:
    return [", ".join(f"{count} {what}" for what, count in found["tests"].items())]


def _ways(found: Found, *, over: str) -> list[str]:
    ways = found["ways"]
    base = ways[over]["images_per_s"]["median"] if over in ways else None
    rows = [
        [
            name,
            way["repetitions"],
            way["step_ms"],
            way["images_per_s"],
            None if base is None else f"{way['images_per_s']['median'] / base:.2f}",
            way["peak_mib"],
        ]
        for name, way in ways.items()
    ]
    lines = _table(["way", "repetitions", "ms a step", "images/s", f"times {over}", "peak MiB"], rows)
    noticed = sorted({notice for way in ways.values() for notice in way["notices"]})
    return lines + (["", *noticed] if noticed else [])


def _steps(found: Found) -> list[str]:
    over = "example script" if "example script" in found["ways"] else "peft and autocast"
    why = found.get("script", {}).get("missing")
    note = [] if why is None else ["", f"The example script was not measured: {why.splitlines()[-1]}."]
    return _ways(found, over=over) + note


def _switched(found: Found) -> list[str]:
    """Ways that are held against the one that is off."""
    return [f"Not measured: {found['missing']}."] if "missing" in found else _ways(found, over="off")


def _memory(found: Found) -> list[str]:
    head = ["job", "peak MiB", "expected MiB", "peak over expected"]
    rows = [
        [name, job["peak_mib"], job["expected_mib"], job["peak_over_expected"]] for name, job in found["jobs"].items()
    ]
    return _table(head, rows)


def _pretrain(found: Found) -> list[str]:
    rows = [
        [resolution, name, way["images_per_s"], way["mfu"]]
        for resolution, steps in found["steps_found"].items()
        for name, way in steps["ways"].items()
    ]
    rates = [
        [resolution, told["vae"]["per_s"], told["text"]["per_s"]]
        for resolution, told in found["encoders_found"].items()
    ]
    return [
        *_table(["pixels", "steps", "images/s", "MFU"], rows),
        "",
        *_table(["pixels", "pictures/s of the VAE", "captions/s of the text encoder"], rates),
    ]


def _encoders(found: Found) -> list[str]:
    rows = [
        [name, told["per_s"], told.get("place_changes_bits"), told.get("off_one_at_a_time")]
        for name, told in found["rates"].items()
    ]
    head = ["what", "a second", "the place changes bits", "greatest difference from one at a time"]
    together = found["rows_of_the_trainer"]
    return [
        *_table(head, rows),
        "",
        f"The VAE works in {found['vae_dtype']}. The trainer encodes {together} of these pictures at a time.",
    ]


def _drawing(found: Found) -> list[str]:
    rows = [
        [size, name, cell["s_per_picture"], cell["pictures_per_s"], f"{cell['share_of_floor']['median']:.2%}"]
        for size, told in found["sizes"].items()
        for name, cell in told["figures"].items()
    ]
    ratios = [
        [size, name, ratio["clock"], ratio["mark"]]
        for size, told in found["sizes"].items()
        for name, ratio in told["ratios"].items()
    ]
    sizes = [
        [
            *(size, f"{told['size']['width']}×{told['size']['height']}", told["size"]["steps"]),
            *(told["size"]["refiner_steps"], told["rows"], f"{told['floor']['flops'] / 1e12:.4g}"),
        ]
        for size, told in found["sizes"].items()
    ]
    return [
        *_table(["pictures", "pixels", "steps", "of the refiner", "rows at a time", "TFLOP a picture"], sizes),
        "",
        *_table(["pictures", "drawn", "s a picture", "pictures/s", "of the floor"], rows),
        "",
        *_table(["pictures", "ratio of pictures/s", "found", "mark"], ratios),
    ]


RENDER: Mapping[str, Callable[[Found], list[str]]] = MappingProxyType(
    {
        "tests": _tests,
        "steps": _steps,
        "graphs": _switched,
        "compiled": _switched,
        "eight_bits": lambda found: _ways(found, over="none"),
        "memory": _memory,
        "pretrain": _pretrain,
        "encoders": _encoders,
        "drawing": _drawing,
    }
)
