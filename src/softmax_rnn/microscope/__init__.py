"""How many orders of the exponential's series does a real model use?

probe.py       a layer's attention: reached, in tiles of queries, with the series cut, at any size of score
heads.py       the statistics of one head; constants that bring its scores close to 0
inspection.py  ``inspect``, which puts these together and measures the model with its series cut
results.py     what was found, as JSON, lines and tables
page.py        its pictures and its page
command.py     ``softmax-rnn inspect``

Nothing is imported here: ``softmax_rnn.inspect`` is the function, and the command answers ``--help`` without torch.
"""
