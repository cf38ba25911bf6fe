"""Has small JPEGs made of pictures that browsers do not show, in a process apart."""

import subprocess
import sys
from pathlib import Path

from giornata.domain.errors import Unavailable
from giornata.pictures.inspection import DEFAULT_LIMITS, PictureLimits

MAKER = "giornata.pictures.inspector.preview"
START_S = 60.0
JPEG = b"\xff\xd8\xff"


def make_preview(
    path: Path, *, limits: PictureLimits = DEFAULT_LIMITS, python: str = sys.executable, timeout_s: float = 20
) -> bytes | None:
    """Return a JPEG of the picture; None where it cannot be read, or takes too much memory or time.

    Raises Unavailable when the process cannot even be started.
    """
    command = [python, "-P", "-m", MAKER, str(path), f"--max-pixels={limits.max_pixels}"]
    command += [f"--memory-bytes={limits.memory_bytes}", f"--cpu-s={limits.cpu_s}"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=START_S + timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return None
    except OSError as error:
        raise Unavailable(f"previews of pictures cannot be made: {error}") from error
    return done.stdout if done.returncode == 0 and done.stdout.startswith(JPEG) else None
