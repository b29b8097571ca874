"""Readers: the documents of files of every format.

text          UTF-8, plain or compressed, as pieces or as lines; an error names the byte
records       .jsonl, .csv, .tsv, tables of Arrow and .fasta as texts with labels
hub           datasets of the Hugging Face hub, as tables of Arrow
conversions   books without the line breaks of an edition, molecules in canonical form
"""
