"""The models of models.py in PyTorch: bfloat16 by autocast, fused AdamW, its own attention; eagerly or compiled.

  python examples/models_torch.py --model vit --mode compile

GPT-2 is the one of tools/gpt2_torch.py, ViT is torchvision's, BERT and Llama are Transformers', with random weights.
"""
import pathlib
import resource
import sys

import torch
from torch import nn
from torch.nn import functional as F

import workloads

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "tools"))


def mean_loss(logits, labels, weights=None):
    """The mean over all labels, those that weigh nothing too, as Keras has it."""
    losses = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none")
    return (losses if weights is None else losses * weights.flatten()).mean()


class ViT(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        from torchvision.models import VisionTransformer
        self.body = VisionTransformer(sizes.image, sizes.patch, sizes.layers, sizes.heads, sizes.width, 4 * sizes.width,
                                      num_classes=sizes.classes)

    def forward(self, images, labels):
        return mean_loss(self.body(images.permute(0, 3, 1, 2)), labels)


class Bert(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        import transformers
        config = transformers.BertConfig(
            vocab_size=sizes.vocabulary, hidden_size=sizes.width, num_hidden_layers=sizes.layers,
            num_attention_heads=sizes.heads, intermediate_size=4 * sizes.width, hidden_act="gelu_pytorch_tanh",
            hidden_dropout_prob=sizes.dropout, attention_probs_dropout_prob=sizes.dropout,
            max_position_embeddings=sizes.length)
        self.body = transformers.AutoModel.from_config(config, attn_implementation="sdpa")
        self.head = nn.Linear(sizes.width, sizes.vocabulary)

    def forward(self, inputs, labels, weights):
        x = self.body(input_ids=inputs["token_ids"], attention_mask=inputs["padding_mask"],
                      token_type_ids=inputs["segment_ids"])[0]
        return mean_loss(self.head(x), labels, weights)


class Llama(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        import transformers
        config = transformers.LlamaConfig(
            vocab_size=sizes.vocabulary, hidden_size=sizes.width, intermediate_size=sizes.inner,
            num_hidden_layers=sizes.layers, num_attention_heads=sizes.heads, num_key_value_heads=sizes.shared_heads,
            max_position_embeddings=sizes.length, rms_norm_eps=1e-5, tie_word_embeddings=False)
        self.body = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")

    def forward(self, inputs, labels):
        """Without the padding mask, which hides nothing: PyTorch's attention is faster without one."""
        return mean_loss(self.body(input_ids=inputs["token_ids"], use_cache=False).logits, labels)


def gpt2(sizes):
    from gpt2_torch import GPT2
    return GPT2(sizes.vocabulary, sizes.length, sizes.layers, sizes.width, sizes.heads)


TWINS = {"gpt2": gpt2, "vit": ViT, "bert": Bert, "llama": Llama}  # each takes a batch and gives its loss


def on_the_device(data, device):
    """The tensors of a batch's arrays."""
    if isinstance(data, dict):
        return {name: on_the_device(array, device) for name, array in data.items()}
    return torch.from_numpy(data.copy()).to(device)


def train_function(name, sizes, batch, compiled, device):
    """A function that trains one step and returns its loss, for which it does not wait."""
    torch.manual_seed(1)
    model = TWINS[name](sizes).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=workloads.RATE, eps=workloads.EPSILON, weight_decay=workloads.DECAY,
                                  fused=True)
    batch = [on_the_device(part, device) for part in batch]
    loss_of = torch.compile(model) if compiled else model

    def step():
        with torch.autocast(device, torch.bfloat16):
            loss = loss_of(*batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def main(options):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    workload = workloads.WORKLOADS[options.model]
    sizes = workload.sizes(options.small)
    batch = workload.batch(sizes)
    step = train_function(options.model, sizes, batch, options.mode == "compile", device)
    measured = workloads.timed(step, options.steps, torch.cuda.reset_peak_memory_stats if device == "cuda" else lambda: None)
    peak = (torch.cuda.max_memory_allocated() if device == "cuda"
            else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    workloads.report(options, batch[1], measured, peak)


if __name__ == "__main__":
    main(workloads.parse(__doc__, ["eager", "compile"]))
