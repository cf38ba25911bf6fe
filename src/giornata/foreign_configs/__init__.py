"""Configuration files of other trainers, read as fields of a train spec. Read `reading` first, then `account`:
each tool's reader writes into it what is taken, what is refused, and what has no meaning here."""
