"""The server and its storage as seen by one node: thin, in memory, and steered by the test.

It keeps what was committed and every call in order. It decides nothing that the real one decides: tests say what it
answers, by route, in `answers` (used up first) and `always`.
"""

import hashlib
import json
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

PROBLEM = {"content-type": "application/problem+json"}
Answer = Callable[[httpx.Request], httpx.Response]
PictureKey = tuple[str, int]


def problem(status: int, code: str, detail: str = "") -> Answer:
    body = json.dumps({"type": "about:blank", "title": code, "status": status, "code": code, "detail": detail})
    return lambda _: httpx.Response(status, content=body, headers=PROBLEM)


LOST = problem(409, "lease-lost", "the attempt has ended")
AWAY = problem(503, "unavailable", "away")


def cut(request: httpx.Request) -> httpx.Response:
    """The request arrived, and its reply was lost."""
    raise httpx.ReadError("cut", request=request)


def api_ok(_: httpx.Request) -> httpx.Response:
    """To a heartbeat: go on."""
    return httpx.Response(200, json={"order": "continue", "lease_s": 20.0, "renew_every_s": 0.05, "mtbi_s": 1000.0})


def lease(kind: str = "x-count", *, spec: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "attempt_id": "att_1",
        "attempt": 1,
        "token": "token-1",
        "job_id": "job_1",
        "job_name": "count",
        "kind": kind,
        "spec": {"steps": 20, "every": 5} if spec is None else spec,
        "lease_s": 20.0,
        "renew_every_s": 0.05,
        "mtbi_s": 1000.0,
        "max_at_risk_s": 60.0,
        **fields,
    }


def picture_lease(*prompts: str, attempt: int = 1, **fields: Any) -> dict[str, Any]:
    """A lease of pictures 0, 1, … of order job_N with these prompts; the seed of a picture is its number."""
    pictures = [
        {"order_id": f"job_{attempt}", "number": number, "params": {"prompt": prompt, "seed": number}}
        for number, prompt in enumerate(prompts)
    ]
    return {
        "attempt_id": f"att_{attempt}",
        "token": f"token-{attempt}",
        "batch_key": "b",
        "lease_s": 20.0,
        "renew_every_s": 0.05,
        "pictures": pictures,
        **fields,
    }


@dataclass
class Call:
    route: str
    body: dict[str, Any]
    bearer: str


@dataclass
class FakeNodeApi:
    leases: list[dict[str, Any]] = field(default_factory=list)
    picture_leases: list[dict[str, Any]] = field(default_factory=list)
    answers: dict[str, list[Answer]] = field(default_factory=lambda: defaultdict(list))
    always: dict[str, Answer] = field(default_factory=dict)
    hooks: dict[str, Callable[[], None]] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    uploads: dict[str, bytes] = field(default_factory=dict)
    checkpoints: dict[int, bytes] = field(default_factory=dict)
    artifacts: dict[str, bytes] = field(default_factory=dict)
    caches: dict[str, str] = field(default_factory=dict)
    completes: bool = False  # the last report of pictures ends their lease, and no heartbeat is taken from then on
    pictures: dict[PictureKey, list[bytes | None]] = field(default_factory=lambda: defaultdict(list))
    unwanted: set[PictureKey] = field(default_factory=set)
    left: list[PictureKey] | None = None
    order: str = "continue"
    base_url: str = "http://server"
    _lock: threading.RLock = field(default_factory=threading.RLock)

    # ---- what tests ask ----

    def routes(self, *, without: tuple[str, ...] = ("heartbeat", "metrics", "log", "policy")) -> list[str]:
        return [call.route for call in self.calls if call.route not in without]

    def bodies(self, route: str) -> list[dict[str, Any]]:
        return [call.body for call in self.calls if call.route == route]

    def log(self) -> list[str]:
        return [line for body in self.bodies("log") for line in body["lines"]]

    def add_blob(self, content: bytes, *, served: bytes | None = None) -> dict[str, Any]:
        """A Download of `content`; with `served` storage holds something else."""
        sha256 = hashlib.sha256(content).hexdigest()
        self.blobs[sha256] = content if served is None else served
        return self._download(sha256, len(content))

    def _download(self, sha256: str, size_bytes: int) -> dict[str, Any]:
        return {"sha256": sha256, "size_bytes": size_bytes, "request": self._signed("GET", f"blob/{sha256}")}

    # ---- what the node asks ----

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.base_url, transport=httpx.MockTransport(self.handle))

    def handle(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.startswith("/storage/"):
            return self._storage(request)
        if request.url.path == "/openapi.json":
            return httpx.Response(404)  # it tells nobody which fields it knows
        path = request.url.path.removeprefix("/v1/node/")
        route = re.sub(r"^attempts/[^/]+/", "", path)
        with self._lock:
            body = json.loads(request.content) if request.content else {}
            bearer = request.headers["authorization"].removeprefix("Bearer ")
            self.calls.append(Call(route=route, body=body, bearer=bearer))
            answer = self.answers[route].pop(0) if self.answers[route] else self.always.get(route)
            response = answer(request) if answer is not None else self._answer(request.method, route, body)
        if (hook := self.hooks.pop(route, None)) is not None:
            hook()
        return response

    def _answer(self, method: str, route: str, body: dict[str, Any]) -> httpx.Response:
        first, *rest = route.split("/")
        match first, *rest:
            case ["claim"] if body["max_pictures"] and self.picture_leases:
                return _json({"picture_lease": self.picture_leases.pop(0)})
            case ["claim"]:
                return _json(
                    {"lease": self.leases.pop(0)} if self.leases else {"reason": "empty-queue", "drain": True}
                )
            case ["heartbeat"]:
                reply = {"order": self.order, "lease_s": 20.0, "renew_every_s": 0.05, "mtbi_s": 1000.0}
                return _json(reply)
            case ["uploads"]:
                return _json({"items": [self._ticket(each) for each in body["files"]]})
            case ["picture-uploads"]:
                wanted = [each for each in body["pictures"] if _key(each) not in self.unwanted]
                return _json({"uploads": [self._picture_upload(each) for each in wanted]})
            case ["pictures"]:
                return self._report(body)
            case ["checkpoints"]:
                self.checkpoints[body["step"]] = self._committed(body)
            case ["artifacts"]:
                self.artifacts[body["name"]] = self._committed(body)
            case ["cache", key] if method == "PUT":
                self.blobs[body["sha256"]] = self._committed(body)
                self.caches[key] = body["sha256"]
            case ["cache", key]:
                found = self.caches.get(key)
                return _json({"download": found and self._download(found, len(self.blobs[found]))})
            case ["complete" | "fail" | "release"]:
                return _json({"job_state": "whatever"})
            case _:
                return _json({})
        return _json({"sha256": body["sha256"], "size_bytes": body["size_bytes"]})

    def _ticket(self, file: dict[str, Any]) -> dict[str, Any]:
        upload_id = f"up_{len(self.uploads)}_{file['sha256'][:8]}"
        self.uploads[upload_id] = b""
        put = self._signed("PUT", f"upload/{upload_id}")
        return {"sha256": file["sha256"], "exists": False, "upload_id": upload_id, "put": put}

    def _picture_upload(self, picture: dict[str, Any]) -> dict[str, Any]:
        put = self._signed("PUT", f"upload/{picture['sha256']}")
        return {"order_id": picture["order_id"], "number": picture["number"], "url": put["url"], "headers": {}}

    def _report(self, body: dict[str, Any]) -> httpx.Response:
        """Take the pictures if the bytes of all are there, as the server does."""
        wanted = [each for each in body["drawn"] if _key(each) not in self.unwanted]
        contents = {_key(each): each["sha256"] and self.uploads.get(each["sha256"], b"") for each in wanted}
        for each in wanted:
            if each["sha256"] and hashlib.sha256(contents[_key(each)]).hexdigest() != each["sha256"]:
                return httpx.Response(409, json={"code": "blob-missing", "detail": "not there"}, headers=PROBLEM)
        for key, content in contents.items():
            self.pictures[key].append(content)
        taken = [*contents, *(_key(each) for each in body["failed"])]
        if ended := self.completes and body["complete"]:
            self.always["heartbeat"] = LOST
        reply = {"accepted": _ids(taken), "dropped": _ids(sorted(self.unwanted)), "ended": ended}
        return _json(reply if self.left is None else reply | {"left": _ids(self.left)})

    def _signed(self, method: str, path: str) -> dict[str, Any]:
        expires_at = datetime.now(UTC) + timedelta(hours=1)
        url = f"{self.base_url}/storage/{path}"
        return {"method": method, "url": url, "headers": {}, "expires_at": expires_at.isoformat()}

    def _committed(self, body: dict[str, Any]) -> bytes:
        content = self.uploads[body["upload_id"]]
        assert hashlib.sha256(content).hexdigest() == body["sha256"]
        return content

    def _storage(self, request: httpx.Request) -> httpx.Response:
        assert "authorization" not in request.headers
        kind, name = request.url.path.removeprefix("/storage/").split("/")
        answer = self.always.get(f"storage/{kind}")
        if answer is not None:
            return answer(request)
        if kind == "upload":
            self.uploads[name] = request.read()
            return httpx.Response(200, headers={"etag": '"e"'})
        content = self.blobs.get(name)
        return httpx.Response(404) if content is None else httpx.Response(200, stream=httpx.ByteStream(content))


def _key(picture: dict[str, Any]) -> PictureKey:
    return picture["order_id"], picture["number"]


def _ids(keys: Iterable[PictureKey]) -> list[dict[str, Any]]:
    return [{"order_id": order_id, "number": number} for order_id, number in keys]


def _json(body: dict[str, Any]) -> httpx.Response:
    return httpx.Response(200, json=body)
