"""The front door. Composition roots live here."""
