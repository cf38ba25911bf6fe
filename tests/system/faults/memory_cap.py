"""A control group of the kernel's with little memory: whatever needs more in it is killed by the kernel."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.system.conftest import until

ROOT = Path("/sys/fs/cgroup")
# What version 1 and version 2 of the kernel's interface call the bound, the bound with swap, and the count of kills.
V1 = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.oom_control")
V2 = ("memory.max", "memory.swap.max", "memory.events")


@dataclass(frozen=True, kw_only=True)
class MemoryCap:
    """A group; `entering` has a command run in it."""

    group: Path
    account: str

    def entering(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """The same command, in the group with all that it starts."""
        return ("sh", "-c", f'echo $$ > "{self.group}/cgroup.procs" && exec "$@"', "sh", *command)

    def kills(self) -> int:
        """How many processes the kernel has killed in it."""
        lines = (self.group / self.account).read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


@contextmanager
def memory_cap(most_bytes: int) -> Iterator[MemoryCap]:
    """A group below this process's own. Skips the test, with the reason, where that is not allowed."""
    try:
        group, (most, swap, account) = _new_group()
    except OSError as error:
        pytest.skip(f"may not make a control group for memory here: {error}")
    try:
        try:
            (group / most).write_text(str(most_bytes))
        except OSError as error:
            pytest.skip(f"may not bound the memory of a control group here: {error}")
        if (group / swap).exists():
            (group / swap).write_text(str(most_bytes if most == V1[0] else 0))
        yield MemoryCap(group=group, account=account)
    finally:
        until(lambda: _removed(group), f"{group} to be empty")


def _new_group() -> tuple[Path, tuple[str, str, str]]:
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    own = {names: path for _, names, path in lines}
    for names, path in own.items():
        if "memory" in names.split(","):
            parent, files = ROOT / "memory" / path.lstrip("/"), V1
            break
    else:
        parent, files = ROOT / own.get("", "/").lstrip("/"), V2
    group = parent / f"giornata-test-{time.monotonic_ns()}"
    group.mkdir()
    return group, files


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False
    return True
