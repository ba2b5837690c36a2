"""Stream through a model whose memory does not grow: the cache of a Taylor model against that of softmax.

    python examples/stream_constant_state.py

softmax keeps every key and value it has seen; the series of order 2 keeps three matrices per head, whatever the length.
"""

import torch

from softmax_rnn import SoftmaxRnnConfig, SoftmaxRnnForCausalLM
from softmax_rnn.models import cache_bytes


def bytes_while_reading(mechanism: str, lengths: list[int]) -> list[int]:
    """Read a stream of tokens piece by piece; what the cache holds at each of the given lengths."""
    torch.manual_seed(0)
    model = SoftmaxRnnForCausalLM(SoftmaxRnnConfig(
        mechanism=mechanism, vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=8, max_position_embeddings=max(lengths),
    )).eval()  # fmt: skip
    cache, seen, found = None, 0, []
    for length in lengths:
        piece = torch.randint(256, (1, length - seen))
        with torch.no_grad():
            cache = model(piece, past_key_values=cache, use_cache=True).past_key_values
        seen = length
        found.append(cache_bytes(cache))
    return found


def main() -> None:
    lengths = [64, 256, 1024, 4096]
    print(f"{'tokens':<10}" + "".join(f"{n:>12,}" for n in lengths))
    for mechanism in ("softmax", "norm", "linear_elu", "taylor2"):
        print(f"{mechanism:<10}" + "".join(f"{b:>12,}" for b in bytes_while_reading(mechanism, lengths)) + "  bytes")


if __name__ == "__main__":
    main()
