"""Pictures of SDXL by the workload that nodes run, against a script of diffusers: by benchmarks/generate.py."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu.record import ROOT
from benchmarks.gpu.settings import Settings

LORA_CELLS = ("attention", "convolutions")
PLAIN_CELLS = ("script", "cold", "alone", "joined")


def drawing(settings: Settings, _: Path) -> dict[str, Any]:
    """Measure each size in a process of its own, and print what is known after each. The first size has LoRAs too.
    Raises SystemExit with the last words of one that fails."""
    found: dict[str, Any] = {"sizes": {}}
    for place, size in enumerate(settings.drawn_sizes):
        command = [
            *(sys.executable, "-m", "benchmarks.generate", "--device", settings.device, "--size", size),
            *("--rows", str(settings.drawn_rows), "--scripted", "1", "--repetitions", str(settings.repetitions)),
            *("--cells", *PLAIN_CELLS, *(LORA_CELLS if place == 0 else ())),
        ]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if ran.returncode:
            sys.exit(f"benchmarks/generate.py ended with {ran.returncode}:\n{ran.stderr[-3000:]}")
        told = json.loads(ran.stdout.splitlines()[-1])
        found["sizes"][size] = {name: told[name] for name in ("size", "rows", "floor", "figures", "ratios")}
        print(json.dumps(found), flush=True)
    return found
