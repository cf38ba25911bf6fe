"""The HTTP calls of generation: place an order of pictures, follow it, and fetch the pictures."""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from giornata.client.calls.operator_calls import OperatorCalls, quoted
from giornata.client.connection import Connection
from giornata.client.follow import follow
from giornata.client.storage.downloads import download_picture
from giornata.protocol.generation.request_fields import spec_fields
from giornata.protocol.jobs import Job, SubmitJob
from giornata.protocol.orders.order_pictures import OrderPicture, OrderPicturePage

PAGE = 500


class GenerationCalls(OperatorCalls):
    """The part of `giornata.client.client.Client` that is about pictures which models draw."""

    _connection: Connection
    _http: httpx.Client

    def generate(
        self,
        prompt: str | Sequence[str],
        *,
        model: str,
        name: str | None = None,
        priority: int = 0,
        labels: Mapping[str, str] | None = None,
        deadline_s: int | None = None,
        budget_micro_usd: int | None = None,
        min_vram_bytes: int | None = None,
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> Job:
        """Order pictures: `num_images_per_prompt` (by default 1) of each prompt. Returns the order at once.

        `fields` are those of a `generate` spec. A LoRA may be written `NAME:WEIGHT`. Follow the order with
        `pictures(order.id, follow=True)`. Raises InvalidInput with every fault.
        """
        found = spec_fields(
            {"prompt": list(prompt) if not isinstance(prompt, str) else prompt, "model": model, **fields}
        )
        body = SubmitJob(
            kind="generate",
            spec=found.spec,
            name=name,
            priority=priority,
            labels=dict(labels or {}),
            deadline_s=deadline_s,
            budget_micro_usd=budget_micro_usd,
            min_vram_bytes=min_vram_bytes,
        )
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return self._connection.call("POST", "/v1/jobs", Job, body=body, headers=headers)

    def pictures(self, job_id: str, *, follow: bool = False, after: int | None = None) -> Iterator[OrderPicture]:
        """Yield the pictures of an order by number, each in its present state.

        With `follow`, yield each picture once, when it has ended, until the order has ended or is paused. `after` is
        a number, or with `follow` the `id` of the last picture that was seen.
        """
        path = f"{_job(job_id)}/pictures"
        if follow:
            return _follow_pictures(self._connection, path, after or 0)
        return self._numbered(path, -1 if after is None else after)

    def ended_pictures(self, job_id: str, *, after: int = 0) -> Iterator[OrderPicture]:
        """Yield pictures that have ended since the picture with the id `after`, in the order of their ends."""
        path = f"{_job(job_id)}/pictures"
        while True:
            items = self._get(path, OrderPicturePage, {"by": "end", "after": after, "limit": PAGE}).items
            yield from items
            if len(items) < PAGE:
                return
            after = items[-1].id

    def get_picture(self, job_id: str, number: int) -> OrderPicture:
        """Return one picture of an order, with a fresh URL."""
        return self._get(f"{_job(job_id)}/pictures/{number}", OrderPicture, {"as": "json"})

    def download_picture(self, picture: OrderPicture, directory: Path) -> Path:
        """Fetch a picture into the directory, verified against its sha256. A file with the right bytes is left alone.

        Raises InvalidInput for a picture without a file, and BlobMismatch.
        """
        return download_picture(self._http, picture, directory)

    def download_pictures(
        self, job_id: str, directory: Path, *, progress: Callable[[OrderPicture, Path], None] | None = None
    ) -> tuple[Path, ...]:
        """Fetch every picture of an order that is done, each verified against its sha256."""
        found = []
        for picture in self.pictures(job_id):
            if picture.request is not None:
                found.append(self.download_picture(picture, directory))
                if progress is not None:
                    progress(picture, found[-1])
        return tuple(found)

    def _numbered(self, path: str, after: int) -> Iterator[OrderPicture]:
        following: int | None = after
        while following is not None:
            page = self._get(path, OrderPicturePage, {"after": following, "limit": PAGE})
            yield from page.items
            following = page.next


def _follow_pictures(connection: Connection, path: str, after: int) -> Iterator[OrderPicture]:
    return follow(connection, path, OrderPicture, after=after)


def _job(job_id: str) -> str:
    return f"/v1/jobs/{quoted(job_id)}"
