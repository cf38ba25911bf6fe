"""HTTP: translates, never decides."""
