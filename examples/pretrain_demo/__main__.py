"""The demo of pre-training: `python -m examples.pretrain_demo --out FOLDER`.

It draws captioned pictures with broken ones among them, ingests and encodes them, trains through two phases, kills
one trainer in each phase, and counts how often each row was trained. Each stage is a program that users run.

    config.toml            the run's configuration, for `giornata pretrain eval config.toml` and other commands
    source/ shards/        the pictures before and after ingestion
    work/                  latents, checkpoints, metrics and trace
    loss.png samples.png   loss curve and samples
    report.json            the JSON object that `--json` prints last
"""

import json
import resource
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from examples.pretrain_demo.example_data import WrittenRows, write_example
from examples.pretrain_demo.kills import Kill, killing
from giornata.cli.options import JsonFlag
from giornata.cli.pretraining.pretrain_process import run_program
from giornata.cli.ui.output import Output, reporting
from giornata.cli.ui.text import duration
from giornata.domain.errors import Fault, InvalidInput
from giornata.pretrain.recipes import read_config
from giornata.pretrain.run_state.committed import run_storage
from giornata.pretrain.run_state.metrics_log import metrics_of
from giornata.protocol.pretraining import PretrainConfig

MARK = ".giornata-pretrain-demo"
"""The demo may empty a folder that holds this file."""
ROWS, ODDITIES, SIDE_PX = 2_000, 38, 64
ENDS = 10
"""Steps whose mean is the first or the last loss of the report: the noise of one step is too large."""
Rows = Sequence[Mapping[str, Any]]


def demo(
    folder: Annotated[Path, typer.Option("--out", help="Folder of the demo, emptied first.")] = Path(
        "pretrain-demo-output"
    ),
    as_json: JsonFlag = False,
) -> None:
    """Pre-train on this machine, with one trainer killed in each phase.

    Pictures, ingest, latents, training in two phases; then every use of every picture is counted.
    """
    with reporting(as_json, stopped="stopped, with all that it had begun") as out:
        report = run_demo(folder.absolute(), out)
        _say(out, report)
        out.result(report)
    if not report["ok"]:
        raise typer.Exit(1)


def run_demo(folder: Path, out: Output) -> dict[str, Any]:
    """Run all stages in `folder`, which is emptied first, and return the report.

    Raises InvalidInput when the demo did not make `folder`, and GiornataError when a stage fails.
    """
    prepare(folder)
    path = write_config(folder)
    config = read_config(str(path))
    example, ingested = _prepared_data(folder, path, config, out)
    out.say("training, with kill -9 of a trainer in each phase")
    with killing(config, out.say) as kills:
        trained = _program("run", str(path), "--lines")
    out.say("drawing the loss and samples")
    from examples.pretrain_demo.loss_chart import draw_losses
    from examples.pretrain_demo.sample_sheet import draw_samples

    rows = list(metrics_of(run_storage(config)))
    draw_losses(folder / "loss.png", rows, kills, config)
    draw_samples(folder / "samples.png", config)
    report = verdict(example.refused, ingested, trained, kills, rows=rows, phases=len(config.phases))
    report |= {"loss_png": str(folder / "loss.png"), "samples_png": str(folder / "samples.png")}
    report["cpu_s"] = round(_cpu_s(), 1)
    (folder / "report.json").write_text(json.dumps(report) + "\n", encoding="utf-8")
    return report


def prepare(folder: Path) -> None:
    """Empty the folder and mark it. Raises InvalidInput when it holds files of somebody else."""
    if folder.exists() and not (folder / MARK).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        hint = "name an empty or new folder with --out"
        raise InvalidInput([Fault(where=str(folder), message="was not made by this demo", hint=hint)])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARK).touch()


def write_config(folder: Path) -> Path:
    """Write the run's configuration, with all paths below `folder`, and return its path."""
    template = (Path(__file__).parent / "config.toml").read_text(encoding="utf-8")
    path, quoted = folder / "config.toml", json.dumps(str(folder), ensure_ascii=False)[1:-1]
    path.write_text(template.partition("\n")[2].replace("FOLDER", quoted), encoding="utf-8")
    return path


def _prepared_data(
    folder: Path, path: Path, config: PretrainConfig, out: Output
) -> tuple[WrittenRows, dict[str, Any]]:
    """The example that was drawn, and the report of its ingestion."""
    out.say(f"drawing {ROWS:,} captioned pictures, and {ODDITIES} odd ones among them")
    example = write_example(folder / "source", rows=ROWS, oddities=ODDITIES, side_px=SIDE_PX)
    out.say("ingesting")
    options = json.dumps(asdict(config.ingest))
    ingested = _program("ingest", str(folder / "source"), str(folder / "shards"), "--options", options)
    out.say("encoding at 32 and 64 pixels")
    _program("encode", str(path))
    return example, ingested


def _program(name: str, *words: str) -> dict[str, Any]:
    return run_program(f"giornata.pretrain.{name}", words, progress=lambda _: None)


def verdict(
    refused: Mapping[str, int],
    ingested: Mapping[str, Any],
    trained: Mapping[str, Any],
    kills: Sequence[Kill],
    *,
    rows: Rows,
    phases: int,
) -> dict[str, Any]:
    """The report. `refused` counts the broken rows by reason, `ingested` and `trained` are reports of the programs.

    `rows` are the metrics of each step. `ok` is true when `faults_found` is empty.
    """
    found = {reason: count for reason, count in ingested["quarantined"].items() if count}
    losses, judged = (
        [row[name] for row in rows if row.get(name) is not None] for name in ("loss", "validation_loss")
    )
    faults = list(_faults(refused, found, trained, kills, phases))
    return {
        "rows": ingested["rows"],
        "kept": ingested["kept"],
        "quarantined": sum(found.values()),
        "quarantine": dict(sorted(found.items())),
        **{name: trained[name] for name in ("planned", "trained_once", "repeated", "missed", "unreadable")},
        "kills": len(kills),
        "killed": [{"phase": kill.phase, "step": kill.step} for kill in kills],
        **{name: trained[name] for name in ("undone", "attempts", "steps")},
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
) -> Iterator[str]:
    if dict(found) != dict(refused):
        yield f"quarantine holds {dict(found)}, and {dict(refused)} was put in"
    if not trained["finished"]:
        yield "the run did not finish"
    for name, words in (("repeated", "were trained more than once"), ("missed", "were not trained")):
        if trained[name]:
            yield f"{trained[name]} rows {words}"
    if trained["trained_once"] + trained["unreadable"] + trained["left_out"] != trained["planned"]:
        yield f"{trained['trained_once']} of {trained['planned']} rows were trained once"
    if {kill.phase for kill in kills} != set(range(phases)):
        yield f"{len(kills)} of {phases} kills happened"


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _cpu_s() -> float:
    """Processor seconds of this process and of its children. Ray's own daemons are not among them."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in both)


def _say(out: Output, report: Mapping[str, Any]) -> None:
    killed = " and ".join(str(each["step"]) for each in report["killed"]) or "none"
    out.say("")
    out.say(f"{report['rows']:,} pictures; {report['quarantined']:,} were broken and are in quarantine")
    out.say(f"{report['trained_once']:,} of {report['planned']:,} uses of a picture trained exactly once")
    out.say(f"{report['repeated']:,} repeated, {report['missed']:,} missed")
    out.say(f"{report['kills']} kills (after steps {killed}) undid the training of {report['undone']:,} pictures,")
    out.say("which were trained again from the checkpoint before")
    out.say(f"loss {report['loss_first']:.3f} -> {report['loss_last']:.3f} in {report['steps']:,} steps")
    out.say(f"loss curve  {report['loss_png']}")
    out.say(f"samples     {report['samples_png']}")
    out.hint(f"processor time without Ray's own processes: {duration(report['cpu_s'])}")
    for fault in report["faults_found"]:
        out.say(f"WRONG: {fault}")


if __name__ == "__main__":
    typer.run(demo)
