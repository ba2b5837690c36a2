"""Train a small model with a mechanism of your choice for a few steps, save it, load it again, and let it write.

    python examples/train_and_generate.py --mechanism norm --steps 60

Takes about ten seconds on a CPU. The text is the letters of a few lines, so the tokenizer is one line of code.
"""

import argparse
import tempfile

import torch
from transformers import AutoModelForCausalLM

from softmax_rnn import SoftmaxRnnConfig, SoftmaxRnnForCausalLM

TEXT = "the quick brown fox jumps over the lazy dog. pack my box with five dozen liquor jugs. " * 40
LETTERS = sorted(set(TEXT))


def encode(text: str) -> torch.Tensor:
    return torch.tensor([LETTERS.index(c) for c in text])


def decode(ids: torch.Tensor) -> str:
    return "".join(LETTERS[i] for i in ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mechanism", default="norm")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()

    torch.manual_seed(0)
    config = SoftmaxRnnConfig(
        mechanism=args.mechanism, vocab_size=len(LETTERS), hidden_size=64, intermediate_size=128,
        num_hidden_layers=2, num_attention_heads=4, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = SoftmaxRnnForCausalLM(config)
    print(f"{args.mechanism}: {config.layer_mechanisms()[0]}, {model.num_parameters():,} parameters")

    data = encode(TEXT)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(args.steps + 1):
        start = torch.randint(len(data) - 65, (8, 1))
        batch = data[start + torch.arange(65)]
        loss = model(batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:4}  loss {loss.item():.3f}")

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)  # config.json holds the mechanism
        model = AutoModelForCausalLM.from_pretrained(folder)
    prompt = encode("the quick ")[None]
    out = model.eval().generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=40, do_sample=False)
    print(repr(decode(out[0])))


if __name__ == "__main__":
    main()
