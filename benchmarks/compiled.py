"""What compiled kernels take, and what they save: `python -m benchmarks.compiled`.

Five ways of the same steps (one adapter of rank 16, random latents, float32), each in a process of its own: plain;
kernels into an empty directory; once more with that directory; with the artifacts that torch saved of it, into
another empty directory; and with resnets too. A repetition goes through all ways before the next begins. Seconds are
of CPU, user and system, of the process and its compilers: on a machine with other work they say more than a clock.
Prints a table, then one JSON line.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

WAYS = ("plain", "cold", "same directory", "artifacts", "resnets too")
ARTIFACTS = "saved.bin"


def child(way: str, size: str, directory: Path, *, rounds: int, batch: int, side: int) -> dict[str, Any]:
    """One way in this process, whose kernels lie in `directory`."""
    import torch

    from benchmarks.joint import _step, unet_of
    from giornata.diffusion.adapter.slots import AdapterSlots
    from giornata.diffusion.base import regional
    from giornata.diffusion.draws.determinism import fix_determinism
    from giornata.diffusion.optim.slot_optimizer import SlotOptimizer
    from giornata.protocol.specs import TrainSpec

    fix_determinism(1)
    kinds = regional.EVERYWHERE if way == "resnets too" else regional.REGIONS["cpu"]
    unet = unet_of(size, device=torch.device("cpu"), dtype=torch.float32, side=side)
    base: Any = SimpleNamespace(unet=unet, text_encoders=(), device=unet.device, dtype=unet.dtype)
    spec = TrainSpec(model="x", dataset="ds_1", seed=1)  # type: ignore[call-arg]
    with ExitStack() as stack:
        slots = stack.enter_context(AdapterSlots(base, spec, count=1))
        optimizers = [SlotOptimizer(slots.assign(0, spec), spec)]
        slots.set_width(1)
        step = _step(unet, slots, optimizers, batch=batch, side=side)
        if way != "plain":
            stack.enter_context(regional.compiled(unet, kinds))
        if way == "artifacts":
            torch.compiler.load_cache_artifacts((directory.parent / ARTIFACTS).read_bytes())
        first_s = _cpu_s(lambda: step(0))
        _cpu_s(lambda: step(1))
        rest_s = _cpu_s(lambda: [step(number) for number in range(2, 2 + rounds)])
        made = torch.compiler.save_cache_artifacts() if way == "cold" else None
    if made is not None:
        (directory.parent / ARTIFACTS).write_bytes(made[0])
    return {
        "regions": len(regional.regions(unet, kinds)),
        "kinds": regional.kinds_of_region(unet, kinds),
        "first_s": first_s,
        "step_s": rest_s / rounds,
        "artifact_bytes": None if made is None else len(made[0]),
        "disk_bytes": sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()),
    }


def _cpu_s(work: Callable[[], Any]) -> float:
    before = _used_s()
    work()
    return _used_s() - before


def _used_s() -> float:
    of = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in of)


def measure(
    size: str, *, ways: Sequence[str], repetitions: int, options: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """Every way, so often; interleaved."""
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for _ in range(repetitions):
        with tempfile.TemporaryDirectory() as root:
            for way in ways:
                place = {"same directory": "cold"}.get(way, way.replace(" ", "-"))
                found[way].append(_run(way, size, Path(root) / place, options))
    return found


def _run(way: str, size: str, directory: Path, options: Sequence[str]) -> dict[str, Any]:
    directory.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.compiled", "--child", way, "--sizes", size]
    command += ["--directory", str(directory), *options]
    environment = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(directory),
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
    }
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if ran.returncode:
        raise SystemExit(ran.stderr[-3000:])
    said: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    print(size, way, said, file=sys.stderr, flush=True)
    return said


def table(size: str, found: dict[str, list[dict[str, Any]]]) -> str:
    """Seconds of the first step, milliseconds of later ones, and their ratio to plain steps; each with its spread."""
    one = next(iter(found.values()))[0]
    head = f"{size}: {one['regions']} regions of {one['kinds']} kinds"
    lines = [head, f"{'':20}{'first step, s':>22}{'later, ms':>24}   plain / this"]
    for way, runs in found.items():
        ratios = [plain["step_s"] / run["step_s"] for plain, run in zip(found["plain"], runs, strict=True)]
        first = _spread([run["first_s"] for run in runs], "{:.1f}")
        later = _spread([1000 * run["step_s"] for run in runs], "{:.1f}")
        lines.append(f"{way:20}{first:>22}{later:>24}   {_spread(ratios, '{:.2f}')}")
    return "\n".join(lines)


def _spread(values: Sequence[float], form: str) -> str:
    median, least, most = (form.format(each) for each in (statistics.median(values), min(values), max(values)))
    return median if len(values) == 1 else f"{median} ({least} to {most})"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", default="tiny,medium")
    parser.add_argument("--ways", default=",".join(WAYS), help="of these, in this order: the later need the earlier")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--side", type=int, default=8, help="of the latents")
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        counts = {"rounds": options.rounds, "batch": options.batch, "side": options.side}
        print(json.dumps(child(options.child, options.sizes, options.directory, **counts)))
        return
    passed = ["--rounds", str(options.rounds), "--batch", str(options.batch), "--side", str(options.side)]
    results = {}
    for size in options.sizes.split(","):
        results[size] = measure(size, ways=options.ways.split(","), repetitions=options.repetitions, options=passed)
        print(table(size, results[size]), flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
