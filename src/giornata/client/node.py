"""The node's side of the HTTP contract: one typed method for each route under `/v1/node`.

Each method makes exactly one request, but where the server is older than the node: what it refuses is sent once more
without the fields that it does not know. Who may repeat a request, and for how long, is the caller's business: a node
repeats until its lease ends (`giornata.agent.attempt.lease`).
"""

import json
import logging
import time
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import quote

import httpx
from pydantic import ValidationError

from giornata.client.known_fields import JSON_TYPE, KnownFields
from giornata.client.problems import raise_for_problem
from giornata.domain.errors import ProtocolMismatch, Unavailable
from giornata.domain.protocol_versions import SpokenVersions, versions_of
from giornata.protocol import PROTOCOL_HEADER, SPOKEN
from giornata.protocol.model import Message, Reply
from giornata.protocol.node.node_checks import ChecksNoted, NodeChecks, NodePolicy
from giornata.protocol.node.pictures import PictureResults, PictureResultsReply, PictureUploads, PictureUploadUrls
from giornata.protocol.node.work import (
    AnyLease,
    AttemptEnded,
    CacheReply,
    Claim,
    ClaimReply,
    CommitArtifact,
    CommitCache,
    CommitCheckpoint,
    Committed,
    CompleteAttempt,
    FailAttempt,
    Heartbeat,
    HeartbeatReply,
    LogLines,
    MetricBatch,
    NoticeReport,
    ReleaseAttempt,
)
from giornata.protocol.uploads import RenewParts, UploadReply, UploadRequest, UploadTicket

R = TypeVar("R", bound=Reply)

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
# A commit makes the server read the bytes back to verify them, and so does a rejection; everything else answers in
# milliseconds.
COMMIT_TIMEOUT_S = 120.0
LONGEST_REASON = 1000
KNOWN_FOR_S = 600.0


class NodeClient:
    """Calls the server for one node.

    `http` has the server's address as its base URL and no credentials of its own: calls for an attempt carry the
    lease's token, all others `node_key`. That may be a function, asked at each call, since tokens that a provider
    gives live for minutes; what it raises the call raises. All methods raise the classes of
    `giornata.domain.errors`; a connection that fails or times out is Unavailable. Each request names the versions of
    the protocol that the node speaks; a server that speaks none of them is ProtocolMismatch. Safe to use from several
    threads.
    """

    def __init__(
        self,
        http: httpx.Client,
        *,
        node_key: str | Callable[[], str],
        timeout_s: float = 15.0,
        monotonic_s: Callable[[], float] = time.monotonic,
        spoken: SpokenVersions = SPOKEN,
    ) -> None:
        self._http, self._spoken = http, spoken
        self._node_key = node_key
        self._timeout_s = timeout_s
        self._server_fields = _ServerFields(http, monotonic_s)

    def claim(self, claim: Claim) -> ClaimReply:
        """Ask for a job, waiting up to `claim.wait_s` for one."""
        timeout_s = claim.wait_s + self._timeout_s
        return self._negotiated("POST", "/v1/node/claim", claim, ClaimReply, timeout_s=timeout_s)

    def policy(self, fleet: str) -> NodePolicy:
        """Return the requirements of the fleet for its nodes."""
        url = f"/v1/node/policy?fleet={quote(fleet, safe='')}"
        return self._negotiated("GET", url, None, NodePolicy, timeout_s=COMMIT_TIMEOUT_S)

    def report_checks(self, checks: NodeChecks) -> ChecksNoted:
        """Say what the node found out about itself."""
        return self._negotiated("POST", "/v1/node/checks", checks, ChecksNoted, timeout_s=self._timeout_s)

    def heartbeat(self, lease: AnyLease, beat: Heartbeat) -> HeartbeatReply:
        """Renew the lease. A beat that waits longer than the time between beats is worth less than the next."""
        timeout_s = min(self._timeout_s, max(1.0, lease.renew_every_s))
        return self._attempt(lease, "heartbeat", beat, HeartbeatReply, timeout_s=timeout_s)

    def log(self, lease: AnyLease, lines: LogLines) -> None:
        """Append to the job's log; repeating the same lines adds nothing."""
        self._attempt(lease, "log", lines, Reply)

    def metrics(self, lease: AnyLease, batch: MetricBatch) -> None:
        """Record metrics of the attempt by step."""
        self._attempt(lease, "metrics", batch, Reply)

    def notice(self, lease: AnyLease, report: NoticeReport) -> None:
        """Put something into the job's events."""
        self._attempt(lease, "notice", report, Reply)

    def request_uploads(self, lease: AnyLease, request: UploadRequest) -> UploadReply:
        """Ask where to put files."""
        return self._attempt(lease, "uploads", request, UploadReply)

    def renew_upload(self, lease: AnyLease, upload_id: str, parts: RenewParts) -> UploadTicket:
        """Ask for fresh URLs of an upload under way."""
        return self._attempt(lease, f"uploads/{quote(upload_id, safe='')}/urls", parts, UploadTicket)

    def commit_checkpoint(self, lease: AnyLease, commit: CommitCheckpoint) -> Committed:
        """Make an uploaded checkpoint exist."""
        return self._attempt(lease, "checkpoints", commit, Committed, timeout_s=COMMIT_TIMEOUT_S)

    def reject_checkpoint(self, lease: AnyLease, step: int, message: str) -> None:
        """Say that a committed checkpoint's bytes do not hold."""
        body = _Rejection(message=message[:LONGEST_REASON])
        self._attempt(lease, f"checkpoints/{step}/reject", body, Reply, timeout_s=COMMIT_TIMEOUT_S)

    def commit_artifact(self, lease: AnyLease, commit: CommitArtifact) -> Committed:
        """Make an uploaded artifact exist."""
        return self._attempt(lease, "artifacts", commit, Committed, timeout_s=COMMIT_TIMEOUT_S)

    def get_cache(self, lease: AnyLease, key: str) -> CacheReply:
        """Look up the cache entry that an earlier job of the project stored under this key."""
        return self._attempt(lease, f"cache/{quote(key, safe='')}", None, CacheReply, method="GET")

    def commit_cache(self, lease: AnyLease, key: str, commit: CommitCache) -> Committed:
        """Leave an uploaded file under this key; the first one stands."""
        path = f"cache/{quote(key, safe='')}"
        return self._attempt(lease, path, commit, Committed, method="PUT", timeout_s=COMMIT_TIMEOUT_S)

    def picture_uploads(self, lease: AnyLease, request: PictureUploads) -> PictureUploadUrls:
        """Ask where to put drawn pictures. Pictures that nobody wants any more get no URL."""
        return self._attempt(lease, "picture-uploads", request, PictureUploadUrls)

    def report_pictures(self, lease: AnyLease, results: PictureResults) -> PictureResultsReply:
        """Report pictures that are uploaded, blocked or failed; repeating the report changes nothing."""
        return self._attempt(lease, "pictures", results, PictureResultsReply, timeout_s=COMMIT_TIMEOUT_S)

    def complete(self, lease: AnyLease, report: CompleteAttempt) -> AttemptEnded:
        """Report that the job is done."""
        return self._attempt(lease, "complete", report, AttemptEnded)

    def fail(self, lease: AnyLease, report: FailAttempt) -> AttemptEnded:
        """The attempt cannot go on."""
        return self._attempt(lease, "fail", report, AttemptEnded)

    def release(self, lease: AnyLease, report: ReleaseAttempt) -> AttemptEnded:
        """Give the job back to the queue."""
        return self._attempt(lease, "release", report, AttemptEnded)

    def _key(self) -> str:
        return self._node_key if isinstance(self._node_key, str) else self._node_key()

    def _attempt(
        self,
        lease: AnyLease,
        path: str,
        body: Message | None,
        reply: type[R],
        *,
        method: str = "POST",
        timeout_s: float | None = None,
    ) -> R:
        url = f"/v1/node/attempts/{quote(lease.attempt_id, safe='')}/{path}"
        return self._send(method, url, body, reply, token=lease.token, timeout_s=timeout_s or self._timeout_s)

    def _negotiated(self, method: str, url: str, body: Message | None, reply: type[R], *, timeout_s: float) -> R:
        """Make a call of the node itself. Raises ProtocolMismatch when the server chose a version that is not spoken
        here, as one does that is too old to choose.
        """
        response = self._response(method, url, body, token=self._key(), timeout_s=timeout_s)
        chosen = versions_of(response.headers.get(PROTOCOL_HEADER))
        if chosen.newest not in self._spoken:
            raise ProtocolMismatch(
                f"the server speaks version {chosen} of the protocol between node and server, and this node "
                f"{self._spoken}; upgrade the server, or install the server's version of Giornata on the node"
            )
        return _parsed(response, reply)

    def _send(
        self, method: str, url: str, body: Message | None, reply: type[R], *, token: str, timeout_s: float
    ) -> R:
        return _parsed(self._response(method, url, body, token=token, timeout_s=timeout_s), reply)

    def _response(
        self, method: str, url: str, body: Message | None, *, token: str, timeout_s: float
    ) -> httpx.Response:
        content = None if body is None else body.model_dump_json().encode()
        if content is None:
            response = self._asked(method, url, None, token=token, timeout_s=timeout_s)
        else:
            response = self._told(method, url, content, token=token, timeout_s=timeout_s)
        raise_for_problem(response)
        return response

    def _told(self, method: str, url: str, content: bytes, *, token: str, timeout_s: float) -> httpx.Response:
        """Send the message, and once more without the fields that an older server does not know."""
        known = self._server_fields.known()
        sent = content if known is None else _without_unknown(known, method, url, content)
        response = self._asked(method, url, sent, token=token, timeout_s=timeout_s)
        if response.status_code != httpx.codes.BAD_REQUEST or known is not None:
            return response
        known = self._server_fields.ask()
        older = content if known is None else _without_unknown(known, method, url, content)
        if known is None or older == content:
            return response
        self._server_fields.remember(known)
        log.warning("the server is older than this node: it does not know all fields of %s %s", method, url)
        return self._asked(method, url, older, token=token, timeout_s=timeout_s)

    def _asked(self, method: str, url: str, content: bytes | None, *, token: str, timeout_s: float) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}", "Accept": JSON_TYPE, PROTOCOL_HEADER: str(self._spoken)}
        if content is not None:
            headers["Content-Type"] = JSON_TYPE
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
        try:
            return self._http.request(method, url, content=content, headers=headers, timeout=timeout)
        except httpx.TransportError as error:
            raise Unavailable(f"{method} {url}: {type(error).__name__}: {error}") from error


class _ServerFields:
    """Remembers for a while which fields an older server knows. After that the server may have been upgraded."""

    def __init__(self, http: httpx.Client, monotonic_s: Callable[[], float]) -> None:
        self._http, self._monotonic_s = http, monotonic_s
        self._found: tuple[float, KnownFields] | None = None

    def known(self) -> KnownFields | None:
        """Return the fields that the server has listed lately; None: it has not been asked."""
        found = self._found
        return found[1] if found is not None and self._monotonic_s() - found[0] < KNOWN_FOR_S else None

    def ask(self) -> KnownFields | None:
        """Ask the server for its fields. Returns None when the server does not say."""
        try:
            response = self._http.get("/openapi.json", timeout=CONNECT_TIMEOUT_S)
            return KnownFields(response.json()) if response.is_success else None
        except (httpx.TransportError, ValueError, AttributeError):
            return None

    def remember(self, known: KnownFields) -> None:
        """Leave out what is not known for the next while."""
        self._found = (self._monotonic_s(), known)


class _Rejection(Message):
    message: str


def _without_unknown(known: KnownFields, method: str, url: str, content: bytes) -> bytes:
    """Return the body without the fields that the server does not know; the same bytes where it knows all."""
    body = json.loads(content)
    pruned = known.pruned(method, url, body)
    return content if pruned == body else json.dumps(pruned).encode()


def _parsed(response: httpx.Response, reply: type[R]) -> R:
    """The typed reply. An empty body stands for an empty object; anything else that does not fit is no server of
    ours, or a proxy's page, and may be another answer next time."""
    try:
        return reply.model_validate_json(response.content or b"{}")
    except ValidationError as error:
        raise Unavailable(f"{response.request.url.path}: an answer that cannot be read: {error}") from error
