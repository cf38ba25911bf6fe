"""Runs on one machine: an engine and a storage, no server. A run that was killed goes on when it is started again."""
