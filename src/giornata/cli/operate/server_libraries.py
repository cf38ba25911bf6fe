"""The libraries of the extra `server`, which the client is installed without."""

from collections.abc import Iterator
from contextlib import contextmanager

from giornata.domain.errors import Fault, InvalidInput, install_hint


@contextmanager
def server_libraries() -> Iterator[None]:
    """Import the server's modules inside. Raises InvalidInput that says how to install a library that is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        message, hint = f"{error.name} is not installed", install_hint("server")
        raise InvalidInput([Fault(where="installation", message=message, hint=hint)]) from None
