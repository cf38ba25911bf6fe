"""A run's curves for Weights & Biases: one run over all attempts, sent every few minutes and at the end.

Each time the whole of it is written anew and sent, in processes of their own (ADR 0018): lines lie at their places at
W&B, and those that are there already replace themselves.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from subprocess import Popen, TimeoutExpired

from pydantic import SecretStr

from giornata.diffusion.wandb_run import Curve, TrackerFailed, Wait, WandbRun, deliver, thinned, upload
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.evaluations import evaluated
from giornata.pretrain.training.metrics_log import metrics_of
from giornata.protocol.pretraining import PretrainConfig

POLL_S = 0.2
SEND_EVERY_S = 300.0
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
    wait = _patience(clock_s, stop or threading.Event())
    directory.mkdir(parents=True, exist_ok=True)
    curves = wandb_curves(config, run)
    keep(deliver(curves, directory, wait=wait))
    if api_key is not None:
        upload(curves, directory, api_key, wait=wait, base_url=base_url)


def _patience(clock_s: Callable[[], float], stop: threading.Event) -> Wait:
    def wait(process: "Popen[bytes]", timeout_s: float) -> int | None:
        until_s = clock_s() + timeout_s
        try:
            while clock_s() < until_s and not stop.is_set():
                try:
                    return process.wait(timeout=POLL_S)
                except TimeoutExpired:
                    continue
            return None
        finally:
            process.kill()
            process.wait()

    return wait


@contextmanager
def meanwhile(
    send: Callable[[threading.Event], object], *, every_s: float, tell: Callable[[str], object]
) -> Iterator[None]:
    """Within, `send` is called every so often, in a thread of its own, with what is set at the end. What fails is
    told and tried again the next time: curves are never worth a run."""
    done = threading.Event()

    def again_and_again() -> None:
        while not done.wait(every_s):
            try:
                send(done)
            except (TrackerFailed, OSError) as error:
                if not done.is_set():
                    tell(f"the curves were not sent, but will be: {error}")

    thread = threading.Thread(target=again_and_again, name="wandb-curves", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
