"""Writes what the images install, each file with its SHA-256: `python -m tools.image_lock [server] [node]`.

pip refuses every file with another hash. The versions are those of constraints.txt; a new one needs new locks.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / "deploy" / "docker"
EXTRAS = {"server": ("server", "postgres", "s3", "salad", "kubernetes"), "node": ("train",)}
PYTHON = "3.11"
MACHINES = ("x86_64", "aarch64")
# The newest first, as pip prefers them; bookworm has glibc 2.36.
TAGS = (*(f"manylinux_2_{minor}" for minor in range(36, 16, -1)), "manylinux2014")
HEAD = f"""# What the image of the {{image}} installs, with Python {PYTHON} on Linux ({", ".join(MACHINES)}).
# Written by python -m tools.image_lock; do not edit.
"""


def requirements(image: str) -> list[str]:
    """Return what the image of this name needs of others, and what our package is built with."""
    parsed = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = parsed["project"]
    extras = [line for extra in EXTRAS[image] for line in project["optional-dependencies"][extra]]
    return [*parsed["build-system"]["requires"], *project["dependencies"], *extras]


def exact_pins() -> str:
    """Return the lines of constraints.txt without leave for local versions, such as torch's builds for CPUs alone."""
    return (ROOT / "constraints.txt").read_text().replace("==", "===")


def report_for(image: str, machine: str) -> Mapping[str, Any]:
    """Return pip's report of what the image would install on this machine. Nothing is installed."""
    tags = [word for tag in TAGS for word in ("--platform", f"{tag}_{machine}")]
    with tempfile.TemporaryDirectory() as folder:
        report, pins = Path(folder) / "report.json", Path(folder) / "pins.txt"
        pins.write_text(exact_pins())
        words = ["install", "--dry-run", "--ignore-installed", "--quiet", "--disable-pip-version-check"]
        words += ["--only-binary=:all:", "--implementation", "cp", "--python-version", PYTHON, *tags]
        words += ["--target", folder, "--report", str(report), "-c", str(pins), *requirements(image)]
        subprocess.run([sys.executable, "-m", "pip", *words], check=True)
        return dict(json.loads(report.read_text()))


def locked(image: str, reports: Iterator[Mapping[str, Any]]) -> str:
    """Return the lock of the image: each distribution with the hash of its file on each machine."""
    hashes: dict[tuple[str, str], set[str]] = defaultdict(set)
    for report in reports:
        for each in report["install"]:
            named = each["metadata"]["name"].lower().replace("_", "-").replace(".", "-"), each["metadata"]["version"]
            hashes[named].add(each["download_info"]["archive_info"]["hashes"]["sha256"])
    lines = [
        f"{name}=={version}" + "".join(f" \\\n    --hash=sha256:{each}" for each in sorted(found))
        for (name, version), found in sorted(hashes.items())
    ]
    return HEAD.format(image=image) + "\n".join(lines) + "\n"


if __name__ == "__main__":
    for each in sys.argv[1:] or EXTRAS:
        (LOCKS / f"{each}.lock").write_text(locked(each, (report_for(each, machine) for machine in MACHINES)))
