"""The hub: models of other people, and folders that other people can load."""
