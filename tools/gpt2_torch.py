"""GPT-2 as in examples/gpt2.py, in PyTorch: bfloat16 by autocast, fused AdamW, its own attention; eagerly or compiled.

  python tools/gpt2_torch.py --mode compile --batch 16 --length 1024
"""
import argparse
import json
import pathlib
import time

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        heads = lambda t: t.view(batch, length, self.heads, -1).transpose(1, 2)
        query, key, value = map(heads, self.qkv(self.norm1(x)).split(width, 2))
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.contract(F.gelu(self.expand(self.norm2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, vocabulary, length, depth, width, heads):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                last = name.endswith(("project.weight", "contract.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * depth)**0.5 if last else 0.02)

    def forward(self, tokens, labels):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.tokens.weight.T
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=["eager", "compile"], default="compile")
    parser.add_argument("--json", metavar="FILE", help="write what was measured there")
    for name, value in [("batch", 16), ("length", 1024), ("steps", 25), ("layers", 12), ("width", 768), ("heads", 12),
                        ("vocabulary", 50304), ("warmup", 5)]:
        parser.add_argument("--" + name, type=int, default=value, help="(%d)" % value)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")

    model = GPT2(options.vocabulary, options.length, options.layers, options.width, options.heads).to(device)
    decayed = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                                  lr=6e-4, betas=(0.9, 0.95), fused=True)
    loss_of = torch.compile(model) if options.mode == "compile" else model
    tokens_of_step = options.batch * options.length
    # Bytes, as the text of the example is; what they say makes no difference to the time.
    data = torch.randint(256, (options.batch, options.length + 1), device=device)

    for step in range(options.steps):
        with torch.autocast(device, torch.bfloat16):
            loss = loss_of(data[:, :-1].contiguous(), data[:, 1:].contiguous())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step + 1 == options.warmup:
            wait()
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            start = time.perf_counter()
    wait()
    ms = (time.perf_counter() - start) / (options.steps - options.warmup) * 1e3
    peak = torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else float("nan")
    print("step %5d  loss %.4f  %8.2f ms/step  %9.0f tokens/s  %6.2f GB" % (
        options.steps, float(loss), ms, tokens_of_step / ms * 1e3, peak))
    if options.json:
        measured = {"ms_per_step": ms, "tokens_per_s": tokens_of_step / ms * 1e3, "peak_GB": peak, "losses": [float(loss)]}
        pathlib.Path(options.json).write_text(json.dumps({**vars(options), **measured, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
