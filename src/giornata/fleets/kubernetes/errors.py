"""Failed calls of a cluster's API, as errors that an operator can act on."""

import json
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import urllib3.exceptions
from kubernetes.client.exceptions import ApiException

from giornata.domain.errors import FleetRefused, FleetUnavailable

LONGEST_WORDS = 700
HINTS = {
    401: "the cluster does not accept the server's credentials: renew the kubeconfig or the ServiceAccount's token",
    403: "the server's account lacks this right: apply deploy/kubernetes/server-rbac.yaml",
}
# What Go's libraries say, and what it means.
_GO: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r",? error found in #\d+ byte of .*", ""),
        (r"rpc error: code = \w+ desc = ", ""),
        (r"(?:v1\.\w+\.\w+: )+", ""),
        (r"(?:unmarshalerDecoder|readObjectFieldAsBytes|ReadObjectCB)[^:]*: ", ""),
        (r"quantities must match the regular expression '[^']*'", "this is no quantity such as 500m, 4 or 24Gi"),
        (r"unable to parse quantity's suffix", "this is no quantity such as 500m, 4 or 24Gi"),
        (
            r"json: cannot unmarshal (\w+) into Go (?:struct field \w+\.([\w.]+)|value) of type [\w.\[\]*]+",
            r"\2 has a value of the wrong type: \1",
        ),
        (r"\s*\(e\.g\. .*?regex used for validation is '[^']*'\)", ""),
        (r"failed to pull and unpack image \"([^\"]+)\": failed to resolve reference \"[^\"]+\": ", r"image \1: "),
        (r"(?:Get|Post|Put|Patch) \"[^\"]*\": ", ""),
        (r"context deadline exceeded(?: \(Client\.Timeout[^)]*\))?", "no answer came in time"),
        (r"dial tcp (\S+): connect: ", r"\1: "),
        (r"dial tcp: lookup (\S+)(?: on \S+)?: no such host", r"the name \1 cannot be resolved"),
        (r"net/http: TLS handshake timeout", "no answer came in time"),
    )
)


class Missing(FleetRefused):
    """404: there is no such object, or no such namespace."""


class ObjectConflict(FleetRefused):
    """409: the name is taken, or the object is not the one, or not in the version, that was meant."""


class Expired(FleetUnavailable):
    """410: the rest of a list can no longer be read; begin again."""


def in_words(message: str) -> str:
    """A message of the cluster without what only its authors understand."""
    for pattern, words in _GO:
        message = pattern.sub(words, message)
    return message.strip()[:LONGEST_WORDS]


@contextmanager
def translated(host: str, *, timeout_s: float) -> Iterator[None]:
    """Translate errors of the cluster or the client into FleetUnavailable or FleetRefused."""
    try:
        yield
    except ApiException as error:
        raise _meaning(error) from None
    except (urllib3.exceptions.HTTPError, OSError) as error:
        why = _unreachable(error, timeout_s=timeout_s)
        raise FleetUnavailable(f"the cluster at {host} cannot be reached: {why}") from error
    except ValueError as error:  # 200 with something that is no object of the API: a proxy in between
        raise FleetUnavailable(
            f"the answer from {host} is no object of the Kubernetes API: check the address, and proxies in between"
        ) from error


def _meaning(error: ApiException) -> Exception:
    status, said = error.status or 0, f"the cluster says {error.status}: {in_words(_message(error))}"
    named: Exception | None = {404: Missing(said), 409: ObjectConflict(said), 410: Expired(said)}.get(status)
    if status == 422 and "metadata.uid" in _fields(error):  # how a patch of what is another object now is refused
        named = ObjectConflict(said)
    if named is not None:
        return named
    if status == 429 or status >= 500 or status < 400:
        return FleetUnavailable(said, retry_after_s=_retry_after_s(error))
    return FleetRefused(f"{said}; {HINTS[status]}" if status in HINTS else said)


def _message(error: ApiException) -> str:
    """The Status object's message, or the beginning of whatever came."""
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, KeyError, TypeError):
        return str(error.body or error.reason)[:200]


def _fields(error: ApiException) -> frozenset[str]:
    """The fields that a Status object finds fault with."""
    try:
        return frozenset(str(each["field"]) for each in json.loads(error.body or "")["details"]["causes"])
    except (ValueError, KeyError, TypeError):
        return frozenset()


def _retry_after_s(error: ApiException) -> float | None:
    try:
        return max(0.0, float((error.headers or {}).get("Retry-After", "")))
    except ValueError:
        return None


def _unreachable(error: BaseException, *, timeout_s: float) -> str:
    reason = getattr(error, "reason", None)
    first = reason if isinstance(reason, BaseException) else error  # MaxRetryError only wraps what happened
    causes = list(_causes(first))
    for each in causes:
        if isinstance(each, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted ({each.verify_message})"
    for each in causes:
        if isinstance(each, urllib3.exceptions.NameResolutionError):
            return "its name cannot be resolved"
        if isinstance(each, urllib3.exceptions.NewConnectionError):  # to urllib3 it is a kind of timeout
            break
        if isinstance(each, TimeoutError | urllib3.exceptions.TimeoutError):
            return f"it did not answer within {timeout_s:g} s"
        if isinstance(each, ssl.SSLError | urllib3.exceptions.SSLError):
            return "it does not speak TLS as expected"
    system = [each.strerror for each in causes if isinstance(each, OSError) and each.strerror]
    return system[-1].lower() if system else "it ended the connection without an answer"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it came from: by raising, or as an argument, as urllib3 does it."""
    while error is not None:
        yield error
        given = (each for each in error.args if isinstance(each, BaseException))
        error = error.__cause__ or error.__context__ or next(given, None)
