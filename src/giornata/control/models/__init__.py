"""Model files that pictures are drawn with: the registry, what names mean, and their bytes. Read register first."""
