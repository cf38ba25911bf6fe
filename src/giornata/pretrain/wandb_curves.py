"""A run's curves for Weights & Biases: one run over all attempts, written and sent when the training has ended."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import Popen, TimeoutExpired

from pydantic import SecretStr

from giornata.diffusion.wandb_run import WandbRun, deliver, thinned, upload
from giornata.pretrain.metrics_log import metrics_of
from giornata.pretrain.storage import Storage
from giornata.protocol.pretraining import PretrainConfig

POLL_S = 0.2
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
        rows=thinned(rows),
    )


def send_curves(
    config: PretrainConfig,
    run: Storage,
    directory: Path,
    *,
    api_key: SecretStr | None,
    clock_s: Callable[[], float] = time.monotonic,
    base_url: str | None = None,
) -> Path:
    """Write the run's curves below `directory` and, with a key, send them. Returns the packed run, which
    `wandb sync` takes once it is unpacked. Raises TrackerFailed."""

    def wait(process: "Popen[bytes]", timeout_s: float) -> int | None:
        until_s = clock_s() + timeout_s
        try:
            while clock_s() < until_s:
                try:
                    return process.wait(timeout=POLL_S)
                except TimeoutExpired:
                    continue
            return None
        finally:
            process.kill()
            process.wait()

    directory.mkdir(parents=True, exist_ok=True)
    curves = wandb_curves(config, run)
    packed = deliver(curves, directory, wait=wait)
    if api_key is not None:
        upload(curves, directory, api_key, wait=wait, base_url=base_url)
    return packed
