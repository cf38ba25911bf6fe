"""`giornata pretrain submit`: the run as a job of the platform."""

from typing import Annotated

import typer

from giornata.cli.options import JsonFlag, check_job_name, settings_of
from giornata.cli.pretraining.pretrain import Config
from giornata.cli.settings.connection import connect
from giornata.cli.settings.hints import giornata
from giornata.cli.ui.output import EXIT_FAILED, EXIT_PAUSED, reporting
from giornata.cli.ui.watch import watch
from giornata.domain.jobs.job import JobState
from giornata.pretrain.recipes import read_config
from giornata.protocol.pretraining import HOUR_S, Mode, PretrainConfig
from giornata.protocol.specs import PRETRAIN_KIND


def register(group: typer.Typer) -> None:
    """Add the command to `giornata pretrain`."""
    group.command("submit")(submit)


def cost_words(config: PretrainConfig) -> str:
    """Lines on the job's costs, and on the run's own count of them."""
    node = "  an hour of the job costs the --price of the node that follows it: let that be the cluster's;"
    if config.workers.trainer_usd_per_h is None:
        return f"{node}\n  set workers.trainer_usd_per_h, and the run tells what it spends (spent_usd in its metrics)"
    beside = config.encode.mode in {Mode.ONLINE, Mode.HYBRID}
    encoders = max(config.encoders_of(phase) for phase in range(len(config.phases))) if beside else 0
    per_h = config.usd_per_s(config.workers.trainers, encoders) * HOUR_S
    return (
        f"{node}\n  by its workers' prices the run takes ${per_h:,.2f}/h; what it spends is spent_usd in its metrics"
    )


def submit(
    context: typer.Context,
    config: Config,
    name: Annotated[
        str | None, typer.Option(help="Name of the job. Default: the name of the run.", show_default=False)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Show the progress until the job has ended.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Submit the run as a job for a node that has a Ray cluster.

    Start such a node with: giornata node --kind pretrain. Only a key of the operator's project may submit runs.
    """
    with reporting(as_json) as out:
        wanted = read_config(config)
        check_job_name(name or wanted.name)
        with connect(settings_of(context)) as client:
            job = client.submit({"config": wanted.to_json()}, kind=PRETRAIN_KIND, name=name or wanted.name)
            out.say(f"{job.id} is in the queue: {job.total_steps} steps")
            out.hint(cost_words(wanted))
            if follow:
                job = watch(client, job.id, out)
            else:
                out.hint(f"  follow it     {giornata('follow', job.id)}")
            out.result(job)
        if follow and job.state is not JobState.SUCCEEDED:
            raise typer.Exit(EXIT_PAUSED if job.state is JobState.PAUSED else EXIT_FAILED)
