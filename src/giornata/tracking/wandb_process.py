"""`python -m giornata.tracking.wandb_process`: hands the rows of one run to the package `wandb`.

giornata.tracking.wandb_run starts this process. The first line of the standard input says what the run is. The rows
come in a file that grows; the end of the standard input says that the file is complete. W&B's own settings on this
machine are ignored (above all its key), except WANDB_BASE_URL, which names the W&B server of this site.
"""

import base64
import importlib.util
import io
import json
import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from giornata.domain.errors import install_hint

EXIT_UNUSABLE = 69
KEPT = frozenset({"WANDB_BASE_URL"})
OURS = {
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_HOST": "giornata",
    "WANDB_PROGRAM": "giornata",
    "WANDB_DISABLE_GIT": "true",
}
POLL_S = 0.5
INIT_TIMEOUT_S = 3600.0
TRANSMIT_S = 1.0
EVALUATED = "evaluation/step"
PNG = "png"
"""A picture among the values of a row is an object with this one field: a PNG file, in base64."""


def send(order: dict[str, Any]) -> None:
    """Log all rows. A run that W&B knows goes on after the last step that W&B has."""
    import wandb

    settings = wandb.Settings(
        mode=order["mode"],
        root_dir=order["folder"],
        init_timeout=INIT_TIMEOUT_S,
        x_file_stream_transmit_interval=TRANSMIT_S,
        console="off",
        silent=True,
        save_code=False,
        disable_git=True,
        disable_job_creation=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
    )
    described = {name: order["run"][name] for name in ("id", "name", "project", "entity", "config")}
    run = wandb.init(**described, resume="allow" if order["mode"] == "online" else None, settings=settings)
    run.define_metric("evaluation/*", step_metric=EVALUATED)
    for step, values in rows_in(Path(order["rows"])):
        # W&B takes no row of an earlier step. An evaluation is drawn over its own step and goes with any row.
        if step >= run.step or EVALUATED in values:
            run.log({tag: _shown(value) for tag, value in values.items()}, step=max(step, run.step))
    run.finish()


def _shown(value: float | dict[str, str]) -> Any:
    if not isinstance(value, dict):
        return value
    import wandb
    from PIL import Image

    return wandb.Image(Image.open(io.BytesIO(base64.b64decode(value[PNG]))))


def rows_in(path: Path) -> Iterator[tuple[int, dict[str, float | dict[str, str]]]]:
    """The lines of a file that grows, until the standard input ends."""
    complete = False
    with path.open("rb") as file:
        line = b""
        while True:
            line += file.readline()
            if line.endswith(b"\n"):
                step, values = json.loads(line)
                yield step, values
                line = b""
            elif complete:
                return
            else:
                complete = bool(select.select([0], [], [], POLL_S)[0])


def main() -> int:
    """Returns 0 when all rows were logged. Every failure is an exception or is printed by wandb."""
    for name in [each for each in os.environ if each.startswith("WANDB_") and each not in KEPT]:
        del os.environ[name]
    os.environ.update(OURS)
    if importlib.util.find_spec("wandb") is None:
        sys.stderr.write(f"the package wandb is not on this node: {install_hint('train', 'wandb')}\n")
        return EXIT_UNUSABLE
    order = json.loads(os.fdopen(0, "rb", buffering=0, closefd=False).readline())
    os.environ.update(order.pop("environment"))
    send(order)
    return 0


if __name__ == "__main__":
    sys.exit(main())
