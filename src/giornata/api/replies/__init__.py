"""Replies: problem documents, event streams, and the OpenAPI document. Read `problems` first."""
