"""What weights can do: samples, and how near they come to real pictures."""
