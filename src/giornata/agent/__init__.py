"""The loop on a node: claims, heartbeats, moves bytes. Never imports torch."""
