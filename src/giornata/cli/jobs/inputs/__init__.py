"""Inputs of jobs on this machine: folders, files, base models, foreign configurations."""
