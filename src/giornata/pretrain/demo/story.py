"""All of pre-training on this machine, with a trainer killed in each phase: `giornata pretrain demo`.

Draws captioned pictures with broken ones among them, ingests and encodes them, trains through two phases, and counts
what was trained. Each stage is the program that users run, in a process of its own.

    config.toml            what was run: `giornata pretrain eval config.toml` and the others take it
    source/ shards/        the data as they came, and as they were ingested
    work/                  latents, checkpoints, metrics and trace
    loss.png samples.png   what it learned
    report.json            the last line of `--json`
"""

import argparse
import json
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from giornata.domain.errors import Fault, GiornataError, InvalidInput
from giornata.pretrain.data.example_data import Example, write_example
from giornata.pretrain.demo.config import ODDITIES, ROWS, SIDE_PX, demo_toml
from giornata.pretrain.demo.kills import Kill, killing
from giornata.pretrain.recipes import read_config
from giornata.pretrain.run_storage import run_storage
from giornata.pretrain.training.metrics_log import metrics_of
from giornata.protocol.pretraining import PretrainConfig

MARK = ".giornata-pretrain-demo"
"""A folder that holds this was made by the demo, and may be emptied by it."""
ENDS = 10
"""Steps whose mean is the loss at the beginning and at the end: that of a single step depends on its noise."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """What the programs reported."""

    example: Example
    ingested: dict[str, Any]
    trained: dict[str, Any]
    kills: Sequence[Kill]


def demo(folder: Path, *, say: Say) -> dict[str, Any]:
    """Everything; `folder` is emptied first. Raises InvalidInput when it is somebody else's, GiornataError when a
    stage fails. Returns the report: `ok` says whether all was as it had to be."""
    prepare(folder)
    path = folder / "config.toml"
    path.write_text(demo_toml(folder), encoding="utf-8")
    config = read_config(str(path))
    stages = _stages(folder, path, config, say)
    rows = list(metrics_of(run_storage(config)))
    say("drawing the loss and samples")
    from giornata.pretrain.demo.charts import draw_losses
    from giornata.pretrain.demo.samples import draw_samples

    draw_losses(folder / "loss.png", rows, stages.kills, config)
    draw_samples(folder / "samples.png", config)
    report = verdict(
        stages.example.refused, stages.ingested, stages.trained, stages.kills, rows=rows, phases=len(config.phases)
    )
    report |= {"loss_png": str(folder / "loss.png"), "samples_png": str(folder / "samples.png")}
    report["cpu_s"] = round(cpu_s(), 1)
    (folder / "report.json").write_text(json.dumps(report) + "\n", encoding="utf-8")
    return report


def verdict(
    refused: Mapping[str, int],
    ingested: Mapping[str, Any],
    trained: Mapping[str, Any],
    kills: Sequence[Kill],
    *,
    rows: Sequence[Mapping[str, float]],
    phases: int,
) -> dict[str, Any]:
    """The report. `refused` is what was put in (reason to rows), `ingested` and `trained` what the programs say,
    `rows` the metrics by step. `ok`: nothing is wrong; what is, stands in `faults_found`."""
    found = {reason: count for reason, count in ingested["quarantined"].items() if count}
    losses = [row["loss"] for row in rows if row.get("loss") is not None]
    judged = [row["validation_loss"] for row in rows if row.get("validation_loss") is not None]
    faults = list(_faults(refused, found, trained, kills, phases))
    return {
        "rows": ingested["rows"],
        "kept": ingested["kept"],
        "quarantined": sum(found.values()),
        "quarantine": dict(sorted(found.items())),
        **{name: trained[name] for name in ("planned", "trained_once", "repeated", "missed", "unreadable")},
        "kills": len(kills),
        "killed": [{"phase": kill.phase, "step": kill.step} for kill in kills],
        "undone": trained["undone"],
        "attempts": trained["attempts"],
        "steps": trained["steps"],
        "loss_first": _mean(losses[:ENDS]),
        "loss_last": _mean(losses[-ENDS:]),
        "validation_loss_first": judged[0] if judged else None,
        "validation_loss_last": judged[-1] if judged else None,
        "faults_found": faults,
        "ok": not faults,
    }


def _faults(
    refused: Mapping[str, int],
    found: Mapping[str, int],
    trained: Mapping[str, Any],
    kills: Sequence[Kill],
    phases: int,
) -> list[str]:
    checks = {
        f"quarantine holds {dict(found)}, and {dict(refused)} was put in": dict(found) == dict(refused),
        "the run did not finish": bool(trained["finished"]),
        f"{trained['repeated']} rows were trained more than once": not trained["repeated"],
        f"{trained['missed']} rows were not trained": not trained["missed"],
        f"{trained['trained_once']} of {trained['planned']} rows were trained once": (
            trained["trained_once"] + trained["unreadable"] + trained["left_out"] == trained["planned"]
        ),
        f"{len(kills)} of {phases} kills happened": {kill.phase for kill in kills} == set(range(phases)),
    }
    return [words for words, held in checks.items() if not held]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def prepare(folder: Path) -> None:
    """An empty folder with the demo's mark. Raises InvalidInput for one that holds other things."""
    if folder.exists() and not (folder / MARK).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        hint = "name an empty or new folder with --out"
        raise InvalidInput([Fault(where=str(folder), message="was not made by this demo", hint=hint)])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARK).touch()


def _stages(folder: Path, path: Path, config: PretrainConfig, say: Say) -> Stages:
    say(f"drawing {ROWS:,} captioned pictures, and {ODDITIES} odd ones among them")
    example = write_example(folder / "source", rows=ROWS, oddities=ODDITIES, side_px=SIDE_PX)
    say("ingesting")
    options = ["--options", json.dumps(asdict(config.ingest))]
    words = [str(folder / "source"), str(folder / "shards"), *options]
    ingested = run_stage("giornata.pretrain.ingest", words, folder)
    say("encoding at 32 and 64 pixels")
    run_stage("giornata.pretrain.encode", [str(path)], folder)
    say("training, with kill -9 of a trainer in each phase")
    with killing(config, say) as kills:
        trained = run_stage("giornata.pretrain.run", [str(path), "--lines"], folder)
    return Stages(example=example, ingested=ingested, trained=trained, kills=tuple(kills))


def run_stage(module: str, words: Sequence[str], folder: Path) -> dict[str, Any]:
    """The program's report; what it prints goes to `folder`/logs. Raises GiornataError with its last words."""
    name = module.rpartition(".")[2]
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    report, log = logs / f"{name}.json", logs / f"{name}.log"
    with log.open("wb") as stream:
        command = [sys.executable, "-m", module, *words, "--report", str(report)]
        status = _waited(subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT))
    if status or not report.is_file():
        said = report.read_text(encoding="utf-8") if report.is_file() else _last_line(log)
        raise GiornataError(f"{name} ended with status {status}: {said}; all of it: {log}")
    told: dict[str, Any] = json.loads(report.read_bytes())
    return told


def _waited(process: "subprocess.Popen[bytes]") -> int:
    """Its exit status. Who is stopped meanwhile asks it to stop, and waits: it has Ray's processes to end."""
    try:
        return process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def cpu_s() -> float:
    """Processor seconds of this process and of all that it waited for. Ray's own daemons are not among them."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in both)


def _say(text: str) -> None:
    sys.stdout.write(json.dumps({"what": text}) + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Progress as JSON lines on standard output; the report, or what went wrong, in the file --report."""
    parser = argparse.ArgumentParser(prog="python -m giornata.pretrain.demo.story", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--report", type=Path, required=True)
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        report = demo(given.folder.absolute(), say=_say)
    except InvalidInput as error:
        report = {"faults": [asdict(fault) for fault in error.faults]}
    except (GiornataError, OSError) as error:
        report = {"error": str(error)}
    given.report.write_text(json.dumps(report), encoding="utf-8")
    return 0 if report.get("ok") else 1


if __name__ == "__main__":
    sys.exit(main())
