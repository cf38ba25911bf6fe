"""What runs inside the engine, one package a kind."""
