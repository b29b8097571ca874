"""Trained models in the programs of others. Nothing here is imported by ``import duality`` or by its commands.

greedy     whether a continuation is what a model finds the most likely
lm_eval    a run as a model of lm-evaluation-harness; it needs the extra ``eval``
harness    the harness's own command, with that model registered
transformers   our models as models of Hugging Face transformers; it needs the extra ``hf``
"""
