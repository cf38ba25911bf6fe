"""Pictures of SDXL by the workload that nodes run, against a script of diffusers: by benchmarks/generate.py."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.record import ROOT
from benchmarks.gpu.settings import GpuSettings

COMPILED_CELLS = ("joined", "attention")
LORA_CELLS = ("attention", "convolutions")
PLAIN_CELLS = ("script", "cold", "alone", "joined")


def drawing(settings: GpuSettings, _: Path) -> dict[str, Any]:
    """Measure each size in a process of its own, and print what is known after each. The first size has LoRAs too,
    and is measured with compiled kernels at last: to make them may take what is left of the part's time. Raises
    SystemExit with the last words of one that fails."""
    first, *others = settings.drawn_sizes
    runs = [
        (first, first, "off", (*PLAIN_CELLS, *LORA_CELLS)),
        *((size, size, "off", PLAIN_CELLS) for size in others),
        (f"{first}, compiled", first, settings.drawn_compile, COMPILED_CELLS),
    ]
    found: dict[str, Any] = {"sizes": {}}
    for name, size, compiled, cells in runs:
        told = _measured(settings, size, compiled, cells)
        found["sizes"][name] = {each: told[each] for each in ("size", "rows", "floor", "figures", "ratios")}
        print(json.dumps(found), flush=True)
    return found


def _measured(settings: GpuSettings, size: str, compiled: str, cells: Sequence[str]) -> dict[str, Any]:
    command = [
        *(sys.executable, "-m", "benchmarks.generate", "--device", settings.device, "--size", size),
        *("--rows", str(settings.drawn_rows), "--scripted", "1", "--repetitions", str(settings.repetitions)),
        *("--compile", compiled, "--cells", *cells),
    ]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"benchmarks/generate.py ended with {ran.returncode}:\n{ran.stderr[-3000:]}")
    told: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return told
