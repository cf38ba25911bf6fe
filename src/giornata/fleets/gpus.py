"""The GPUs of this machine, as far as nodes are to have one each."""

import subprocess
from collections.abc import Callable, Mapping, Sequence

Runner = Callable[[Sequence[str]], str]
"""Runs a command; its standard output. Raises OSError or CalledProcessError."""

ASKING_S = 30.0
LIST_GPUS = ("nvidia-smi", "--query-gpu=index", "--format=csv,noheader")
CHOSEN = "CUDA_VISIBLE_DEVICES"


def run_command(command: Sequence[str]) -> str:
    """With a bound on how long it may take."""
    done = subprocess.run(
        list(command), check=True, capture_output=True, text=True, timeout=ASKING_S, stdin=subprocess.DEVNULL
    )
    return done.stdout


def gpus_of_machine(
    wanted: int | None, environment: Mapping[str, str], *, run: Runner = run_command
) -> tuple[str, ...]:
    """What CUDA_VISIBLE_DEVICES may be for one node each: those that this process may use, at most `wanted`.

    None: all that there are. Nothing when there are none or nobody cares: then nodes see what this process sees.
    """
    if wanted == 0:
        return ()
    found = _visible(environment.get(CHOSEN)) if CHOSEN in environment else _listed(run)
    return found if wanted is None else found[:wanted]


def _visible(chosen: str | None) -> tuple[str, ...]:
    names = (each.strip() for each in (chosen or "").split(","))
    return tuple(each for each in names if each and not each.startswith("-"))


def _listed(run: Runner) -> tuple[str, ...]:
    try:
        said = run(LIST_GPUS)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in said.splitlines() if line.strip().isdigit())
