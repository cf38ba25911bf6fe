"""Tables by which pictures are found: the words of orders, and the stars and tags of pictures."""

from sqlalchemy import Column, Index, Integer, String, Table

from giornata.store.schema.columns import at, metadata

order_terms = Table(  # what an order is found by; each order has the empty term besides
    "order_terms",
    metadata,
    # Without a foreign key, as pictures are: order and terms are inserted together.
    Column("order_id", String(40), primary_key=True),
    Column("term", String(80), primary_key=True),
    Column("project_id", String(40), nullable=False),
    at("ordered_at_ms"),
    Index("ix_order_terms_found", "project_id", "term", "ordered_at_ms", "order_id"),
)

picture_tags = Table(  # the star of a picture is the tag "*"
    "picture_tags",
    metadata,
    Column("order_id", String(40), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("tag", String(40), primary_key=True),
    Column("project_id", String(40), nullable=False),
    at("ordered_at_ms"),
    Column("created_by", String(40)),  # the person or the key; NULL: not known
    Index("ix_picture_tags_found", "project_id", "tag", "ordered_at_ms", "order_id", "number"),
)
