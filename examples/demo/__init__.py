"""The demo: jobs survive killed nodes, and their files are the same bytes. Read `run` first, then `report`."""
