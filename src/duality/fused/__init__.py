"""Lazy logits, and losses fused with the output projection: the logits of a batch never exist together.

lazy               what a network says before it is projected to the vocabulary, read some rows at a time
head               the output head prepared for many products on a GPU
loss               projection, reduction and gradient in one pass over chunks of rows
formulas           what each loss reads of a row, and its gradient in closed form
row_kernels        the same sums and gradients as kernels of a GPU
kernels            these as operators of torch, and where they run
row_readers        formulas read by them
process_formulas   which formulas belong to which process; the general ones for any other
"""
