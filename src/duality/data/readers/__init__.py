"""Readers: the documents of files of every format."""
