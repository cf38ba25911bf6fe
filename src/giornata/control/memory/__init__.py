"""The memory of one server process between requests. Read `process_cache` first."""
