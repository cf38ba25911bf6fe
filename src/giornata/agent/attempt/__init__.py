"""One attempt on a node, from its claim to its report. Read attempt first, then platform."""
