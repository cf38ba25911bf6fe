"""Run the command line: `python -m giornata`."""

from giornata.cli import main

main()
