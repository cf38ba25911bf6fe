"""`giornata lora`: looks at LoRA files, resizes and merges them."""

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from giornata.cli.options import JsonFlag
from giornata.cli.tools.model import run_model_code
from giornata.cli.ui.output import Output, reporting
from giornata.cli.ui.text import size
from giornata.domain.errors import Fault, GiornataError, InvalidInput

lora = typer.Typer(help="Inspect, resize and merge LoRA files.", no_args_is_help=True)

LoraPath = Annotated[Path, typer.Argument(metavar="FILE", help="LoRA file (.safetensors).", show_default=False)]
OutPath = Annotated[Path, typer.Option("--output", "-o", help="File to write (.safetensors).", show_default=False)]


class FileDtype(StrEnum):
    """Precision of the numbers in the file."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


class ResizeMethod(StrEnum):
    """The method that finds each layer's rank."""

    FIXED = "fixed"
    SV_RATIO = "sv_ratio"
    SV_CUMULATIVE = "sv_cumulative"
    SV_FRO = "sv_fro"


DtypeOption = Annotated[
    FileDtype | None,
    typer.Option(help="Data type of the weights in the new file. Default: as before.", show_default=False),
]


def register(app: typer.Typer) -> None:
    """Add the command group `lora` to `app`."""
    app.add_typer(lora, name="lora")


@lora.command()
def inspect(file: LoraPath, as_json: JsonFlag = False) -> None:
    """Show layers, ranks and origin of a LoRA file."""
    with reporting(as_json) as out:
        report = _tool({"command": "inspect", "file": str(file)})
        for name, value in _inspection(report):
            out.say(f"{name:<14}{value}")
        out.result(report)


@lora.command()
def resize(
    file: LoraPath,
    output: OutPath,
    rank: Annotated[
        int, typer.Option(metavar="N", min=1, max=4096, help="Maximum rank of a layer.", show_default=False)
    ],
    method: Annotated[
        ResizeMethod,
        typer.Option(help="Choice of each layer's rank. fixed: --rank. sv_*: as --target asks for, at most --rank."),
    ] = ResizeMethod.FIXED,
    target: Annotated[
        float | None,
        typer.Option(
            help="sv_fro, sv_cumulative: share of the weight to keep, 0 to 1. sv_ratio: largest over smallest "
            "singular value.",
            show_default=False,
        ),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(help="Alpha of the new file. Default: the value that keeps the strength.", show_default=False),
    ] = None,
    dtype: DtypeOption = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Reduce a LoRA to a lower rank, for a smaller file.

    The command keeps the largest singular values: no LoRA of that rank is nearer to the old one.
    """
    with reporting(as_json) as out:
        _refuse([*_resize_faults(method, target, alpha), *_output_faults(output, force)])
        cut = {"rank": rank, "method": method, "target": target or 0.0}
        report = _tool(
            {"command": "resize", "file": str(file), "out": str(output), **cut, "alpha": alpha, "dtype": dtype}
        )
        _say_written(out, report, before=report["ranks_before"])
        out.result(report)


@lora.command()
def merge(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE[=WEIGHT]...",
            help="LoRAs of one base model, each with its weight. Default weight: 1.",
            show_default=False,
        ),
    ],
    output: OutPath,
    rank: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=4096,
            help="Maximum rank of the sum, which is then an approximation. Default: exact.",
            show_default=False,
        ),
    ] = None,
    dtype: DtypeOption = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Merge LoRAs into one: the sum of each times its weight.

    The sum is exact unless --rank limits its rank.
    """
    with reporting(as_json) as out:
        weighted = [_weighted(each) for each in files]
        _refuse([*_merge_faults(weighted), *_output_faults(output, force)])
        report = _tool({"command": "merge", "files": weighted, "out": str(output), "rank": rank, "dtype": dtype})
        _say_written(out, report)
        out.result(report)


# ---- the input ----


def _weighted(word: str) -> tuple[str, float]:
    """`FILE=0.7`; a file's name may hold an equals sign itself."""
    path, equals, weight = word.rpartition("=")
    try:
        return (path, float(weight)) if equals else (word, 1.0)
    except ValueError:
        return word, 1.0


def _resize_faults(method: ResizeMethod, target: float | None, alpha: float | None) -> list[Fault]:
    faults = []
    if (method is ResizeMethod.FIXED) != (target is None):
        message = "means nothing with --method fixed" if target is not None else f"is missing for --method {method}"
        faults.append(Fault(where="--target", message=message, hint="such as: --method sv_fro --target 0.9"))
    elif target is not None and method is ResizeMethod.SV_RATIO and not target >= 1:
        faults.append(Fault(where="--target", message="is below 1", hint="10 keeps values down to a tenth"))
    elif target is not None and method is not ResizeMethod.SV_RATIO and not 0 < target <= 1:
        faults.append(Fault(where="--target", message="is not between 0 and 1", hint="0.9 keeps 90 %"))
    if alpha is not None and not (alpha > 0 and math.isfinite(alpha)):
        faults.append(Fault(where="--alpha", message="is not above 0", hint="leave it out to keep the strength"))
    return faults


def _merge_faults(weighted: Sequence[tuple[str, float]]) -> list[Fault]:
    return [
        Fault(where=path, message=f"has the weight {weight}", hint="a number such as 0.7")
        for path, weight in weighted
        if not math.isfinite(weight) or weight == 0
    ]


def _output_faults(output: Path, force: bool) -> list[Fault]:
    if output.suffix != ".safetensors":
        return [
            Fault(
                where="--output", message=f"{output} is not a .safetensors file", hint="such as: -o out.safetensors"
            )
        ]
    if not output.resolve().parent.is_dir():
        return [Fault(where="--output", message=f"there is no folder {output.parent}", hint="make it first")]
    if output.exists() and not force:
        return [Fault(where="--output", message=f"{output} is there already", hint="add --force to write over it")]
    return []


def _refuse(faults: Sequence[Fault]) -> None:
    if faults:
        raise InvalidInput(faults)


# ---- the tool, and what it says ----


def _tool(request: Mapping[str, Any]) -> dict[str, Any]:
    """Run the tool in a process of its own, and read its report. Raises InvalidInput with the faults in that."""
    with tempfile.TemporaryDirectory(prefix="giornata-") as folder:
        path = Path(folder) / "report.json"
        try:
            run_model_code("giornata.diffusion.files.lora_tool", [str(path), json.dumps(request)])
        except GiornataError:
            if not path.is_file():
                raise
        report: dict[str, Any] = json.loads(path.read_bytes())
    if "faults" in report:
        raise InvalidInput(Fault(**each) for each in report["faults"])
    return report


def _inspection(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    layers = ", ".join(f"{part} {count}" for part, count in report["layers"].items())
    rows = [
        ("file", f"{report['file']}  {size(report['size_bytes'])}"),
        ("sha256", report["sha256"]),
        ("kind", f"{report['kind']}, {report['naming']} names, {report['dtype']}"),
        ("layers", f"{layers}  ({report['parameters']:,} parameters)"),
        ("rank", _spread(report["ranks"])),
        ("alpha", _spread(report["alphas"])),
        ("strength", f"{report['norm']:.4g} in all; rank {report['rank_for_90_percent']} keeps 90 % of every layer"),
        *(
            ("" if place else "strongest", f"{each['norm']:.3g}  {each['layer']}")
            for place, each in enumerate(report["strongest"])
        ),
    ]
    if report["embeddings"]:
        rows.append(("tokens", ", ".join(report["embeddings"])))
    return [*rows, *report["facts"].items()]


def _spread(counts: Mapping[str, int]) -> str:
    """`16`, or `4 (12 layers), 8 (3 layers)`, or the ends of a long list."""
    words = list(counts)
    if len(words) <= 1:
        return "".join(words)
    if len(words) <= 4:
        return ", ".join(f"{word} ({count} layers)" for word, count in counts.items())
    return f"{words[0]} to {words[-1]} ({len(words)} different)"


def _say_written(out: Output, report: Mapping[str, Any], *, before: Mapping[str, int] | None = None) -> None:
    out.say(f"{report['file']}  {size(report['size_bytes'])}")
    was = f", before {_spread(before)}" if before is not None else ""
    out.say(f"  {report['layers']} layers of rank {_spread(report['ranks'])}{was}")
    kept = report["kept_norm"]
    out.say(f"  kept {kept['mean']:.1%} of the norm on average, {kept['least']:.1%} at least")
