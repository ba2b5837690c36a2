"""Models: Llama with any mechanism, other people's models with another mechanism, and the authors' checkpoints.

Importing this package registers our classes with transformers' ``Auto`` classes; after ``import softmax_rnn`` those import it
when they first meet one of our folders.

    masks.py      padding and packed documents, as ``attention`` wants them
    attention.py  the layer: Llama's attention, except for one call
    cache.py      a cache layer of constant size, for kernels that have a finite state
    llama.py      the configuration and the language model
    heads.py      the same body with other heads: classification, masked words
    saving.py     what a saved folder carries: a stub that leads here, a model card
    sizes.py      named sizes and their parameter counts
    patching.py   swap the attention of a pretrained model
    authors.py    checkpoints of the paper's own code
    loading.py    one function that opens a folder, a run, a GGUF file or a name on the hub
"""

from .authors import load_authors
from .cache import cache_bytes
from .heads import SoftmaxRnnForMaskedLM, SoftmaxRnnForSequenceClassification, SoftmaxRnnForTokenClassification
from .llama import SoftmaxRnnConfig, SoftmaxRnnForCausalLM, SoftmaxRnnModel
from .loading import load_model, load_tokenizer, smollm2_path
from .patching import patch, restore, unpatch
from .sizes import SIZES, parameter_count

__all__ = [
    "SIZES",
    "SoftmaxRnnConfig",
    "SoftmaxRnnForCausalLM",
    "SoftmaxRnnForMaskedLM",
    "SoftmaxRnnForSequenceClassification",
    "SoftmaxRnnForTokenClassification",
    "SoftmaxRnnModel",
    "cache_bytes",
    "load_authors",
    "load_model",
    "load_tokenizer",
    "parameter_count",
    "patch",
    "restore",
    "smollm2_path",
    "unpatch",
]
