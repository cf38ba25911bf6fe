"""What a GPU shows of this project, in parts: `make gpu`. Read `parts` first, then `__main__`.

Each part is a process of its own with a time limit. What a part found goes into one JSON file, so that a second call
goes on where the first one stopped. `tables` renders that file for docs/benchmarks.md.
"""
