"""Configuration files of other trainers, read as fields of a train spec. `reading` is the way in; `account` holds
what every tool's reader writes: what is taken, what is refused, what has no meaning here."""
