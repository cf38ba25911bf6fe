"""The JSON file: on what everything was measured, and what each part found. Written after each part."""

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.rig.figures import machine

ROOT = Path(__file__).parents[2]
DONE, FAILED = "done", "failed"


class DeviceRecord:
    """What is known so far, of one device: another device needs another file."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self.path = path
        self.content: dict[str, Any] = {"benchmark": "gpu", "about": dict(about), "parts": {}}
        if path.exists():
            self.content = json.loads(path.read_text(encoding="utf-8"))
            before, now = self.content["about"]["device"], about["device"]
            if before != now:
                raise SystemExit(f"{path} was measured on {before}, and this is {now}: name another file (--json)")

    @property
    def parts(self) -> dict[str, dict[str, Any]]:
        """By their names: state, seconds, found or why, date, commit, settings."""
        parts: dict[str, dict[str, Any]] = self.content["parts"]
        return parts

    def is_done(self, part: str) -> bool:
        """Whether the part was carried out, and did not fail."""
        return self.parts.get(part, {}).get("state") == DONE

    def note(self, part: str, **found: Any) -> None:
        """Write down what came of a part."""
        self.parts[part] = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit(), **found}
        aside = self.path.with_name(self.path.name + ".part")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")
        aside.replace(self.path)


def about(device: str) -> dict[str, Any]:
    """The machine, the driver and the libraries. Raises SystemExit where there is no such device."""
    facts = {"host": machine(), "torch": version("torch"), "diffusers": version("diffusers")}
    if device == "cpu":
        return {"device": f"a CPU ({platform.machine()})", **facts}
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA device; `make gpu DEVICE=cpu` rehearses on a CPU")
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "capability": f"{properties.major}.{properties.minor}",
        "driver": _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        **facts,
    }


def commit() -> str:
    """Of the working tree, with a + where it differs from it; `unknown` outside of git."""
    found = _said("git", "-C", str(ROOT), "describe", "--always", "--abbrev=12", "--dirty=+")
    return found or os.environ.get("GIORNATA_COMMIT", "unknown")


def _said(*command: str) -> str | None:
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ran.stdout.strip().splitlines()[0] if ran.returncode == 0 and ran.stdout.strip() else None
