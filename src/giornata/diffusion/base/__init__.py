"""Base models: how they are found, loaded and held in 8 bits, and the memory that they take. Read models first."""
