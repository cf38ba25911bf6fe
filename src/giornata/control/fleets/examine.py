"""Ask a provider what its listing does not say: why nodes do not come, and whether they are as the settings say."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from giornata.control.context import Context, GovernedFleet
from giornata.control.fleets.provider_backoff import keep_quiet
from giornata.control.ports.fleet import FleetDriver, Instance, InstanceState, Outdated, Renews, TellsShortage
from giornata.control.ports.node_queries.fleet_store import FleetRow
from giornata.domain.errors import FleetRefused, FleetUnavailable

# Such questions cost several requests each, and their answers change slowly.
EXAMINED_EVERY_MS = 60_000
LONGEST_WORDS = 1000
SETTLES_WITHIN_MS = 60_000  # providers take their time


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The provider's answers. None: the provider was not asked or did not answer, and its last answer stays in
    force."""

    shortage: str | None = None
    outdated: Outdated | None = None
    examined_at_ms: int | None = None


def examine(ctx: Context, governed: GovernedFleet, listed: Sequence[Instance]) -> Findings:
    """Ask what the provider's listing does not say: at most once a minute, and always while the fleet is rolled."""
    now_ms = ctx.clock.now_ms()
    with ctx.store.read() as tx:
        row = tx.fleets.get(governed.name)
    fleet = governed.fleet
    staying = [each for each in listed if each.state is not InstanceState.STOPPING]
    running = sum(each.state is InstanceState.RUNNING for each in staying)
    short = row is not None and running < row.desired
    many = row is not None and _is_settled(row, now_ms) and row.desired < len(staying)
    due = row is None or row.examined_at_ms is None or row.examined_at_ms + EXAMINED_EVERY_MS <= now_ms
    # Where nodes are wanted and none is made, it may be the settings that they would be made with.
    awaited = staying or (row is not None and row.desired > 0)
    shortage, outdated = None if short else "", None if awaited else Outdated()
    with _without_harm(ctx, governed):
        if row is not None and many:
            shortage = _why_many(fleet, there=len(staying), asked=row.desired)
        elif short and due and isinstance(fleet, TellsShortage):
            shortage = fleet.shortage()[:LONGEST_WORDS]
    rolled = row is not None and row.roll_since_ms is not None
    with _without_harm(ctx, governed):
        if awaited and (due or rolled) and isinstance(fleet, Renews):
            outdated = fleet.outdated()
    # A roll waits for an answer, not for a question.
    examined = outdated is not None if rolled else due
    return Findings(shortage=shortage, outdated=outdated, examined_at_ms=now_ms if examined else None)


def _is_settled(row: FleetRow, now_ms: int) -> bool:
    """Return True when the provider has had time to do what it was asked. Then another program changes the number."""
    return row.told == row.desired and (row.changed_at_ms or 0) + SETTLES_WITHIN_MS < now_ms


def _why_many(fleet: FleetDriver, *, there: int, asked: int) -> str:
    """Return why more nodes run than were asked for. The words stand until the next turn of scaling sets the number
    again.
    """
    why = fleet.shortage() if isinstance(fleet, TellsShortage) else ""
    return "; ".join(filter(None, [f"{there} are there, {asked} were asked for", why]))[:LONGEST_WORDS]


@contextmanager
def _without_harm(ctx: Context, governed: GovernedFleet) -> Iterator[None]:
    """Keep quiet about a provider that gives no answer: its listing stays good all the same."""
    try:
        yield
    except (FleetUnavailable, FleetRefused) as error:
        keep_quiet(ctx, governed, error)
