"""`giornata train --standalone`: the composition root of a run without a server."""

import contextlib
import functools
import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
from pydantic import SecretStr

from giornata.agent.departure import Departure
from giornata.agent.engine_process import EngineLost
from giornata.agent.engines import Engines, KernelRoom
from giornata.agent.main import launch, monotonic_s
from giornata.agent.settings import engine_command
from giornata.agent.watchdog import crash_of
from giornata.agent.workplace import KERNEL_DIRECTORY, Workplace
from giornata.cli.jobs.picture_folders import folder_notes
from giornata.cli.settings import Settings
from giornata.cli.settings.private_files import NODE, keep_private, private_folder
from giornata.cli.standalone_input import Alone, Plan, make_plan, order_of
from giornata.cli.standalone_words import RunView
from giornata.cli.ui.output import Output
from giornata.cli.ui.text import duration, size
from giornata.client.trust import trusted
from giornata.domain.errors import Fault, InvalidInput, Unavailable, install_hint
from giornata.domain.reasons import Reason
from giornata.protocol.events import EventType
from giornata.standalone.bell import Bell, Ringing
from giornata.standalone.ending import Ending, ExitCode, Failed, Finished, Interrupted, exit_code_of
from giornata.standalone.order import Order
from giornata.standalone.porter import Porter
from giornata.standalone.run import Run, Surroundings, deliver

HELLO_S = 300.0  # loading torch from a cold disk takes minutes on a rented machine
STOP_GRACE_S = 10.0
STORAGE_PATIENCE_S = 600.0
WEBHOOK_TIMEOUT_S = 10.0
WEBHOOK_PATIENCE_S = 60.0
EXIT_AT_ONCE = 130


def train_alone(
    alone: Alone, *, settings: Settings, fields: Callable[[], dict[str, Any]], others: Iterable[Fault], out: Output
) -> int:
    """Run to the end, and return the exit code. Raises InvalidInput with every fault, `others` among them, before
    anything is computed."""
    plan = make_plan(alone, settings, fields, others=others)
    try:
        order = order_of(plan)
        for note in folder_notes(plan.fields, plan.folder, plan.class_folder):
            out.hint(note)
        return _run(plan, order, settings, out)
    except Unavailable as error:
        out.say(f"the storage {plan.shelf.name} cannot be used just now: {error}")
        out.result({"error": {"code": error.code, "message": str(error), "faults": []}})
        return ExitCode.STORAGE_AWAY


# ---- the run ----


def _run(plan: Plan, order: Order, settings: Settings, out: Output) -> int:
    departure, began_s = Departure(), time.monotonic()
    umask = keep_private()  # for all but the results, which are the user's
    engines = _engines(settings)
    workplace = Workplace(private_folder(_work_directory(settings), named="work_directory", holds=NODE))
    with contextlib.ExitStack() as stack:
        stack.callback(workplace.close)
        stack.callback(engines.stop)
        _install_signals(engines, departure)
        http = stack.enter_context(httpx.Client(timeout=WEBHOOK_TIMEOUT_S, verify=trusted()))
        view = stack.enter_context(RunView(out, total=order.spec.max_train_steps))
        porter = Porter(
            grumble=view.say, monotonic_s=monotonic_s, rng=random.SystemRandom(), patience_s=STORAGE_PATIENCE_S
        )
        stack.callback(porter.close)
        bell = Bell(_ringing(plan, http), job_id=order.record.job_id, grumble=view.say, rng=random.SystemRandom())
        around = Surroundings(
            shelf=plan.shelf,
            room=stack.enter_context(workplace.room("standalone")),
            out=plan.out,
            porter=porter,
            bell=bell,
            listener=view,
            departure=departure,
            monotonic_s=monotonic_s,
            now=lambda: datetime.now(UTC),
            grace_s=settings.shutdown_grace_s,
            stall_s=settings.stall_timeout_s,
            max_at_risk_s=settings.max_at_risk_s,
            wandb_api_key=wandb_key(os.environ),
            results_mode=0o666 & ~umask,
        )
        run = Run(order=order, around=around)
        ending = _conduct(run, engines, view)
        files = _finish(run, ending, plan)
        bell.close(settings.shutdown_grace_s / 2 if departure.requested else WEBHOOK_PATIENCE_S)
    return _report(run, ending, files, plan, out, seconds=time.monotonic() - began_s)


def _conduct(run: Run, engines: Engines, view: RunView) -> Ending:
    record = run.order.record
    resume = run.resume_point()
    if resume is not None:
        view.say(f"{record.job_id} goes on from step {resume.step}")
    else:
        again = "begins again: there is no checkpoint yet" if run.order.resumed else "begins"
        view.say(f"{record.job_id} {again}: {len(record.pictures)} pictures, seed {record.spec['seed']}")
    try:
        engine = engines.ready("train")
    except EngineLost as lost:
        if (lacking := _without_extra(lost)) is not lost:
            raise lacking from None
        return _never_began(lost)
    except InvalidInput as error:
        raise _without_extra(error) from None
    return run.conduct(engine, resume)


def _never_began(lost: EngineLost) -> Failed:
    """As the end of an engine in the middle of the job: the machine's fault, or nobody knows whose."""
    if lost.exit_code is None:
        message = f"the engine said nothing for {HELLO_S:.0f} s after its start"
    else:
        message = crash_of(lost.exit_code, "before it was ready").message
    return Failed(reason=Reason.CRASHED, message=f"{message}; its last words: {lost.last_words or 'none'}")


def _without_extra(error: InvalidInput) -> InvalidInput:
    """Say what to install when that is all that is wrong."""
    for fault in error.faults:
        if "No module named" in fault.hint:
            message = fault.hint[fault.hint.index("No module named") :].split("|")[0].strip()
            return InvalidInput([Fault(where="installation", message=message, hint=install_hint("train"))])
    return error


def engine_line(settings: Settings) -> tuple[str, ...]:
    """The engine's command line."""
    bound = settings.model_cache_bytes
    return engine_command(("train",), threads=settings.threads, device=settings.device, model_cache_bytes=bound)


def wandb_key(environment: Mapping[str, str]) -> SecretStr | None:
    """From where the package `wandb` takes it first."""
    key = environment.get("WANDB_API_KEY", "").strip()
    return SecretStr(key) if key else None


def _work_directory(settings: Settings) -> Path:
    return settings.work_directory or settings.data / "standalone"


def _engines(settings: Settings) -> Engines:
    kernels = KernelRoom(directory=_work_directory(settings).absolute() / KERNEL_DIRECTORY)
    start = functools.partial(
        launch, environment=os.environ, threads=settings.threads, clock_s=monotonic_s, kernels=kernels
    )
    return Engines(
        commands={"train": engine_line(settings)}, launch=start, hello_s=HELLO_S, stop_grace_s=STOP_GRACE_S
    )


def _ringing(plan: Plan, http: httpx.Client) -> Ringing | None:
    if plan.webhook is None:
        return None
    url, secret = plan.webhook
    return Ringing(url=url, secret=secret, http=http, now_s=time.time)


def _install_signals(engines: Engines, departure: Departure) -> None:
    def leave(number: int, _: FrameType | None) -> None:
        if departure.requested:
            if engines.current is not None:
                engines.current.kill_now()
            os._exit(EXIT_AT_ONCE)
        departure.ask()
        # Not sys.stderr: the handler may interrupt a write to it, and buffers are not reentrant.
        os.write(2, f"{signal.Signals(number).name}: finishing with a checkpoint; once more ends at once\n".encode())

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)


# ---- the end ----


def _finish(run: Run, ending: Ending, plan: Plan) -> list[dict[str, object]]:
    if not isinstance(ending, Finished):
        return []
    run.fetch_earlier()
    files = deliver(run.results, plan.out, mode=run.around.results_mode)
    hashes = "".join(str(each["sha256"]) for each in files)
    data = {"step": ending.step, "files": files}
    run.around.bell.ring(EventType.JOB_SUCCEEDED, at=run.around.now(), data=data, about=hashes)
    return files


def _make_room(plan: Plan) -> None:
    """What cannot succeed has to be changed; where nothing was stored of it, that may be done in the same place."""
    with contextlib.suppress(Unavailable):
        if not plan.shelf.checkpoints():
            plan.shelf.forget_job()


def _report(
    run: Run, ending: Ending, files: list[dict[str, object]], plan: Plan, out: Output, *, seconds: float
) -> int:
    code, record, stored = exit_code_of(ending), run.order.record, run.last_stored
    if isinstance(ending, Failed) and (ending.faults or code is ExitCode.FAILED):
        _make_room(plan)
    match ending:
        case Finished():
            out.say(f"done: {ending.step} steps, {duration(seconds)}")
            for each in files:
                out.say(f"  {plan.out / str(each['name'])}  {size(int(str(each['size_bytes'])))}")
        case Interrupted():
            where = f"step {ending.step} is stored" if ending.step is not None else "nothing is stored yet"
            out.say(f"stopped: {where}; the same command goes on from there")
        case Failed():
            if ending.faults:
                raise InvalidInput(ending.faults)
            out.say(f"failed ({ending.reason}): {ending.message}")
            if code is ExitCode.CRASHED:
                where = (
                    "from the last checkpoint" if stored is not None else "from the beginning: nothing is stored yet"
                )
                out.hint(f"try again: the same command goes on {where}")
    out.result(
        {
            "job_id": record.job_id,
            "state": {Finished: "succeeded", Interrupted: "stopped", Failed: "failed"}[type(ending)],
            "exit_code": int(code),
            "error": {"reason": ending.reason, "message": ending.message} if isinstance(ending, Failed) else None,
            "resumed_from": run.resumed_from,
            "checkpoint": stored.model_dump(mode="json") if stored is not None else None,
            "not_stored": run.around.porter.given_up,
            "webhooks": {"delivered": run.around.bell.delivered, "given_up": run.around.bell.given_up},
            "files": [{**each, "path": str(plan.out / str(each["name"]))} for each in files],
            "seed": record.spec["seed"],
            "spec_sha256": record.spec_sha256,
            "data_sha256": record.data_sha256,
            "seconds": round(seconds, 1),
            "summary": ending.summary if isinstance(ending, Finished) else {},
        }
    )
    return code
