"""The slots of the formula: what a mechanism is made of. Each slot is one file, and declares its tensors there.

base.py           what every slot shares: a frozen value that declares its input tensors once
mechanism.py      one choice per slot, and the gates, the decay and the update
kernels.py        the weight of a key as a function of its score
feature_maps.py   what linear attention does to queries and keys
denominators.py   what the weighted sum is divided by
norms.py          the vector norms that replace a denominator
presets.py        names
"""
