"""Words that the shell completes from a server: the ids of jobs."""

import typer

TIMEOUT_S = 1.0
"""Whoever presses Tab waits for the server this long at most, and is then given nothing."""
MOST_JOBS = 50


def job_ids(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The newest jobs whose id begins so, each with its name and state. None when no server answers."""
    import httpx

    from giornata.cli.connection import connect
    from giornata.cli.options import settings_of
    from giornata.client.retry import Backoff
    from giornata.client.trust import trusted
    from giornata.domain.errors import GiornataError

    def hurry(request: httpx.Request) -> None:
        request.extensions["timeout"] = httpx.Timeout(TIMEOUT_S).as_dict()

    try:
        with (
            httpx.Client(event_hooks={"request": [hurry]}, verify=trusted()) as http,
            connect(settings_of(context), http=http, backoff=Backoff(retries=0)) as client,
        ):
            newest = [job for job, _ in zip(client.jobs(), range(MOST_JOBS), strict=False)]
    except GiornataError:
        return []
    return [(job.id, f"{job.name}, {job.state}") for job in newest if job.id.startswith(incomplete)]
