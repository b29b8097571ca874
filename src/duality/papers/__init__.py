"""Papers: applications of the library, one folder for each paper."""
