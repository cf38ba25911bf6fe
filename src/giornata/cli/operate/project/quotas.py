"""Command `giornata project quotas`: show and set the limits of a project."""

from typing import Annotated, Any

import typer

from giornata.cli.options import JsonFlag, check_message, settings_of
from giornata.cli.settings.connection import connect
from giornata.cli.ui.output import Output, reporting
from giornata.cli.ui.text import parse_size, size
from giornata.domain.billing.money import format_usd
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.project.quotas import LimitUse, ProjectQuotas, SetQuotas

LIFTED = "none"
Amount = str | None


def _limit(metavar: str, text: str) -> Any:
    return typer.Option(metavar=metavar, help=f"{text}; none: no limit.", show_default=False)


def project_quotas(
    context: typer.Context,
    project_id: Annotated[str, typer.Argument(metavar="ID", help="The project's id.", show_default=False)],
    running_jobs: Annotated[Amount, _limit("N|none", "Jobs that run at a time")] = None,
    queued_jobs: Annotated[Amount, _limit("N|none", "Jobs and orders that wait")] = None,
    pictures_per_day: Annotated[Amount, _limit("N|none", "Pictures ordered on a day in UTC")] = None,
    stored: Annotated[Amount, _limit("SIZE|none", "Stored bytes, such as 50GB")] = None,
    priority: Annotated[Amount, _limit("N|none", "Highest priority of a job")] = None,
    requests_per_s: Annotated[Amount, _limit("N|none", "Requests a second of the project")] = None,
    requests_per_s_per_key: Annotated[Amount, _limit("N|none", "Requests a second of each key")] = None,
    base: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN|none", help="Allowed base model; may be repeated.", show_default=False),
    ] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN|none", help="Allowed adapter; may be repeated.", show_default=False),
    ] = None,
    open_orders: Annotated[Amount, _limit("N|none", "Orders of pictures that have not ended")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show or set the quotas of a project.

    A limit that is not named stays. Without an option the command shows the limits and their use.
    """
    given: dict[str, tuple[str, object]] = {}
    with reporting(as_json, see=("project", "list")) as out:
        numbers = {
            "max_running_jobs": ("--running-jobs", running_jobs),
            "max_queued_jobs": ("--queued-jobs", queued_jobs),
            "max_open_orders": ("--open-orders", open_orders),
            "max_pictures_per_day": ("--pictures-per-day", pictures_per_day),
            "max_priority": ("--priority", priority),
            "max_requests_per_s": ("--requests-per-s", requests_per_s),
            "max_requests_per_s_per_key": ("--requests-per-s-per-key", requests_per_s_per_key),
        }
        given |= {name: (opt, _number(text, opt)) for name, (opt, text) in numbers.items() if text is not None}
        if stored is not None:
            most = None if stored == LIFTED else parse_size(stored, option="--stored")
            given["max_stored_bytes"] = ("--stored", most)
        patterns = {"allowed_base_models": ("--base", base), "allowed_adapters": ("--adapter", adapter)}
        given |= {name: (opt, _patterns(listed)) for name, (opt, listed) in patterns.items() if listed}
        check_message(SetQuotas, **given)
        with connect(settings_of(context)) as client:
            if given:
                body = SetQuotas.model_validate({name: value for name, (_, value) in given.items()})
                found = client.set_project_quotas(project_id, body)
            else:
                found = client.project_quotas(project_id)
        _show(found, out)
        out.result(found)


def _number(text: str, option: str) -> int | None:
    if text == LIFTED:
        return None
    try:
        return int(text)
    except ValueError:
        hint = "give a whole number, or: none"
        raise InvalidInput([Fault(where=option, message=f"{text!r} is not a number", hint=hint)]) from None


def _patterns(listed: list[str]) -> tuple[str, ...] | None:
    return None if listed == [LIFTED] else tuple(listed)


def _show(found: ProjectQuotas, out: Output) -> None:
    spent = found.monthly_spend_micro_usd
    rows = [
        ("running jobs", *_counted(found.running_jobs)),
        ("queued jobs", *_counted(found.queued_jobs)),
        ("open orders", *_counted(found.open_orders)),
        ("pictures a day", *_counted(found.pictures_per_day)),
        ("stored", size(found.stored_bytes.used), _words(found.stored_bytes.limit, size)),
        ("spent this month", format_usd(spent.used), _words(spent.limit, format_usd)),
        ("priority", "", _words(found.max_priority, str)),
        ("requests a second", "", _words(found.max_requests_per_s, str)),
        ("... of each key", "", _words(found.max_requests_per_s_per_key, str)),
        ("base models", "", _listed(found.allowed_base_models)),
        ("adapters", "", _listed(found.allowed_adapters)),
    ]
    out.table(("quota", "used", "limit"), rows, right=(1,))


def _counted(use: LimitUse) -> tuple[str, str]:
    return str(use.used), _words(use.limit, str)


def _words(limit: int | None, say: Any) -> str:
    return LIFTED if limit is None else str(say(limit))


def _listed(patterns: tuple[str, ...] | None) -> str:
    return "any" if patterns is None else ", ".join(patterns)
