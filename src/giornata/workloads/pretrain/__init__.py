"""Pre-training as a job of the platform: Ray does it, on the cluster of the node's operator."""
