"""Datasets, uploads, signed URLs, and the collection of what nothing refers to. Read uploads first."""
