"""A whole run, from wherever it was to its end: `python -m giornata.pretrain.run CONFIG`.

What it prints with `--lines` are JSON objects, one a line, for whoever follows: {"event": "phase", "name"},
{"event": "progress", "step", "total", "metrics"}, {"event": "checkpoint", "step"}, {"event": "crash",
"step", "words", "final"} when a trainer raises an error (`final`: the run ends), and at the end {"event": "result"}
with what `proof` says.

On SIGTERM and on Ctrl-C the run stops with a checkpoint; the same command goes on.
"""

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from giornata.domain.errors import Fault, GiornataError, InvalidInput, collecting
from giornata.pretrain.data.fence import check as check_owner
from giornata.pretrain.data.fence import holding
from giornata.pretrain.data.manifest import Manifest
from giornata.pretrain.encoding.encoded import encoded_manifest, source_manifest
from giornata.pretrain.feeding.rows_of_phase import rows_of_phases
from giornata.pretrain.recipes import read_config
from giornata.pretrain.reported import program, reported, tell
from giornata.pretrain.reporting.progress_lines import TerminalProgress
from giornata.pretrain.run_state.committed import newest, progress_of, rooted, run_storage
from giornata.pretrain.run_state.progress import check_origin
from giornata.pretrain.run_state.proof import Proof, proof_of
from giornata.protocol.pretraining import Mode, PretrainConfig
from giornata.protocol.pretraining_checks import parse

POLL_S = 0.5
MODEL = "model"
INTERRUPTED = 3
"""Exit status of a run that was asked to stop: everything is in a checkpoint."""
Listener = Callable[[dict[str, Any]], None]
RAY_LEAVES_OUT = {"RAY_DEDUP_LOGS_SKIP_REGEX": "A worker died or was killed while executing a task"}
"""The line that Ray writes among the program's own when a trainer is lost, whatever `log_to_driver` says. The run
goes on then; Ray's own log files say why the trainer ended."""


def run(
    config: PretrainConfig,
    *,
    address: str | None,
    listener: Listener,
    stop: threading.Event,
    wandb_api_key: str | None = None,
) -> Proof:
    """Train until all phases are done, or until `stop` is set. Raises InvalidInput with every fault before Ray is
    started, also when another command holds the storage, and GiornataError with Ray's words when it gives up."""
    from giornata.pretrain.reporting.trackers import trackers

    check(config)
    with holding(run_storage(config), "run", lost=stop.set) as held:
        with trackers(config, wandb_api_key) as tracked:

            def heard(message: dict[str, Any]) -> None:
                listener(message)
                tracked(message)

            if not finished(config):
                _Training(config, heard, stop).run(address, owner=held.token)
        check_owner(held.storage, held.token)
        if finished(config):
            _export(config)
    return proof_of(config)


class _Training:
    """The phases that are left, with evaluations beside them. `stop` asks the trainers to leave with a checkpoint."""

    def __init__(self, config: PretrainConfig, listener: Listener, stop: threading.Event) -> None:
        from giornata.pretrain.evaluation.beside import Evaluations, RayTask

        self._config, self._listener, self._stop = config, listener, stop
        self._command_ms = time.time_ns() // 1_000_000
        self._evaluations = Evaluations(config, run_storage(config), partial(RayTask, config), listener)
        self._phase, self._checkpoint_step = -1, 0

    def run(self, address: str | None, *, owner: str) -> None:
        """Train on the Ray at `address`. The trainers' devices are free before the last evaluation is waited for."""
        from giornata.pretrain.ray_train.cluster import connected

        for words in not_measured(self._config):
            self._listener({"event": "note", "words": words})
        # Ray puts its own handler on SIGTERM, so ours comes after it.
        with connected(address), stopping(self._stop):
            try:
                self._fit(owner)
                if self._config.evaluate.checkpoints and finished(self._config):
                    words = "all is trained; what is due is still evaluated (Ctrl-C leaves it out)"
                    self._listener({"event": "note", "words": words})
                    self._evaluations.finish(self._stop, within_s=self._config.evaluate.timeout_s)
            finally:
                self._evaluations.close()

    def _fit(self, owner: str) -> None:
        import ray
        from ray.train import TrainingFailedError

        from giornata.pretrain.ray_train.fit import fit
        from giornata.pretrain.ray_train.progress_actor import progress_actor_here

        actor, done = progress_actor_here(), threading.Event()
        watching = threading.Thread(daemon=True, target=self._watch, args=(actor, done))
        watching.start()
        try:
            # In the main thread Ray Train would put its own handler on Ctrl-C, which gives up without a checkpoint.
            with ThreadPoolExecutor(max_workers=1, thread_name_prefix="pretrain-fit") as aside:
                aside.submit(fit, self._config, actor=actor, command_ms=self._command_ms, owner=owner).result()
        except (TrainingFailedError, ray.exceptions.RayError) as error:
            raise GiornataError(f"the run ended: {_words(error)}") from error
        finally:
            done.set()
            watching.join(timeout=10 * POLL_S)

    def _watch(self, actor: Any, done: threading.Event) -> None:
        """Hand messages over until `done`; at last tell the checkpoint with which the trainers ended."""
        import ray

        asked = False
        while True:
            last = done.wait(POLL_S)
            try:
                messages = ray.get(actor.take.remote())
                if self._stop.is_set() and not asked:
                    ray.get(actor.ask_to_stop.remote())
                    asked = True
            except ray.exceptions.RayError:
                return
            for message in messages:
                self._hear(message)
            self._evaluations.turn()
            if last:
                self._tell_checkpoint(progress_of(run_storage(self._config)).step)
                return

    def _hear(self, message: dict[str, Any]) -> None:
        if message["event"] == "progress" and message["metrics"]["phase"] != self._phase:
            self._phase = message["metrics"]["phase"]
            self._listener({"event": "phase", "name": f"phase {self._config.phases[int(self._phase)].name}"})
        self._listener(message)
        if message["event"] == "progress" and self._tell_checkpoint(
            int(message["metrics"].get("checkpoint_step", 0))
        ):
            self._evaluations.news()

    def _tell_checkpoint(self, step: int) -> bool:
        """Tell of a checkpoint that is newer than the one before."""
        if step <= self._checkpoint_step:
            return False
        self._checkpoint_step = step
        self._listener({"event": "checkpoint", "step": step})
        return True


def not_measured(config: PretrainConfig) -> list[str]:
    """Sentences on what this run leaves out, and the setting that would change that."""
    train, found = config.train, list[str]()
    missing = [name for name in ("validation_steps", "validation_rows") if not getattr(train, name)]
    if missing:
        found.append("no validation loss: " + " and ".join(f"train.{name} = 0" for name in missing))
    if not config.evaluate.checkpoints:
        found.append("no checkpoint is evaluated beside the run: evaluate.checkpoints = 0")
    return found


def check(config: PretrainConfig) -> None:
    """Raise InvalidInput when there is not everything that the run reads, or when the newest checkpoint is of another
    configuration or another data set."""
    faults: list[Fault] = []
    source = source_manifest(config)
    rows_of_phases(config, source)
    if config.encode.mode in {Mode.OFFLINE, Mode.HYBRID}:
        for resolution in sorted({phase.resolution for phase in config.phases}):
            with collecting(faults):
                encoded_manifest(config, resolution, source)
    with collecting(faults):
        _check_checkpoint(config, source)
    if faults:
        raise InvalidInput(faults)


def _check_checkpoint(config: PretrainConfig, source: Manifest) -> None:
    """Refuse a checkpoint of another run before Ray starts; trainers would refuse it later. Encoders that come as
    weights are left to the trainers: their digest is known when they are loaded."""
    storage = run_storage(config)
    start = newest(storage)
    if start is None:
        return
    progress = start.progress(storage)
    encoder = progress.origin.get("encoder", "")
    if config.encode.mode is Mode.OFFLINE:
        encoder = encoded_manifest(config, config.phases[0].resolution, source).about["encoder"]
    digests = {"manifest": source.digest, "encoder": encoder}
    check_origin(progress, config, digests, where=f"{storage}/checkpoints/{start.name}")


def finished(config: PretrainConfig) -> bool:
    return progress_of(run_storage(config)).phase >= len(config.phases)


def _export(config: PretrainConfig) -> None:
    """The UNet as diffusers loads it, below `model` of the run's storage; once."""
    from giornata.pretrain.training.export import export

    storage = run_storage(config)
    if storage.exists(f"{MODEL}/README.md"):
        return
    with tempfile.TemporaryDirectory(prefix="giornata-model-") as folder:
        export(config, storage, Path(folder))
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        files.sort(key=lambda each: each.name == "README.md")  # the card last: it says that all is there
        for path in files:
            storage.put(path, f"{MODEL}/{path.relative_to(folder)}")


def _words(error: Exception) -> str:
    text = str(getattr(error, "__cause__", None) or error).strip()
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


@contextmanager
def stopping(event: threading.Event) -> Iterator[None]:
    """SIGTERM and Ctrl-C set the event; a second Ctrl-C ends at once."""

    def ask(number: int, _: FrameType | None) -> None:
        if event.is_set() and number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
        event.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(
    config: Annotated[str, typer.Argument()] = "",
    config_json: str = "",
    address: str | None = None,
    report: Path | None = None,
    lines: bool = False,
) -> int:
    """0: finished, 1: failed, 2: the input is wrong, 3: stopped with a checkpoint. `config`: a recipe or a TOML file;
    `config_json`: the configuration itself. `lines`: print JSON lines for whoever follows the run."""
    for name, value in RAY_LEAVES_OUT.items():  # Ray reads them when it is imported
        os.environ.setdefault(name, value)

    def work() -> dict[str, Any]:
        whole = rooted(parse(json.loads(config_json)) if config_json else read_config(config))
        key, stop = os.environ.get("WANDB_API_KEY"), threading.Event()
        with nullcontext(tell) if lines else TerminalProgress(sys.stderr) as view:
            proof = run(whole, address=address, listener=view, stop=stop, wandb_api_key=key)
            view({"event": "result", **asdict(proof)})
        return asdict(proof)

    return reported(report, work, lambda told: 0 if told["finished"] else INTERRUPTED)


if __name__ == "__main__":
    program(main)
