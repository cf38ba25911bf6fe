"""A run's curves for Weights & Biases: one run over all attempts."""

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import SecretStr

from giornata.diffusion.wandb_run import Curve, WandbRun, deliver, thinned, upload, waiting
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.evaluations import evaluated
from giornata.pretrain.training.metrics_log import metrics_of
from giornata.protocol.pretraining import PretrainConfig

NOT_CURVES = frozenset({"step"})


def wandb_curves(config: PretrainConfig, run: Storage) -> WandbRun:
    """What W&B gets to know: the configuration without addresses and paths, and the metrics of every step.

    Raises ValueError when the configuration names no project.
    """
    if config.tracking.wandb_project is None:
        raise ValueError("tracking.wandb_project is not set")
    told = replace(
        config,
        storage="",
        data=replace(config.data, shards=""),
        encode=replace(config.encode, latents=None),
        model=replace(config.model, pretrained_model_name_or_path=None),
        evaluate=replace(config.evaluate, clip=None, inception=None),
    )
    rows = [
        (int(row["step"]), {f"train/{tag}": each for tag, each in row.items() if tag not in NOT_CURVES})
        for row in metrics_of(run)
    ]
    return WandbRun(
        id=hashlib.sha256(f"{config.name}/{run}".encode()).hexdigest()[:16],
        name=config.name,
        project=config.tracking.wandb_project,
        entity=None,
        config=told.to_json(),
        rows=with_evaluations(thinned(rows, of=steps_of(config)), evaluated(run)),
    )


def with_evaluations(
    rows: Sequence[tuple[int, Curve]], found: Sequence[tuple[int, Curve]]
) -> list[tuple[int, Curve]]:
    """Each in the row of its step or, where that was thinned out, in the next: rows keep their places."""
    merged, left = list[tuple[int, Curve]](), list(found)
    for step, values in rows:
        here = [numbers for at, numbers in left if at <= step]
        left = left[len(here) :]
        merged.append((step, {name: each for numbers in (values, *here) for name, each in numbers.items()}))
    return merged


def steps_of(config: PretrainConfig) -> int:
    """That the whole run will have."""
    return sum(-(-phase.samples // config.train.global_batch_size) for phase in config.phases)


def send_curves(
    config: PretrainConfig,
    run: Storage,
    directory: Path,
    *,
    api_key: SecretStr | None,
    clock_s: Callable[[], float] = time.monotonic,
    base_url: str | None = None,
    stop: threading.Event | None = None,
    keep: Callable[[Path], object] = lambda _: None,
) -> None:
    """Write the run's curves below `directory` and, with a key, send them. `keep` gets the packed run before that:
    `wandb sync` takes it once it is unpacked. Raises TrackerFailed, also when `stop` is set meanwhile."""
    wait = waiting(clock_s, (stop or threading.Event()).is_set)
    directory.mkdir(parents=True, exist_ok=True)
    curves = wandb_curves(config, run)
    keep(deliver(curves, directory, wait=wait))
    if api_key is not None:
        upload(curves, directory, api_key, wait=wait, base_url=base_url)
