"""Make shards of captioned pictures. Read sources, source_rows, examination, decision, ingest_tasks, then shards."""
