"""Frozen encoders and their shards. Read encoder, transforms and encode_rows, then encode_shards and encoded."""
