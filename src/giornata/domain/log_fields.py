"""What a line of the log is about: the request, the job, the attempt that this thread or task works on."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

request_id: ContextVar[str] = ContextVar("request_id", default="")
_about: ContextVar[Mapping[str, str]] = ContextVar("about", default={})  # noqa: B039 - nobody changes it


@contextmanager
def log_about(**fields: str) -> Iterator[None]:
    """Lines that are logged meanwhile carry these fields."""
    token = _about.set({**_about.get(), **fields})
    try:
        yield
    finally:
        _about.reset(token)


def log_fields() -> dict[str, str]:
    """Those of the line that is logged now."""
    asked = request_id.get()
    return {**({"request_id": asked} if asked else {}), **_about.get()}
