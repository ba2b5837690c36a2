"""Models: Llama with any mechanism, other people's models with another mechanism, and the authors' checkpoints.

Importing this package registers our classes with transformers' ``Auto`` classes; after ``import softmax_rnn`` those import it
when they first meet one of our folders.

    masks.py        padding and packed documents, as ``attention`` wants them
    attention.py    the layer: Llama's attention, except for one call
    cache.py        a cache layer of constant size, for kernels that have a finite state
    config.py       the configuration, and named sizes
    llama.py        the body and its heads
    loss.py         the last layer and the loss in one pass
    patching.py     swap the attention of a pretrained model
    recognising.py  which modules of it call an attention function, and whether ours can stand in
    authors.py      checkpoints of the paper's own code
    folders.py      opening a folder, a run, a GGUF file or a name on the hub; what a saved folder carries
"""

from .authors import load_authors as load_authors
from .cache import cache_bytes as cache_bytes
from .config import SIZES as SIZES
from .config import SoftmaxRnnConfig as SoftmaxRnnConfig
from .folders import load_model as load_model
from .folders import load_tokenizer as load_tokenizer
from .folders import smollm2_path as smollm2_path
from .llama import SoftmaxRnnForCausalLM as SoftmaxRnnForCausalLM
from .llama import SoftmaxRnnForMaskedLM as SoftmaxRnnForMaskedLM
from .llama import SoftmaxRnnForSequenceClassification as SoftmaxRnnForSequenceClassification
from .llama import SoftmaxRnnForTokenClassification as SoftmaxRnnForTokenClassification
from .llama import SoftmaxRnnModel as SoftmaxRnnModel
from .llama import parameter_count as parameter_count
from .patching import patch as patch
from .patching import restore as restore
from .patching import unpatch as unpatch
