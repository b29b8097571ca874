"""Lazy logits, and losses fused with the output projection: the logits of a batch never exist together.

lazy               what a network says before it is projected to the vocabulary, read some rows at a time
loss               projection, reduction and gradient in one pass over chunks of rows
formulas           what each loss reads of a row, and its gradient in closed form
process_formulas   which formulas belong to which process; the general ones for any other
"""
