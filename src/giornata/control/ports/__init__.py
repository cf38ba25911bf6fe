"""What the use cases need of the world. `store` leads to every query; other ports have several implementations."""
