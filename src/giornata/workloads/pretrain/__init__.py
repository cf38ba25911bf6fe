"""Pre-training as a job of the platform: Ray runs it, on the cluster of the node's operator."""
