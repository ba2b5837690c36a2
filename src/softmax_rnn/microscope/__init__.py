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
command.py     ``softmax-rnn inspect``
"""

from .centers import save_centers
from .inspection import Inspection, inspect

__all__ = ["Inspection", "inspect", "save_centers"]
