"""From captioned pictures to shards. Read sources, source_rows, examination, decision, ingest_tasks, then shards."""
