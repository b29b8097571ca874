"""Reproduction: the paper's claims, tried by one command and decided by code.

models     which models: bases and students, and their seeds
domains    on what data, how quality and diversity are measured, and how much (budgets)
claims     the claims as comparisons, with the paper's figures; the rule of the verdicts
jobs       work in processes of its own, some at a time
work       what the jobs do: train, measure, write and score samples
findings   what the stored results say about each comparison
report     the report in Markdown
page       the report as one web page
pictures   its figures
run        all of it: ``reproduce``
"""
