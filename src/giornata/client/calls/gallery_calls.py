"""The HTTP calls of the gallery: find pictures of all orders, mark, delete and download several at once."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from giornata.client.calls.operator_calls import OperatorCalls
from giornata.client.connection import Connection
from giornata.protocol.node.pictures import PictureId
from giornata.protocol.orders.gallery import (
    ChosenPictures,
    DeletedPictures,
    FoundPicture,
    FoundPicturePage,
    MarkedPictures,
    MarkPictures,
)

PATH = "/v1/pictures"


class GalleryCalls(OperatorCalls):
    """The part of `giornata.client.client.Client` that finds pictures, and puts stars and tags on them."""

    _connection: Connection

    def find_pictures(
        self,
        *,
        match: str | None = None,
        model: str | None = None,
        lora: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        starred: bool = False,
        tags: Sequence[str] = (),
    ) -> Iterator[FoundPicture]:
        """Yield pictures that have files, of the newest orders first. All conditions must hold; `match` is words."""
        params = {
            "match": match,
            "model": model,
            "lora": lora,
            "since": None if since is None else since.isoformat(),
            "until": None if until is None else until.isoformat(),
            "starred": starred or None,
            "tag": list(tags) or None,
        }
        return self._pages(PATH, FoundPicturePage, params)

    def mark_pictures(
        self,
        pictures: Sequence[PictureId],
        *,
        starred: bool | None = None,
        add_tags: Sequence[str] = (),
        remove_tags: Sequence[str] = (),
    ) -> MarkedPictures:
        """Give at most 200 pictures stars and tags, or take them. Raises NotFound; then nothing is changed."""
        body = MarkPictures(
            pictures=tuple(pictures), starred=starred, add_tags=tuple(add_tags), remove_tags=tuple(remove_tags)
        )
        return self._connection.call("POST", f"{PATH}:mark", MarkedPictures, body=body)

    def delete_pictures(self, pictures: Sequence[PictureId]) -> DeletedPictures:
        """Delete the files of at most 200 pictures. Raises NotFound, and Conflict for a pinned order."""
        body = ChosenPictures(pictures=tuple(pictures))
        return self._connection.call("POST", f"{PATH}:delete", DeletedPictures, body=body)
