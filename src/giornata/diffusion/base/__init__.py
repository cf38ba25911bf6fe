"""Base models: found, loaded, held in 8 bits, and what they take. Read models first."""
