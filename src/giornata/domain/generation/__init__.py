"""Rules of pictures: prompts, model files, and the node that draws next. Read `picture` first."""
