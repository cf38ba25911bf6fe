"""Writes what the server's image installs, each file with its SHA-256: `python -m tools.image_lock`.

pip refuses every file with another hash. The versions are those of constraints.txt; a new one needs a new lock.
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
LOCK = ROOT / "deploy" / "docker" / "server.lock"
EXTRAS = ("server", "postgres", "s3", "salad", "kubernetes")
PYTHON = "3.11"
MACHINES = ("x86_64", "aarch64")
# The newest first, as pip prefers them; bookworm has glibc 2.36.
TAGS = ("manylinux_2_34", "manylinux_2_28", "manylinux_2_17", "manylinux2014")
HEAD = f"""# What the image of the server installs, with Python {PYTHON} on Linux ({", ".join(MACHINES)}).
# Written by python -m tools.image_lock; do not edit.
"""


def requirements() -> list[str]:
    """Return what the server needs of others, and what its package is built with."""
    parsed = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = parsed["project"]
    extras = [line for extra in EXTRAS for line in project["optional-dependencies"][extra]]
    return [*parsed["build-system"]["requires"], *project["dependencies"], *extras]


def report_for(machine: str) -> Mapping[str, Any]:
    """Return pip's report of what it would install on this machine. Nothing is installed."""
    tags = [word for tag in TAGS for word in ("--platform", f"{tag}_{machine}")]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = ["install", "--dry-run", "--ignore-installed", "--quiet", "--disable-pip-version-check"]
        words += ["--only-binary=:all:", "--implementation", "cp", "--python-version", PYTHON, *tags]
        words += ["--target", folder, "--report", str(report), "-c", str(ROOT / "constraints.txt"), *requirements()]
        subprocess.run([sys.executable, "-m", "pip", *words], check=True)
        return dict(json.loads(report.read_text()))


def locked(reports: Iterator[Mapping[str, Any]]) -> str:
    """Return the lock: each distribution with the hash of its file on each machine."""
    hashes: dict[tuple[str, str], set[str]] = defaultdict(set)
    for report in reports:
        for each in report["install"]:
            named = each["metadata"]["name"].lower().replace("_", "-").replace(".", "-"), each["metadata"]["version"]
            hashes[named].add(each["download_info"]["archive_info"]["hashes"]["sha256"])
    lines = [
        f"{name}=={version}" + "".join(f" \\\n    --hash=sha256:{each}" for each in sorted(found))
        for (name, version), found in sorted(hashes.items())
    ]
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    LOCK.write_text(locked(report_for(machine) for machine in MACHINES))
