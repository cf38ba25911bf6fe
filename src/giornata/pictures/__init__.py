"""The user's pictures, before they are uploaded: reading a folder, and looking inside in a process apart."""
