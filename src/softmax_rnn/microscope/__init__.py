"""How many orders of the exponential's series does a real model use?

series.py      partial sums at any size of score, in float64
tiles.py       a layer's attention, cut into tiles of queries
heads.py       the statistics of one head
truncate.py    a layer's output with the series cut
probe.py       reaching the attention of a model
centers.py     constants that bring scores close to 0
quality.py     the loss, or an encoder's cosine, with the series cut
states.py      what an order costs as a recurrent state
inspection.py  ``inspect``, which puts these together
figures.py     its pictures
page.py        its page
findings.py    tables of committed findings, for the docs
saving.py      JSON and everything made from it
opening.py     models and texts, with one sentence for what is wrong
command.py     ``softmax-rnn inspect``

Nothing is imported here: ``softmax_rnn.inspect`` is the function, and the command answers ``--help`` without torch.
"""
