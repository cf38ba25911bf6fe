"""From shards to what a trainer takes for one step, each row exactly once."""
