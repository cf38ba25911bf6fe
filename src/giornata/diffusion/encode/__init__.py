"""Pictures and captions become latents and embeddings. Read latents and captions."""
