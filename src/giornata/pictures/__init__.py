"""Reads and checks a user's pictures before the upload; another process decodes them. Read `folder` first."""
