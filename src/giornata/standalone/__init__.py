"""Runs on one machine, without a server, which go on after they were killed. Read `run_request`, then `platform`."""
