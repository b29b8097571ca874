"""Sweeps: samples of many cases, scored and put into a table."""
