"""Feed shards to steps, each row once. Read rows_of_phase, ledger, graph, then feed and examples."""
