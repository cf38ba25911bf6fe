"""Nodes with file systems of their own, which can be changed under them and are gone when they are."""

import os
import subprocess
from pathlib import Path

import pytest

IS_ROOT = os.geteuid() == 0
APART = ("unshare", "--mount") if IS_ROOT else ("unshare", "--user", "--map-root-user", "--mount")
ENTER = ("nsenter", "--mount") if IS_ROOT else ("nsenter", "--user", "--preserve-credentials", "--mount")
# Mounted over itself: what is open stays open, and every path leads to what cannot be written.
TURN = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1"'


def own_mounts() -> tuple[str, ...]:
    """What a node's command begins with. Skips the test, with the reason, where that is not allowed."""
    done = subprocess.run([*APART, "true"], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"may not have mounts of one's own here: {done.stderr.strip()}")
    return APART


def turn_read_only(pid: int, folder: Path) -> None:
    """From now on the process, and what it starts, cannot write below the folder."""
    subprocess.run([*ENTER, "--target", str(pid), "sh", "-c", TURN, "sh", str(folder)], check=True)
