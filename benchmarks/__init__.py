"""The cost of the methods beyond their network, as ratios measured side by side in one run: ``make bench``.

timing.py      turns, ratios of neighbours, peak memory
rows.py        a line of the table, its bar, the JSON
models.py      the networks, the batches, and the bare network that is the baseline
reference.py   the methods written plainly as dense tensors: what the library is compared with
objectives.py  samplers.py  dense.py  growth.py  latents.py  data.py  throughput.py: the sections
figure.py      the figure
bench.py       the command
"""
