"""The models of models.py in PyTorch: bfloat16 by autocast, fused optimizers, its own attention; eagerly or compiled.

  python examples/models_torch.py --model vit --mode compile

What stands beside Keras's fit() is a loop over a DataLoader with workers and pinned memory, whose batches are copied without
waiting, as PyTorch's guides have it; no loss is read in it. Beside it is the step alone, on a batch that is on the GPU.

GPT-2 is the one of tools/gpt2_torch.py, BERT, Llama and T5 are Transformers', LSTM and U-Net are written here, and all other
models for images are torchvision's, with random weights; convolutional networks keep channels last.
"""
import functools
import itertools
import pathlib
import resource
import shutil
import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import workloads

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
SHARED = "/dev/shm"  # where processes share memory
WORKERS = 2  # of the loader: data is in memory already, and one may wait while the other hands over


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


class T5(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        import transformers
        self.body = transformers.T5ForConditionalGeneration(transformers.T5Config(
            vocab_size=sizes.vocabulary, d_model=sizes.width, d_kv=sizes.width // sizes.heads, d_ff=sizes.inner,
            num_layers=sizes.layers, num_heads=sizes.heads, dropout_rate=sizes.dropout, feed_forward_proj="gated-gelu",
            tie_word_embeddings=False, use_cache=False))
        # A head of its own: Transformers 5 shares the embedding's weights whatever tie_word_embeddings says, and version 4 draws
        # numbers of a deviation of 1.
        self.body.lm_head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)

    def forward(self, inputs, labels, weights):
        logits = self.body(
            input_ids=inputs["encoder_token_ids"], attention_mask=inputs["encoder_padding_mask"],
            decoder_input_ids=inputs["decoder_token_ids"], decoder_attention_mask=inputs["decoder_padding_mask"]).logits
        return mean_loss(logits, labels, weights)


class LSTM(nn.Module):
    """By cuDNN, as one call for all layers."""

    def __init__(self, sizes):
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.body = nn.LSTM(sizes.width, sizes.width, sizes.layers, batch_first=True)
        self.head = nn.Linear(sizes.width, sizes.vocabulary)

    def forward(self, tokens, labels):
        return mean_loss(self.head(self.body(self.tokens(tokens))[0]), labels)


def gpt2(sizes):
    from gpt2_torch import GPT2
    return GPT2(sizes.vocabulary, sizes.length, sizes.layers, sizes.width, sizes.heads)


class Vision(nn.Module):
    """A convolutional network of torchvision. Keras's own normalise images of 0 to 255; here that is done before."""

    def __init__(self, name, normalises, sizes, **options):
        super().__init__()
        import torchvision
        self.body, self.normalises = getattr(torchvision.models, name)(num_classes=sizes.classes, **options), normalises
        self.to(memory_format=torch.channels_last)

    def forward(self, images, labels):
        x = images.permute(0, 3, 1, 2)
        return mean_loss(self.body((x - workloads.MEAN) / workloads.DEVIATION if self.normalises else x), labels)


def twice(channels, width):
    """Keras's batch norm has another epsilon, and another momentum, which PyTorch counts from the other end."""
    parts = [(nn.Conv2d(before, width, 3, padding=1, bias=False), nn.BatchNorm2d(width, eps=1e-3, momentum=0.01), nn.ReLU())
             for before in (channels, width)]
    return nn.Sequential(*parts[0], *parts[1])


class UNet(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        widths = [sizes.width << level for level in range(sizes.levels + 1)]
        pairs = list(zip(widths, widths[1:]))
        self.down = nn.ModuleList(map(twice, [3, *widths[:-1]], widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(below, width, 2, stride=2) for width, below in reversed(pairs))
        self.beside = nn.ModuleList(twice(2 * width, width) for width, _ in reversed(pairs))
        self.head = nn.Conv2d(sizes.width, sizes.classes, 1)
        self.to(memory_format=torch.channels_last)

    def forward(self, images, labels):
        x, passed = images.permute(0, 3, 1, 2), []
        for part in self.down[:-1]:
            passed.append(part(x))
            x = F.max_pool2d(passed[-1], 2)
        x = self.down[-1](x)
        for up, beside in zip(self.up, self.beside):
            x = beside(torch.cat([passed.pop(), up(x)], 1))
        return mean_loss(self.head(x).permute(0, 2, 3, 1), labels)


# Each takes a batch and gives its loss. What torchvision's models drop and Keras's do not is switched off.
TWINS = {
    "gpt2": gpt2, "vit": ViT, "bert": Bert, "llama": Llama, "t5": T5, "lstm": LSTM,
    "resnet50": functools.partial(Vision, "resnet50", False),
    "convnext": functools.partial(Vision, "convnext_tiny", True, stochastic_depth_prob=0.0),
    "efficientnet": functools.partial(Vision, "efficientnet_b0", True),
    "mobilenet": functools.partial(Vision, "mobilenet_v2", False, dropout=0.0),
    "unet": UNet,
}
# SGD's weight decay is a part of the gradient here, and beside it in Keras: as much work.
OPTIMIZERS = {
    "adamw": functools.partial(torch.optim.AdamW, eps=workloads.EPSILON, weight_decay=workloads.DECAY, fused=True),
    "sgd": functools.partial(torch.optim.SGD, momentum=workloads.MOMENTUM, weight_decay=workloads.SGD_DECAY, fused=True),
}


def each(function, data):
    """Of what a batch is made of, tensors or arrays in lists and dicts."""
    if isinstance(data, dict):
        return {name: each(function, part) for name, part in data.items()}
    return [each(function, part) for part in data] if isinstance(data, (list, tuple)) else function(data)


def on_the_device(batch, device):
    return each(lambda array: torch.from_numpy(array.copy()).to(device), batch)


class InHostMemory(torch.utils.data.Dataset):
    """Batches again and again, without end. They lie in shared memory, so that workers hand them over without a copy."""

    def __init__(self, batches):
        sizes = []
        each(lambda array: sizes.append(array.nbytes), batches)
        needed, room = sum(sizes), shutil.disk_usage(SHARED).free
        if needed > room:
            raise OSError("%s has room for %.1f GB, and the batches take %.1f: as root, mount -o remount,size=%dG %s" % (
                SHARED, room / 1e9, needed / 1e9, needed // 1e9 + 2, SHARED))
        self.batches = [each(lambda array: torch.from_numpy(np.ascontiguousarray(array)).share_memory_(), batch)
                        for batch in batches]

    def __len__(self):
        return 1 << 40

    def __getitem__(self, i):
        return self.batches[i % len(self.batches)]


def loaded(batches, device):
    """The batches as a loader brings them to the device."""
    loader = torch.utils.data.DataLoader(InHostMemory(batches), batch_size=None, num_workers=WORKERS,
                                         pin_memory=device == "cuda", persistent_workers=True)
    for batch in loader:
        yield each(lambda tensor: tensor.to(device, non_blocking=True), batch)


def train_function(name, sizes, compiled, device):
    """A function that trains one step on a batch and returns its loss, for which it does not wait."""
    torch.manual_seed(1)
    with torch.device(device):  # a CPU takes most of a minute to draw a billion weights
        model = TWINS[name](sizes).to(device).train()
    workload = workloads.WORKLOADS[name]
    optimizer = OPTIMIZERS[workload.optimizer](model.parameters(), lr=workload.rate)
    loss_of = torch.compile(model) if compiled else model

    def step(batch):
        with torch.autocast(device, torch.bfloat16):
            loss = loss_of(*batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def ways(step, batches, device):
    """What is measured: training on batches of the host, and on one that is on the device."""
    def resident():
        yield from itertools.repeat(on_the_device(batches[0], device))

    def way(source):
        return lambda n: torch.stack([step(batch) for batch in itertools.islice(source, n)]).mean().item()

    return {"fit_ms": way(loaded(batches, device)), "ms_per_step": way(resident())}


def peak_memory():
    """In bytes: the GPU's since it was last reset, or this process's."""
    return (torch.cuda.max_memory_allocated() if torch.cuda.is_available()
            else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def reset_peak():
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def main(options):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    workload = workloads.WORKLOADS[options.model]
    sizes = workload.sizes(options.small, batch=options.batch)
    batches = [workload.batch(sizes, i) for i in range(workloads.BATCHES)]
    step = train_function(options.model, sizes, options.mode == "compile", device)
    workloads.measure(options, workload.count(batches[0][1]), ways(step, batches, device), reset_peak, peak_memory)


if __name__ == "__main__":
    main(workloads.parse(__doc__, ["eager", "compile"]))
