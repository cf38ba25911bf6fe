"""Frozen encoders and their shards. Read encoder, transforms, encode_shards, then encoded."""
