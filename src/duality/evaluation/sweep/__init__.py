"""Sweeps: samples of many cases, scored and put into a table.

samples   cases, samples and rows, and their files
sweep     the one pipeline from cases to rows
runs      a sweep over runs: their cases, their samples, the real text
"""
