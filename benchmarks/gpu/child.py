"""The process of one part: `python -m gpu.child PART SETTINGS FOLDER`. Its last line is JSON: what the part found."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.gpu.record import ROOT
from benchmarks.gpu.settings import GpuSettings, settings_from
from giornata.diffusion.draws.determinism import let_libraries_repeat


def tests(_: GpuSettings, home: Path) -> dict[str, Any]:
    """tests/gpu; without a GPU each is skipped. Raises SystemExit with what failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider", "tests/gpu"]
    ran = subprocess.run(
        [*command, "--basetemp", str(home / "pytest")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    last = ran.stdout.strip().splitlines()[-1] if ran.stdout.strip() else ""
    counts = {name: int(count) for count, name in re.findall(r"(\d+) (passed|failed|skipped|errors?)", last)}
    if ran.returncode:
        sys.exit(f"tests/gpu: {last}\n{ran.stdout[-4000:]}{ran.stderr[-1000:]}")
    return {"tests": counts}


def pretrain(settings: GpuSettings, home: Path) -> dict[str, Any]:
    """Steps and encoders by benchmarks/pretrain.py. Raises SystemExit with its last words."""
    out = home / "pretrain.json"
    command = [
        *(sys.executable, "-m", "benchmarks.pretrain", "--device", settings.device),
        *("--size", settings.pretrain_size, "--parts", "steps", "encoders", "--methods", "all but FSDP2"),
        *("--resolutions", *map(str, settings.resolutions), "--rounds", str(settings.rounds), "--json", str(out)),
    ]
    if settings.device == "cpu":
        command[command.index("all but FSDP2")] = "baseline"  # which compiles nothing
        command.append("--quick")
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"benchmarks/pretrain.py ended with {ran.returncode}:\n{ran.stderr[-3000:]}")
    told = json.loads(out.read_text(encoding="utf-8"))
    return {name: told[name] for name in ("steps_found", "encoders_found", "plan")}


def _training(name: str) -> Callable[[GpuSettings, Path], dict[str, Any]]:
    def part(settings: GpuSettings, home: Path) -> dict[str, Any]:
        from benchmarks.gpu import training

        made: dict[str, Any] = getattr(training, name)(settings, home)
        return made

    return part


def _drawing(settings: GpuSettings, home: Path) -> dict[str, Any]:
    from benchmarks.gpu.drawing import drawing

    return drawing(settings, home)


def _encoders(settings: GpuSettings, home: Path) -> dict[str, Any]:
    from benchmarks.gpu.encoders import encoders

    return encoders(settings, home)


RUN: Mapping[str, Callable[[GpuSettings, Path], dict[str, Any]]] = MappingProxyType(
    {
        "tests": tests,
        **{name: _training(name) for name in ("steps", "graphs", "compiled", "eight_bits", "memory")},
        "pretrain": pretrain,
        "encoders": _encoders,
        "drawing": _drawing,
    }
)


def main(arguments: Sequence[str]) -> None:
    """Carry out one part, which writes into an empty folder."""
    name, told, home = arguments
    settings = settings_from(json.loads(told))
    if name not in {"tests", "pretrain", "drawing"}:  # these start processes of their own, which do the same
        let_libraries_repeat(os.environ)
        from giornata.engine.device import prepare_device

        prepare_device(settings.device, 1)
    print(json.dumps(RUN[name](settings, Path(home))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
