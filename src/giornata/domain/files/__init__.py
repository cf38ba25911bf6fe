"""Rules of files: datasets, buckets, captions, transfers, and how long files are kept. Read `datasets` first."""
