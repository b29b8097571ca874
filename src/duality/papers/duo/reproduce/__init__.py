"""Reproduction: the paper's claims, tried by one command and decided by code.

claims     the claims as comparisons, with the paper's figures (claims.json), and the rule of the verdicts; which models
           of which data, how quality and diversity are measured, and how much (domains.json)
jobs       work in processes of its own, some at a time
findings   what the stored results say about each comparison, and where the results are kept
report     the report in Markdown and as one web page, with its figures
run        all of it: ``reproduce``, whose jobs train, measure, write and score samples
"""
