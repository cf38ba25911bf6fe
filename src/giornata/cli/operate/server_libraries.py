"""The libraries of the extra `server`, which the client is installed without."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from giornata.domain.errors import Fault, InvalidInput, install_hint


@contextmanager
def server_libraries() -> Iterator[None]:
    """Import the server's modules inside. Raises InvalidInput that says how to install a library that is missing.

    The garbage collector is suspended meanwhile: it would take a fifth of the time, and what is imported stays.
    Afterwards the collector leaves these objects out of its searches.
    """
    gc.disable()
    try:
        yield
    except ModuleNotFoundError as error:
        message, hint = f"{error.name} is not installed", install_hint("server")
        raise InvalidInput([Fault(where="installation", message=message, hint=hint)]) from None
    finally:
        gc.freeze()
        gc.enable()
