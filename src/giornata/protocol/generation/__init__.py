"""Orders of pictures, and single pictures as nodes draw them. Read `picture` first, then `specs` and `expand`."""
