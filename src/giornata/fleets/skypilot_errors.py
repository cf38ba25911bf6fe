"""SkyPilot's errors, as the control plane knows them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from giornata.domain.errors import FleetRefused, FleetUnavailable, GiornataError
from giornata.fleets.skypilot_cluster import LONGEST_TROUBLE

REFUSED = (
    "APINotSupportedError", "APIVersionMismatchError", "ApiServerAuthenticationError", "CloudUserIdentityError",
    "ClusterOwnerIdentityMismatchError", "InvalidCloudConfigs", "InvalidCloudCredentials", "InvalidClusterNameError",
    "InvalidSkyPilotConfigError", "NoCloudAccessError", "NotSupportedError", "PermissionDeniedError",
    "UserRequestRejectedByPolicy",
)  # fmt: skip


@contextmanager
def asking(sky: Any) -> Iterator[None]:
    """SkyPilot's errors have no common root: those that it names, and those that its HTTP client has.

    Raises FleetRefused when asking again is no use, and FleetUnavailable otherwise.
    """
    named = vars(sky.exceptions)
    refused: tuple[type[Exception], ...] = tuple(named[name] for name in REFUSED if name in named)
    known = (each for each in named.values() if isinstance(each, type) and issubclass(each, Exception))
    # ImportError: the parts of SkyPilot for some cloud are not installed here.
    errors: tuple[type[Exception], ...] = (*known, RuntimeError, OSError, ImportError)
    try:
        yield
    except GiornataError:
        raise
    except refused as error:
        raise FleetRefused(f"SkyPilot refuses: {said(error)}") from error
    except errors as error:
        raise FleetUnavailable(f"SkyPilot cannot be asked: {said(error)}") from error
    except (ValueError, TypeError) as error:
        raise FleetRefused(f"SkyPilot does not take it: {said(error)}") from error


def said(error: BaseException) -> str:
    """The error in one line of a bounded length."""
    return f"{type(error).__name__}: {str(error)[:LONGEST_TROUBLE]}"
