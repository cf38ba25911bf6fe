"""Captioned pictures: where they come from, what is kept of them, and how they lie in shards."""
