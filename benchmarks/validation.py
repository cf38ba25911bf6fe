"""What sample images in the middle of training cost: `python -m benchmarks.validation`.

Starts `giornata up` with two nodes and trains one job in three ways, in turn: *without* pictures in between, with
those of `validation_steps` drawn *in process*, and *elsewhere*, by the other node. A job's time is what its attempts
are billed for. The nodes run on this machine. Where they share cores with each other, the server or other programs,
drawing slows training down, which it does not on a machine of its own; so read the ratio beside the number of cores
and the load. The mark is elsewhere within 2 % of without. The sheets of both ways are compared byte by byte. Trains
the tiny model of the tests. Prints a table, then one JSON line.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.rig.figures import conclude, machine, spread, spread_words
from giornata.client import Client
from giornata.protocol.jobs import Job
from giornata.protocol.specs import VALIDATE_KIND

PATIENCE_S = 900.0
POLL_S = 0.2
MARK = 1.02
WAYS = ("without", "in process", "elsewhere")


def options_of(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=100, help="steps between two sheets")
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--sample-steps", type=int, default=10)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes; the figures mean little")
    options = parser.parse_args(arguments)
    if options.quick:
        options.steps, options.every, options.sample_steps, options.repetitions = 40, 20, 2, 1
    return options


@contextlib.contextmanager
def installation(data: Path) -> Iterator[Client]:
    """A real `giornata up` with two nodes."""
    command = [sys.executable, "-m", "giornata", "up", "--port", "0", "--data", str(data), "--nodes", "2"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIORNATA_")}
    with (data.parent / "up.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=clean)
    try:
        file, ends_s = data / "server.json", time.monotonic() + 120
        while not file.exists():
            if process.poll() is not None or time.monotonic() > ends_s:
                sys.exit(f"the server did not start:\n{(data.parent / 'up.log').read_text()}")
            time.sleep(POLL_S)
        yield Client(json.loads(file.read_text())["url"], (data / "admin.key").read_text().strip())
    finally:
        process.terminate()
        process.wait(120)


def spec_of(options: argparse.Namespace, home: Path, client: Client) -> dict[str, object]:
    """The job that draws at its end only, as all of them do."""
    model, pictures = home / "tiny", home / "pictures"
    for module, *arguments in (
        ("tiny_model", str(model)),
        ("drawings", "teal-heart", str(pictures), "--count", "4", "--size", "64"),
    ):
        subprocess.run([sys.executable, "-m", f"giornata.diffusion.tiny.{module}", *arguments], check=True)
    return {
        "pretrained_model_name_or_path": str(model),
        "dataset": client.dataset_from_folder(pictures, instance_prompt="a drawing of sks").id,
        "instance_prompt": "a drawing of sks",
        "resolution": 64,
        "max_train_steps": options.steps,
        "checkpointing_steps": options.every,  # in each way, so that the ways differ in the pictures alone
        "sample_prompts": [f"a drawing of sks, number {number}" for number in range(options.prompts)],
        "sample_steps": options.sample_steps,
        "seed": 0,
    }


def drawn(options: argparse.Namespace, spec: dict[str, object], way: str) -> dict[str, object]:
    """The job that is drawn in this way."""
    if way == "without":
        return spec
    return {**spec, "validation_steps": options.every, "validation_by": "fleet" if way == "elsewhere" else "process"}


def settled(client: Client, jobs: Sequence[Job]) -> list[Job]:
    """Wait until these have succeeded, and no validation waits any more."""
    ends_s = time.monotonic() + PATIENCE_S
    while True:
        found = [client.get_job(job.id) for job in jobs]
        waiting = [job for job in client.jobs(kind=VALIDATE_KIND) if job.state in {"queued", "running"}]
        if all(job.state == "succeeded" for job in found) and not waiting:
            return found
        if time.monotonic() > ends_s or any(job.state == "failed" for job in found):
            sys.exit(f"jobs did not succeed: {[(job.id, job.state, job.error) for job in found]}")
        time.sleep(POLL_S)


def sheets(client: Client, job: Job) -> dict[str, str]:
    """The hashes of the sheets of single steps."""
    return {each.name[-12:]: each.sha256 for each in client.artifacts(job.id) if each.name[-12:-4].isdigit()}


def main(arguments: list[str]) -> int:
    options, about = options_of(arguments), machine()
    times_s: dict[str, list[float]] = {way: [] for way in WAYS}
    found: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory(prefix="giornata-load-") as name:
        home = Path(name)
        with installation(home / "data") as client:
            spec = spec_of(options, home, client)
            warm = [client.submit({**spec, "max_train_steps": options.every, "seed": seed}) for seed in (1, 2)]
            settled(client, warm)
            for _ in range(options.repetitions):
                for way in WAYS:
                    (job,) = settled(client, [client.submit(drawn(options, spec, way))])
                    times_s[way].append(sum(each.billed_s for each in job.attempts))
                    found[way] = sheets(client, job)
    spreads = {way: spread(each) for way, each in times_s.items()}
    ratios = {way: round(each["median"] / spreads["without"]["median"], 3) for way, each in spreads.items()}
    for way in WAYS:
        words = f"{len(found[way])} sheets"
        print(f"{way:12} {spread_words(spreads[way]):>24} s {ratios[way]:8.3f} of without  {words}")
    same = {sheet for sheet, sha256 in found["elsewhere"].items() if found["in process"].get(sheet) == sha256}
    print(f"{len(same)} of {len(found['elsewhere'])} sheets from elsewhere have the bytes of those drawn in process")
    conclude(
        {
            "benchmark": "validation",
            "machine": about,
            "quick": options.quick,
            "steps": options.steps,
            "every": options.every,
            "prompts": options.prompts,
            "sample_steps": options.sample_steps,
            "seconds": spreads,
            "ratios": ratios,
            "sheets": {way: len(each) for way, each in found.items()},
            "equal_sheets": len(same),
            "met": ratios["elsewhere"] <= MARK and len(same) == len(found["elsewhere"]),
        }
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
