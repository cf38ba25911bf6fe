"""SQL: one schema, two dialects."""
