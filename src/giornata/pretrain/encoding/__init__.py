"""Frozen encoders: pictures to posteriors, captions to embeddings, stored or as they are needed."""
