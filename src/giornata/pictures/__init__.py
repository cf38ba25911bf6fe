"""Reads and checks the user's pictures before their upload: a folder here, each picture in a process apart."""
