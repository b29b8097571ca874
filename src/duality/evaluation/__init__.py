"""How good a model is: the likelihood of text, and measures of the samples it writes.

likelihood     nats per token of held-out text
judge          external language models that read samples
text_metrics   perplexity under a judge, entropy, n-grams, MAUVE
cases          what is sampled (a case), and what is measured on it (a row)
samples        samples in files, and real text cut like them
sweep          the one pipeline from cases to rows
tables         rows in Markdown
figures        rows as figures; ``loss_curve`` is the figure of a training
"""
