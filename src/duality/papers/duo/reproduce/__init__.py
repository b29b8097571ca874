"""Reproduction: the paper's claims, tried by one command and decided by code.

domains    which models of which data, how quality and diversity are measured, and how much (domains.json);
           where the results are kept
claims     the claims as comparisons, with the paper's figures (claims.json); the rule of the verdicts
jobs       work in processes of its own, some at a time
work       what the jobs do: train, measure, write and score samples
findings   what the stored results say about each comparison
report     the report in Markdown and as one web page, with its figures
run        all of it: ``reproduce``
"""
