"""The gallery: pictures of all orders that are found by their words, and marked with stars and tags."""

from datetime import datetime
from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from giornata.protocol.model import Count, Message, Reply
from giornata.protocol.node.pictures import PictureId
from giornata.protocol.orders.order_pictures import OrderPicture

MOST_MARKED = 200
"""Pictures of one request at most."""
MOST_TAGS = 20
TAG_PATTERN = r"^[a-z0-9][a-z0-9 ._-]{0,38}$"
Tag = Annotated[str, StringConstraints(pattern=TAG_PATTERN)]


class FoundPicture(OrderPicture):
    """A picture of the gallery, with its order and with what people have put on it."""

    order_id: str
    order_name: str
    ordered_at: datetime
    starred: bool = False
    tags: tuple[str, ...] = ()


class FoundPicturePage(Reply):
    """`GET /v1/pictures`: newest orders first, and the pictures of an order by number.

    A page may be short or empty when few pictures fit; go on with `cursor=<next>` until there is no `next`.
    """

    items: tuple[FoundPicture, ...]
    next: str | None = None


class ChosenPictures(Message):
    """Pictures by their orders and numbers."""

    pictures: tuple[PictureId, ...] = Field(min_length=1, max_length=MOST_MARKED)


class MarkPictures(ChosenPictures):
    """The body of `POST /v1/pictures:mark`. What is left out stays as it is."""

    starred: bool | None = Field(None, description="true: give each picture a star. false: remove it.")
    add_tags: tuple[Tag, ...] = Field((), max_length=MOST_TAGS, description="Tags that each picture gets.")
    remove_tags: tuple[Tag, ...] = Field(
        (), max_length=MOST_TAGS, description="Tags that are removed from each picture."
    )

    @model_validator(mode="after")
    def _changes_something(self) -> "MarkPictures":
        if self.starred is None and not self.add_tags and not self.remove_tags:
            raise ValueError("give starred, add_tags or remove_tags: nothing would change")
        return self


class MarkedPictures(Reply):
    """The reply of `POST /v1/pictures:mark`."""

    changed: Count = Field(description="Number of stars and tags that were given or removed.")


class DeletedPictures(Reply):
    """The reply of `POST /v1/pictures:delete`: what storage has no more."""

    objects: Count
    size_bytes: Count
