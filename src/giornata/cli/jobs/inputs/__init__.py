"""Inputs of jobs on this machine: folders, files, base models, configurations. Read `picture_folders` first."""
