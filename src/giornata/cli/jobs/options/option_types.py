"""Types of the options that several commands have in common. `T` is the type of the option's value."""

from pathlib import Path
from typing import Annotated, TypeVar

import typer

T = TypeVar("T")

# ---- what is drawn

PromptsFile = Annotated[
    T, typer.Option("--prompts", metavar="FILE", help="File with a prompt on each line.", show_default=False)
]
ModelOption = Annotated[T, typer.Option(help="Base model: a name, a hub id, or a folder.", show_default=False)]
CountOption = Annotated[
    int | None,
    typer.Option(
        "--count",
        "-n",
        metavar="N",
        help="Number of pictures of each prompt or cell. Default: 1.",
        show_default=False,
    ),
]
LoraOption = Annotated[
    list[str] | None,
    typer.Option(
        "--lora",
        metavar="NAME[:WEIGHT]",
        help="LoRA: the job that trained it, or a name. May be repeated.",
        show_default=False,
    ),
]
SizeOption = Annotated[
    str | None, typer.Option(metavar="WIDTHxHEIGHT", help="Size in pixels. Default: 1024x1024.", show_default=False)
]
StepsOption = Annotated[int | None, typer.Option(help="Number of denoising steps. Default: 30.", show_default=False)]
GuidanceOption = Annotated[
    float | None, typer.Option(help="Guidance scale. Higher follows the prompt more. Default: 7.", show_default=False)
]
SchedulerOption = Annotated[
    str | None, typer.Option(help="Scheduler, such as 'DPM++ 2M Karras'. Default: euler.", show_default=False)
]
SeedOption = Annotated[
    int | None, typer.Option(help="Seed of the first picture. Default: a random one.", show_default=False)
]
NegativeOption = Annotated[
    str | None, typer.Option(help="Negative prompt: what pictures shall not show.", show_default=False)
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Value of any field of the spec (docs/reference/generation.md). May be repeated.",
        show_default=False,
    ),
]

# ---- how the job stands in the queue, and what becomes of its results

NameOption = Annotated[str | None, typer.Option(help="Name of the order. Default: its id.", show_default=False)]
PriorityOption = Annotated[
    T, typer.Option(metavar="N", min=-100, max=100, help="Priority, from -100 to 100. Higher goes first.")
]
MaxCostOption = Annotated[
    str | None,
    typer.Option(
        metavar="USD",
        help="Budget in US dollars, such as 0.50. The job pauses when it is spent.",
        show_default=False,
    ),
]
MinVramOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Run only on nodes with at least this much GPU memory, such as 12GB.",
        show_default=False,
    ),
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output", "--out", "-o", metavar="DIR", help="Download the results into this folder.", show_default=False
    ),
]
WaitOption = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Wait for the results, or return when the order is placed.")
]
EstimateOption = Annotated[
    bool, typer.Option("--estimate", help="Estimate the time and the cost, and submit nothing.")
]
