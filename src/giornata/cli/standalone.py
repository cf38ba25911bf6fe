"""`giornata train --standalone`: the composition root and the view of a run without a server."""

import contextlib
import functools
import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
from pydantic import SecretStr
from rich.progress import TaskID

from giornata.agent.attempt.attempt import AttemptRunner
from giornata.agent.attempt.commands import ServerCommands, ShutdownSignal
from giornata.agent.attempt.events import AttemptFailed, AttemptOutcome, Finished
from giornata.agent.attempt.platform import AttemptState
from giornata.agent.engines.engine_messages import crash_of
from giornata.agent.engines.engine_process import EngineLost
from giornata.agent.engines.engines import Engines, KernelDir
from giornata.agent.main import install_signals, launch, monotonic_s
from giornata.agent.settings import AttemptSettings, engine_command
from giornata.agent.work_dir import KERNEL_DIRECTORY, WorkDir
from giornata.cli.jobs.inputs.picture_folders import folder_notes
from giornata.cli.jobs.options.standalone_options import StandaloneOptions
from giornata.cli.settings import Settings
from giornata.cli.settings.private_files import NODE, keep_private, private_folder
from giornata.cli.standalone_input import StandaloneInput, check_input, request_of
from giornata.cli.ui.output import Output
from giornata.cli.ui.text import duration, size
from giornata.cli.ui.watch import progress_bar
from giornata.client.trust import trusted
from giornata.domain.errors import Fault, InvalidInput, Unavailable, install_hint
from giornata.domain.jobs.reasons import Reason
from giornata.domain.visible_text import visible
from giornata.standalone.platform import ATTEMPT, RunDeps, RunExitCode, StoragePlatform, exit_code_of
from giornata.standalone.run_request import RunRequest
from giornata.standalone.storage import CheckpointManifest
from giornata.standalone.webhooks import WebhookConfig, WebhookSender

LINES_OF_RUN = 10
"""In a pipe, this many lines tell of the steps of a whole run."""
HELLO_S = 300.0  # loading torch from a cold disk takes minutes on a rented machine
STOP_GRACE_S = 10.0
STORAGE_PATIENCE_S = 600.0
WEBHOOK_TIMEOUT_S = 10.0
WEBHOOK_PATIENCE_S = 60.0


class RunView:
    """Shows one run. Called by the run's loop and by the thread that stores checkpoints."""

    def __init__(self, out: Output, *, total: int) -> None:
        self._out, self._total = out, total
        self._lock = threading.Lock()
        self._phase = ""
        self._told = 0
        self._held_out = ""
        self._bar = progress_bar(out)
        self._task: TaskID = self._bar.add_task("starting", total=total, note="")

    def __enter__(self) -> "RunView":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def phase(self, name: str, done: int | None, total: int | None) -> None:
        """Show the phase of the engine."""
        with self._lock:
            self._bar.update(self._task, description=name, completed=done or 0, total=total or self._total, note="")
            if name != self._phase and not self._out.live:
                self._out.hint(f"{name} …")
            self._phase = name

    def progress(self, step: int, total: int, metrics: dict[str, float]) -> None:
        """Show a step with its loss and speed, in the bar or as an occasional line."""
        words = [f"loss {metrics['loss']:.4f}"] if "loss" in metrics else []
        if "validation_loss" in metrics:
            self._held_out = f"held out {metrics['validation_loss']:.4f}"
        words += [self._held_out] if self._held_out else []
        words += [f"{metrics['images_per_s']:.2f} images/s"] if "images_per_s" in metrics else []
        with self._lock:
            self._bar.update(self._task, completed=step, total=total, note=", ".join(words))
            part = step * LINES_OF_RUN // total
            if part > self._told and not self._out.live:
                self._out.hint(f"step {step}/{total}  {', '.join(words)}")
            self._told = max(part, self._told)

    def stored(self, manifest: CheckpointManifest) -> None:
        """Say that a checkpoint is stored."""
        self.say(f"checkpoint {manifest.step} is safe ({size(manifest.size_bytes)})")

    def say(self, line: str) -> None:
        """Print a line, above the bar on a live terminal."""
        with self._lock:
            if self._out.live:
                self._bar.console.print(visible(line), markup=False)
            else:
                self._out.say(line)


def train_alone(
    options: StandaloneOptions,
    *,
    settings: Settings,
    fields: Callable[[], dict[str, Any]],
    others: Iterable[Fault],
    out: Output,
) -> int:
    """Run to the end, and return the exit code. Raises InvalidInput with every fault, `others` among them, before
    anything is computed."""
    plan = check_input(options, settings, fields, others=others)
    try:
        code, told = run_alone(plan, settings, out)
    except Unavailable as error:
        out.say(f"the storage {plan.storage.name} cannot be used just now: {error}")
        out.result({"error": {"code": error.code, "message": str(error), "faults": []}})
        return RunExitCode.STORAGE_AWAY
    out.result(told)
    return code


def run_alone(plan: StandaloneInput, settings: Settings, out: Output) -> tuple[int, dict[str, Any]]:
    """Run a checked input to the end. Return the exit code, and the JSON object that tells of the run.

    Raises InvalidInput, and Unavailable when the storage cannot be used.
    """
    request = request_of(plan)
    for note in folder_notes(plan.fields, plan.folder, plan.class_folder):
        out.hint(note)
    return _run(plan, request, settings, out)


# ---- the run ----


def _run(plan: StandaloneInput, request: RunRequest, settings: Settings, out: Output) -> tuple[int, dict[str, Any]]:
    shutdown, began_s = ShutdownSignal(), time.monotonic()
    umask = keep_private()  # for all but the results, which are the user's
    engines = _engines(settings)
    work_dir = WorkDir(private_folder(_work_directory(settings), named="work_directory", holds=NODE))
    with contextlib.ExitStack() as stack:
        stack.callback(work_dir.close)
        stack.callback(engines.stop)
        install_signals(engines, shutdown, say=_say_in_signal)
        http = stack.enter_context(httpx.Client(timeout=WEBHOOK_TIMEOUT_S, verify=trusted()))
        view = stack.enter_context(RunView(out, total=request.spec.max_train_steps))
        webhooks = WebhookSender(
            _webhook(plan, http), job_id=request.record.job_id, say=view.say, rng=random.SystemRandom()
        )
        deps = RunDeps(
            storage=plan.storage,
            job_dir=stack.enter_context(work_dir.job_dir(ATTEMPT)),
            out=plan.out,
            webhooks=webhooks,
            listener=view,
            now=lambda: datetime.now(UTC),
            rng=random.SystemRandom(),
            storage_patience_s=STORAGE_PATIENCE_S,
            max_at_risk_s=settings.max_at_risk_s,
            wandb_api_key=wandb_key(os.environ),
            results_mode=0o666 & ~umask,
        )
        state = AttemptState(commands=_commands(settings, shutdown), monotonic_s=monotonic_s)
        platform = StoragePlatform(request, state=state, deps=deps)
        outcome = _attempt(platform, state, settings, engines, view)
        webhooks.close(settings.shutdown_grace_s / 2 if shutdown.requested else WEBHOOK_PATIENCE_S)
    return _report(platform, outcome, plan, out, seconds=time.monotonic() - began_s)


def _attempt(
    platform: StoragePlatform, state: AttemptState, settings: Settings, engines: Engines, view: RunView
) -> AttemptOutcome:
    record, resume = platform.request.record, platform.find_resume_point()
    if resume is not None:
        view.say(f"{record.job_id} goes on from step {resume.step}")
    else:
        again = "begins again: there is no checkpoint yet" if platform.request.resumed else "begins"
        view.say(f"{record.job_id} {again}: {len(record.pictures)} pictures, seed {record.spec['seed']}")
    try:
        engines.ready("train")
    except EngineLost as lost:
        if (lacking := _without_extra(lost)) is not lost:
            raise lacking from None
        return _never_began(lost)
    except InvalidInput as error:
        raise _without_extra(error) from None
    times = AttemptSettings(
        grace_s=settings.shutdown_grace_s, stall_s=settings.stall_timeout_s, fail_drain_s=math.inf
    )
    outbox = platform.deps.job_dir.outbox
    return AttemptRunner(platform, state=state, outbox=outbox, settings=times, engines=engines).run()


def _commands(settings: Settings, shutdown: ShutdownSignal) -> ServerCommands:
    """Return the commands of a run that has no server: a signal is the only one."""
    return ServerCommands(
        shutdown=shutdown, monotonic_s=monotonic_s, grace_s=settings.shutdown_grace_s, release_s=0.0
    )


def _never_began(lost: EngineLost) -> AttemptFailed:
    """Return the failure of an engine that ended before its first message."""
    if lost.exit_code is None:
        message = f"the engine said nothing for {HELLO_S:.0f} s after its start"
    else:
        message = crash_of(lost.exit_code, "before it was ready").message
    return AttemptFailed(Reason.CRASHED, f"{message}; its last output: {lost.last_words or 'none'}")


def _without_extra(error: InvalidInput) -> InvalidInput:
    """Return a fault that says what to install, when a missing package is all that is wrong."""
    for fault in error.faults:
        if "No module named" in fault.hint:
            message = fault.hint[fault.hint.index("No module named") :].split("|")[0].strip()
            return InvalidInput([Fault(where="installation", message=message, hint=install_hint("train"))])
    return error


def engine_line(settings: Settings) -> tuple[str, ...]:
    """Return the engine's command line."""
    bound = settings.model_cache_bytes
    return engine_command(("train",), threads=settings.threads, device=settings.device, model_cache_bytes=bound)


def wandb_key(environment: Mapping[str, str]) -> SecretStr | None:
    """Return the key from where the package `wandb` takes it first."""
    key = environment.get("WANDB_API_KEY", "").strip()
    return SecretStr(key) if key else None


def _work_directory(settings: Settings) -> Path:
    return settings.work_directory or settings.data / "standalone"


def _engines(settings: Settings) -> Engines:
    kernels = KernelDir(directory=_work_directory(settings).absolute() / KERNEL_DIRECTORY)
    start = functools.partial(
        launch, environment=os.environ, threads=settings.threads, clock_s=monotonic_s, kernels=kernels
    )
    return Engines(
        commands={"train": engine_line(settings)}, launch=start, hello_s=HELLO_S, stop_grace_s=STOP_GRACE_S
    )


def _webhook(plan: StandaloneInput, http: httpx.Client) -> WebhookConfig | None:
    if plan.webhook is None:
        return None
    url, secret = plan.webhook
    return WebhookConfig(url=url, secret=secret, http=http, now_s=time.time)


def _say_in_signal(text: str) -> None:
    # Not sys.stderr: the handler may interrupt a write to it, and buffers are not reentrant.
    os.write(2, f"{text}\n".encode())


# ---- the end ----


def _forget_job(plan: StandaloneInput) -> None:
    """Let another run use the storage, when the failed one has stored no checkpoint there."""
    with contextlib.suppress(Unavailable):
        if not plan.storage.checkpoints():
            plan.storage.forget_job()


def _report(
    platform: StoragePlatform, outcome: AttemptOutcome, plan: StandaloneInput, out: Output, *, seconds: float
) -> tuple[int, dict[str, Any]]:
    code, record, stored = exit_code_of(outcome), platform.request.record, platform.last_stored
    failed = outcome if isinstance(outcome, AttemptFailed) else None
    if failed and (failed.faults or code is RunExitCode.FAILED):
        _forget_job(plan)
    if failed and failed.faults:
        raise InvalidInput(failed.faults)
    if failed:
        out.say(f"failed ({failed.reason}): {failed.message}")
        if code is RunExitCode.CRASHED:
            where = "from the last checkpoint" if stored else "from the beginning: nothing is stored yet"
            out.hint(f"try again: the same command goes on {where}")
    elif isinstance(outcome, Finished):
        out.say(f"done: {outcome.step} steps, {duration(seconds)}")
        for each in platform.files:
            out.say(f"  {plan.out / str(each['name'])}  {size(int(str(each['size_bytes'])))}")
    else:
        where = f"step {stored.step} is stored" if stored else "nothing is stored yet"
        out.say(f"stopped: {where}; the same command goes on from there")
    webhooks = platform.deps.webhooks
    told = {
        "job_id": record.job_id,
        "state": "failed" if failed else "succeeded" if code is RunExitCode.DONE else "stopped",
        "exit_code": int(code),
        "error": {"reason": failed.reason, "message": failed.message} if failed else None,
        "resumed_from": platform.resume.step if platform.resume else None,
        "checkpoint": stored.model_dump(mode="json") if stored else None,
        "not_stored": platform.given_up,
        "webhooks": {"delivered": webhooks.delivered, "given_up": webhooks.given_up},
        "files": [{**each, "path": str(plan.out / str(each["name"]))} for each in platform.files],
        "seed": record.spec["seed"],
        "spec_sha256": record.spec_sha256,
        "data_sha256": record.data_sha256,
        "seconds": round(seconds, 1),
        "summary": outcome.summary if isinstance(outcome, Finished) else {},
    }
    return code, told
