"""Bytes on their way to and from a node: inputs, models, uploads, logs. Read fetching and uploader first."""
