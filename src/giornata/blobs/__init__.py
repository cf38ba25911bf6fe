"""Drivers of object storage: a folder, or anything that speaks S3. Read `opening`, then `filesystem` and `s3`."""

from giornata.blobs.opening import open_blobs

__all__ = ["open_blobs"]
