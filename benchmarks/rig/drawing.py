"""Nodes without GPUs that draw pictures over HTTP: as leases of many, and as a job for each.

The bytes of a picture are written straight into the server's folder of objects, as if object storage were another
machine: what is measured is the control plane.
"""

import hashlib
import itertools
import json
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from benchmarks.rig.backlog import KIND
from benchmarks.rig.bursts import call_of_node
from benchmarks.rig.server import BenchmarkServer
from benchmarks.rig.wire import Wire

PICTURE_BYTES = 200


def node_of(client: int, process: int) -> dict[str, Any]:
    """What a process of a node says of itself."""
    node = {
        "node_id": f"node_draw{client:08d}x{process}",
        "machine_id": f"machine-{client}",
        "name": f"node-{client}",
    }
    return node | {"fleet": "load", "price_micro_usd_per_hour": 250_000, "vram_bytes": 24 * 2**30}


class Drawing:
    """What nodes do with one server whose data lies in `data`."""

    def __init__(self, server: BenchmarkServer, data: Path) -> None:
        self._server, self._objects = server, data / "blobs" / "objects"
        self.processes = itertools.count(1)

    def claim_pictures(self, wire: Wire, client: int, most: int, *, process: int = 0) -> dict[str, Any] | None:
        """Return a lease of pictures, or None."""
        node = node_of(client, process)
        claim = {"request_id": uuid.uuid4().hex, "node": node, "kinds": ["generate"], "max_pictures": most}
        claim |= {"held_version": 0, "held": {"version": 0}}  # it reports its files, and has none
        reply = self._call(wire, "/v1/node/claim", claim, self._server.node_key)
        lease: dict[str, Any] | None = reply.get("picture_lease")
        return lease

    def draw_lease(self, wire: Wire, client: int, most: int) -> int:
        """Draw the pictures of one lease, from claim to completion; return how many they were."""
        lease = self.claim_pictures(wire, client, most)
        if lease is None:
            return 0
        path, token = f"/v1/node/attempts/{lease['attempt_id']}", str(lease["token"])
        done, contents = [], {}
        for each in lease["pictures"]:
            content = f"{each['order_id']} {each['number']}".encode().ljust(PICTURE_BYTES)
            contents[each["order_id"], each["number"]] = content
            sha256 = hashlib.sha256(content).hexdigest()
            place = {"order_id": each["order_id"], "number": each["number"]}
            done.append({**place, "sha256": sha256, "size_bytes": len(content)})
        uploads = self._call(wire, f"{path}/picture-uploads", {"pictures": done}, token)["uploads"]
        for upload in uploads:
            self._put(upload["url"], contents[upload["order_id"], upload["number"]])
        reply = self._call(wire, f"{path}/pictures", {"drawn": done, "complete": True}, token)
        if len(reply["accepted"]) != len(done) or not reply["ended"]:
            raise RuntimeError(f"of {len(done)} pictures {len(reply['accepted'])} were accepted")
        return len(done)

    def draw_job(self, wire: Wire, client: int) -> None:
        """Draw one picture that is a job of its own."""
        claim = {"request_id": uuid.uuid4().hex, "node": node_of(client, 0), "kinds": [KIND]}
        lease = self._call(wire, "/v1/node/claim", claim, self._server.node_key)["lease"]
        path, token = f"/v1/node/attempts/{lease['attempt_id']}", lease["token"]
        content = str(lease["job_id"]).encode().ljust(PICTURE_BYTES)
        sha256 = hashlib.sha256(content).hexdigest()
        file = {"name": "0.png", "sha256": sha256, "size_bytes": len(content)}
        (ticket,) = self._call(wire, f"{path}/uploads", {"files": [file]}, token)["items"]
        self._put(ticket["put"]["url"], content)
        self._call(wire, f"{path}/artifacts", {**file, "upload_id": ticket["upload_id"]}, token)
        self._call(wire, f"{path}/complete", {"step": 1, "artifacts": ["0.png"]}, token)

    def _put(self, url: str, content: bytes) -> None:
        target = self._objects / unquote(urlsplit(url).path).partition("/v1/blobs/")[2]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)

    def _call(self, wire: Wire, path: str, body: object, token: str) -> dict[str, Any]:
        return call_of_node(wire, path, json.dumps(body).encode(), token)
