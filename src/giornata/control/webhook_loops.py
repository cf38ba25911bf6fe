"""The loops of webhooks: events become deliveries, deliveries are sent, old ones are deleted."""

from collections.abc import Callable
from functools import partial

from giornata.control.context import Context
from giornata.control.loops import Loop
from giornata.control.notifications.fan_out import FanOut
from giornata.control.notifications.send_due import drop_old, send_due


def webhook_loops() -> tuple[Loop, ...]:
    """Return the loops of one server. None is vital: a server whose webhooks are late still serves jobs."""
    return (
        Loop(name="fan-out", every_s=0.5, run=partial(_run, FanOut()), vital=False),
        Loop(name="webhooks", every_s=0.5, run=partial(_run, send_due), vital=False),
        Loop(name="webhook-history", every_s=600.0, run=partial(_run, drop_old), vital=False),
    )


def _run(turn: Callable[[Context], int], ctx: Context) -> None:
    """Run a turn, and say nothing of it: what a loop says wakes the nodes that wait for work."""
    turn(ctx)
