"""What sample images in the middle of training cost: `python -m benchmarks.validation`.

Starts `giornata up` with two nodes and trains one job in three ways, in turn: *without* pictures in between, with
those of `validation_steps` drawn *in process*, and *elsewhere*, by the other node. A job's time is what its attempts
are billed for; beside it stands the processor time of the engine that trained, up to the end of the job. The nodes
run on this machine. Where they share cores with each other, the server or other programs, drawing slows training down
in the first figure, which it does not on a machine of its own. The second figure shows what the trainer itself does
more. The mark is elsewhere within 2 % of without. The sheets of both ways are compared byte by byte. The trainer
draws a sheet itself that no node has begun in time, so the sheets are counted by who drew them; without one that the
other node drew, the benchmark fails.

Trains the tiny model of the tests. Prints a table, then one JSON line.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rig.figures import conclude, machine, spread, spread_words
from benchmarks.rig.installation import installation
from benchmarks.rig.processes import usage_of
from giornata.client import Client
from giornata.domain.jobs.job import JobState
from giornata.protocol.events import EventType
from giornata.protocol.jobs import Job
from giornata.protocol.specs import VALIDATE_KIND

PATIENCE_S = 900.0
POLL_S = 0.05
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
        options.steps, options.every, options.sample_steps, options.repetitions = 60, 20, 2, 1
    return options


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


def ended(client: Client, jobs: Sequence[Job]) -> list[Job]:
    """Wait until these have succeeded."""
    ends_s = time.monotonic() + PATIENCE_S
    while True:
        found = [client.get_job(job.id) for job in jobs]
        if all(job.state == "succeeded" for job in found):
            return found
        if time.monotonic() > ends_s or any(job.state == "failed" for job in found):
            sys.exit(f"jobs did not succeed: {[(job.id, job.state, job.error) for job in found]}")
        time.sleep(POLL_S)


def let_validations_end(client: Client) -> None:
    """Wait until no validation waits or is drawn any more."""
    ends_s = time.monotonic() + PATIENCE_S
    while any(job.state in {"queued", "running"} for job in client.jobs(kind=VALIDATE_KIND)):
        if time.monotonic() > ends_s:
            sys.exit("a validation does not end")
        time.sleep(POLL_S)


def engines_cpu_s(client: Client) -> dict[str, float]:
    """Processor time so far of each node's engine."""
    return {node.id: usage_of(node.engine_pid).cpu_s for node in client.nodes() if node.engine_pid is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedJob:
    """A job trained in one way: what it was billed for, the processor time of the engine that trained, and how many
    sheets other nodes drew."""

    billed_s: float
    cpu_s: float
    sheets: dict[str, str]
    drawn_elsewhere: int


def trained(client: Client, spec: dict[str, object]) -> TrainedJob:
    """Train the job, and let its sheets be drawn."""
    before = engines_cpu_s(client)
    (job,) = ended(client, [client.submit(spec)])
    after = engines_cpu_s(client)  # at once: the engine may draw the sheet that still waits
    let_validations_end(client)
    return TrainedJob(
        billed_s=sum(each.billed_s for each in job.attempts),
        cpu_s=sum(after[node] - before[node] for node in {each.node_id for each in job.attempts}),
        sheets=sheets(client, job),
        drawn_elsewhere=drawn_elsewhere(client, job),
    )


def sheets(client: Client, job: Job) -> dict[str, str]:
    """The hashes of the sheets of single steps."""
    return {each.name[-12:]: each.sha256 for each in client.artifacts(job.id) if each.name[-12:-4].isdigit()}


def drawn_elsewhere(client: Client, job: Job) -> int:
    """Count the sheets of the job that name a validation that succeeded: those that another process drew."""
    succeeded = {
        each.id for each in client.jobs(kind=VALIDATE_KIND, states=[JobState.SUCCEEDED], search=f"{job.id}@")
    }
    ready = [each.data for each in client.events(job.id) if each.type == EventType.VALIDATION_READY]
    return len({data["step"] for data in ready if data.get("validation") in succeeded})


def main(arguments: list[str]) -> int:
    options, about = options_of(arguments), machine()
    runs: dict[str, list[TrainedJob]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="giornata-load-") as name:
        home = Path(name)
        with installation(home / "data", nodes=2) as up:
            client = up.client
            spec = spec_of(options, home, client)
            ended(
                client, [client.submit({**spec, "max_train_steps": options.every, "seed": seed}) for seed in (1, 2)]
            )
            for _ in range(options.repetitions):
                for way in WAYS:
                    runs[way].append(trained(client, drawn(options, spec, way)))
    billed = {way: spread([each.billed_s for each in found]) for way, found in runs.items()}
    cpu = {way: spread([each.cpu_s for each in found]) for way, found in runs.items()}
    ratios = {way: round(each["median"] / billed["without"]["median"], 3) for way, each in billed.items()}
    cpu_ratios = {way: round(each["median"] / cpu["without"]["median"], 3) for way, each in cpu.items()}
    for way in WAYS:
        print(
            f"{way:12} {spread_words(billed[way]):>24} s {ratios[way]:8.3f} of without; trainer's processor "
            f"{spread_words(cpu[way]):>24} s {cpu_ratios[way]:8.3f} of without; {len(runs[way][-1].sheets)} sheets"
        )
    elsewhere, in_process = runs["elsewhere"][-1].sheets, runs["in process"][-1].sheets
    same = {sheet for sheet, sha256 in elsewhere.items() if in_process.get(sheet) == sha256}
    by_others = sum(each.drawn_elsewhere for each in runs["elsewhere"])
    of_all = sum(len(each.sheets) for each in runs["elsewhere"])
    print(f"{len(same)} of {len(elsewhere)} sheets from elsewhere have the bytes of those drawn in process")
    print(
        f"the other node drew {by_others} of the {of_all} sheets of {options.repetitions} jobs, the trainer the rest"
    )
    conclude(
        {
            "benchmark": "validation",
            "machine": about,
            "quick": options.quick,
            "steps": options.steps,
            "every": options.every,
            "prompts": options.prompts,
            "sample_steps": options.sample_steps,
            "seconds": billed,
            "ratios": ratios,
            "trainer_cpu_s": cpu,
            "trainer_cpu_ratios": cpu_ratios,
            "sheets": {way: len(found[-1].sheets) for way, found in runs.items()},
            "equal_sheets": len(same),
            "drawn_elsewhere": by_others,
            "sheets_of_elsewhere": of_all,
            "met": ratios["elsewhere"] <= MARK and len(same) == len(elsewhere),
            "met_by_the_trainer": cpu_ratios["elsewhere"] <= MARK,
        }
    )
    if by_others == 0:
        print("no node drew a sheet: the figures of elsewhere are those of drawing in process", file=sys.stderr)
    return 0 if by_others else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
