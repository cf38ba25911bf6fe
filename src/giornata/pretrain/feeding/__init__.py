"""Feed shards to steps, each row once. Read rows_of_phase, ledger, read_portions, graph, then feed and examples."""
