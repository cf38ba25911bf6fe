"""From shards to steps, each row once. Start with rows_of_phase; ledger, read_portions, graph, feed, examples."""
