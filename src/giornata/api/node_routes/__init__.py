"""Routes of nodes and fleets, and a short way for the most frequent ones. Read `node` first."""
