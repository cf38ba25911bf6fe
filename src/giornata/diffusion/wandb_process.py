"""`python -m giornata.diffusion.wandb_process`: does one thing with the package `wandb`.

What, its standard input says. Started by giornata.diffusion.wandb_run, never by hand. W&B's own settings on
this machine are left aside (its key above all), but for WANDB_BASE_URL, which names the W&B server of this site.
"""

import importlib.util
import json
import os
import sys
from typing import Any

from giornata.domain.installing import install_hint

EXIT_UNUSABLE = 69
KEPT = frozenset({"WANDB_BASE_URL"})
OURS = {
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_HOST": "giornata",
    "WANDB_PROGRAM": "giornata",
    "WANDB_DISABLE_GIT": "true",
}


def write(folder: str, run: dict[str, Any]) -> None:
    """Write an offline run below `folder`. Nothing is sent."""
    import wandb

    settings = wandb.Settings(
        mode="offline",
        root_dir=folder,
        console="off",
        silent=True,
        save_code=False,
        disable_git=True,
        disable_job_creation=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
    )
    started = wandb.init(
        project=run["project"],
        entity=run["entity"],
        id=run["id"],
        name=run["name"],
        config=run["config"],
        settings=settings,
    )
    for step, row in run["rows"]:
        started.log(row, step=step)
    started.finish()


def sync(path: str, api_key: str, base_url: str | None) -> None:
    """Send a run that was written before."""
    os.environ["WANDB_API_KEY"] = api_key
    if base_url is not None:
        os.environ["WANDB_BASE_URL"] = base_url
    from wandb.cli.cli import cli

    cli(["sync", "--yes", path], standalone_mode=False)


def main() -> int:
    """Returns 0 when it is done; whatever went wrong is an exception, or said by wandb."""
    for name in [each for each in os.environ if each.startswith("WANDB_") and each not in KEPT]:
        del os.environ[name]
    os.environ.update(OURS)
    if importlib.util.find_spec("wandb") is None:
        sys.stderr.write(f"the package wandb is not on this node: {install_hint('train', 'wandb')}\n")
        return EXIT_UNUSABLE
    order = json.load(sys.stdin)
    if order["do"] == "write":
        write(order["folder"], order["run"])
    else:
        sync(order["path"], order["api_key"], order["base_url"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
