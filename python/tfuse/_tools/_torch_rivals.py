"""What `tfuse bench --torch` times beside tfuse: the same ops as a PyTorch user writes them, compiled by torch.compile.

A program of its own, which the benchmark starts and asks: PyTorch's compiler and TensorFlow do not live well in one process.
It reads a line of JSON per question and answers with one. A rival takes the inputs and options of the case it is named after.
"""

import json
import statistics
import sys
import time

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "bool": torch.bool}
ACTIVATIONS = {
    "linear": lambda x: x, "relu": F.relu, "leaky_relu": lambda x: F.leaky_relu(x, 0.2), "elu": F.elu, "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "mish": F.mish, "sigmoid": torch.sigmoid,
    "tanh": torch.tanh, "softplus": F.softplus, "hard_swish": F.hardswish, "relu6": F.relu6,
}
EPSILON = 1e-3
CALLS = 5  # that are timed together


def _gated(x, activation):
    a, b = x.chunk(2, -1)
    return ACTIVATIONS[activation](a) * b


def _rope(x, pairing="half"):
    d = x.shape[-1]
    frequencies = 10000.0**(-torch.arange(0, d, 2, device=x.device, dtype=torch.float32) / d)
    angles = torch.arange(x.shape[1], device=x.device)[:, None, None] * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, -1) if pairing == "half" else (x[..., ::2], x[..., 1::2])
    turned = a * cos - b * sin, b * cos + a * sin
    return torch.cat(turned, -1) if pairing == "half" else torch.stack(turned, -1).flatten(-2)


def _cross_entropy(x, targets):
    """Labels or probabilities; in float32, which fuses."""
    return F.cross_entropy(x.float(), targets if targets.dtype == torch.int64 else targets.float(), reduction="none")


def _rms_norm(x, gamma):
    return F.rms_norm(x, x.shape[-1:], gamma.to(x.dtype), EPSILON)


def _residual(x, gamma, residual, dropout, seed):
    h = residual + F.dropout(x, dropout)
    return _rms_norm(h, gamma), h


def _batch_norm(x, gamma, beta, mean, variance, residual=None, activation="linear"):
    """In channels_last, which is what a permuted view of x is."""
    y = F.batch_norm(x.movedim(-1, 1), mean.clone(), variance.clone(), gamma, beta, True, 0.25, EPSILON).movedim(1, -1)
    return ACTIVATIONS[activation](y if residual is None else y + residual)


def _conv_norm(x, kernel, *rest, activation="linear"):
    return _batch_norm(_conv()(x, kernel), *rest, activation=activation)


def _conv(strides=1):
    """Channels last, as it is fastest in PyTorch."""
    def conv(x, kernel, bias=None, activation="linear"):
        y = F.conv2d(x.permute(0, 3, 1, 2), kernel.permute(3, 2, 0, 1), bias, strides, kernel.shape[0] // 2)
        return ACTIVATIONS[activation](y).permute(0, 2, 3, 1)

    return conv


def _depthwise_conv(x, kernel, bias, activation):
    """Channels last in memory, which PyTorch tells from the strides."""
    filters = kernel.permute(2, 3, 0, 1).contiguous(memory_format=torch.channels_last)
    y = F.conv2d(x.movedim(-1, 1), filters, bias, padding="same", groups=x.shape[-1])
    return ACTIVATIONS[activation](y).movedim(1, -1)


def _reduce(x, kind, axis=-1):
    if kind in ("variance", "std"):
        return getattr(torch, kind[:3])(x, axis, correction=0)
    return {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin, "logsumexp": torch.logsumexp,
            "l2": torch.linalg.vector_norm}[kind](x, dim=axis)


def _as_is(f):
    """A rival of which there is nothing to compile, as of plain cuBLAS."""
    rival = lambda *inputs, **options: f(*inputs, **options)
    rival.compiled = False
    return rival


def _attention(backend):
    """By one of PyTorch's own kernels. Heads go before time, which copies nothing."""
    def attention(query, key, value, is_causal=False):
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        with sdpa_kernel(backend):
            y = F.scaled_dot_product_attention(query, key, value, is_causal=is_causal,
                                               enable_gqa=query.shape[1] != key.shape[1])
        return y.transpose(1, 2)

    return _as_is(attention)


_ATTENTION = [_attention(backend) for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)]


def _recurrent(layer, x, kernel, recurrent_kernel, biases, states):
    """PyTorch's layer, by cuDNN. Its kernels are transposed, which is all one here."""
    turned = [w.reshape(w.shape[::-1]) for w in (kernel, recurrent_kernel)]
    return layer(x, states, [*turned, *biases], True, 1, 0.0, True, False, True)


def _lstm(x, kernel, recurrent_kernel, bias, h, c, *_, **another_activation):
    """Without what PyTorch's layers have not: masks, recurrent dropout, other activations."""
    y, h, c = _recurrent(torch._VF.lstm, x, kernel, recurrent_kernel, [bias, torch.zeros_like(bias)], (h[None], c[None]))
    return y, h[0], c[0]


def _gru(x, kernel, recurrent_kernel, bias, recurrent_bias, h, *_, **another_activation):
    y, h = _recurrent(torch._VF.gru, x, kernel, recurrent_kernel, [bias, recurrent_bias], h[None])
    return y, h[0]


# By name of the case: one, or several, of which the best counts.
RIVALS = {
    "square": lambda x: x * x,
    "add_constant": lambda x, constant: x + constant,
    "activation": lambda x, activation: ACTIVATIONS[activation](x),
    **dict.fromkeys(["scale_bias_act", "scale_bias_act, one scale"],
                    lambda x, scale, bias, activation: ACTIVATIONS[activation](x * scale + bias)),
    "gated": _gated,
    "dropout": lambda x, rate, seed: F.dropout(x, rate),
    "rope": _rope,
    "sparse_cross_entropy": _cross_entropy,
    "cross_entropy": _cross_entropy,
    "softmax": lambda x: F.softmax(x, -1),
    "sort": lambda x: torch.sort(x, -1).values,
    "argsort": lambda x: torch.argsort(x, -1, stable=True),
    "top_k": lambda x: torch.topk(x, 50).values,
    "layer_norm": lambda x, gamma, beta: F.layer_norm(x, x.shape[-1:], gamma.to(x.dtype), beta.to(x.dtype), EPSILON),
    "rms_norm": _rms_norm,
    "rms_norm, residual and dropout": _residual,
    "group_norm": lambda x, gamma, beta, groups: F.group_norm(
        x.movedim(-1, 1), groups, gamma.to(x.dtype), beta.to(x.dtype), EPSILON).movedim(1, -1),
    **dict.fromkeys(["depthwise_conv, 3 by 3, speed", "depthwise_conv, 7 by 7, speed"], _depthwise_conv),
    **dict.fromkeys(["batch_norm", "batch_norm, no residual"], _batch_norm),
    **dict.fromkeys(["transpose", "transpose, last first", "transpose, middle", "transpose, ends"],
                    lambda a, perm=None: a.permute(perm or list(range(a.dim()))[::-1]).contiguous()),
    **dict.fromkeys(["concat, last axis", "concat, middle axis", "concat, first axis"],
                    lambda *values, axis: torch.cat(values, axis)),
    **dict.fromkeys(["reduce", "reduce, columns", "reduce, all", "reduce, middle axis", "reduce, axes 0 and 2"], _reduce),
    "cumsum": lambda x, axis=0: torch.cumsum(x, axis),
    "cumprod": lambda x, axis=0: torch.cumprod(x, axis),
    "cummax": lambda x, axis=0: torch.cummax(x, axis).values,
    "cumulative_logsumexp": lambda x, axis=0: torch.logcumsumexp(x, axis),
    **{"%s, %s" % (cell, what): _as_is(layer) for cell, layer in (("lstm", _lstm), ("gru", _gru))
       for what in ("speed", "masked", "recurrent dropout", "another activation")},
    "batched_matmul, speed": _as_is(torch.bmm),
    **dict.fromkeys(["linear, speed", "linear, GPT-2", "linear, GPT-2 inside"],
                    lambda x, kernel, bias, activation: ACTIVATIONS[activation](torch.addmm(bias, x, kernel))),
    **dict.fromkeys(["conv, speed", "conv, ResNet 1x1", "conv, ResNet 3x3"], _conv()),
    "conv, ResNet stem": _conv(2),
    "conv_norm, speed": _conv_norm,
    "gated_linear, speed": lambda x, kernel, activation: _gated(x @ kernel, activation),
    "linear_cross_entropy, speed": lambda x, kernel, labels: F.cross_entropy((x @ kernel).float(), labels),
    **dict.fromkeys(["attention, speed", "attention, speed, own kernel", "attention, decoding",
                     "attention, decoding, own kernel"], _ATTENTION),
}
_filler = []  # two tensors to copy, once there is a GPU


def seconds(name, inputs, options):
    """Forward and backward, each alone, for inputs described by [shape, dtype, whether it has a gradient]."""
    if name not in RIVALS:
        raise NotImplementedError("no rival is written for it")
    torch.compiler.reset()
    torch.cuda.empty_cache()  # what the case before had
    tensors = [_tensor(*one, classes=inputs[0][0][-1]) for one in inputs]
    watched = [t for t in tensors if t.requires_grad]
    rivals = RIVALS[name] if isinstance(RIVALS[name], list) else [RIVALS[name]]
    times, error = [], None
    for rival in rivals:
        try:
            times.append(_times(rival, tensors, watched, options))
        except RuntimeError as e:  # a kernel that does not take the case
            error = e
    if not times:
        raise error
    return [min(t) for t in zip(*times)]


def _times(rival, tensors, watched, options):
    compiled = lambda *t: rival(*t, **options)
    if getattr(rival, "compiled", True):
        compiled = torch.compile(compiled, dynamic=False)
    record = lambda: (lambda y: y if isinstance(y, tuple) else (y,))(compiled(*tensors))
    dy = tuple(map(torch.randn_like, record()))
    forward = _median(torch.no_grad()(lambda _: compiled(*tensors)), lambda: None)
    backward = lambda calls: _median(lambda y: torch.autograd.grad(y, watched, dy), record, calls=calls)
    try:
        return forward, backward(CALLS)
    except torch.OutOfMemoryError:  # each call keeps what its backward pass needs: then one at a time
        torch.cuda.empty_cache()
    return forward, backward(1)


def _tensor(shape, dtype, gradient, classes):
    if dtype.startswith("int"):
        return torch.randint(0, classes, shape, device="cuda")
    return torch.randn(shape, device="cuda").to(DTYPES[dtype]).requires_grad_(gradient)


def _median(f, setup, rounds=7, calls=CALLS):
    """Seconds per call by torch's own events; f(setup()) is called, setup stays out of the time. As in _driver.GpuClock, all
    calls are queued after other work, so that the host's speed plays no part."""
    if not _filler:
        _filler.extend(torch.zeros(1 << 28, device="cuda") for _ in range(2))
    for _ in range(3):  # the first compiles
        f(setup())
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(rounds):
        items = [setup() for _ in range(calls)]
        for _ in range(2 * calls):
            _filler[1].copy_(_filler[0])
        begin.record()
        while items:
            f(items.pop())
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / calls)
    return statistics.median(times)


def step_milliseconds(optimizer, count, elements):
    """A step of torch's fused optimizer over `count` parameters: on the GPU, and in all."""
    parameters = [torch.randn(elements, device="cuda", requires_grad=True) for _ in range(count)]
    for p in parameters:
        p.grad = torch.randn_like(p)
    own = getattr(torch.optim, optimizer)(parameters, lr=1e-3, fused=True)
    on_gpu = _median(lambda _: own.step(), lambda: None)
    times = []
    for _ in range(7):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(5):
            own.step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / 5)
    return on_gpu * 1e3, statistics.median(times) * 1e3


def main():
    for line in sys.stdin:
        try:
            question = json.loads(line)
            answer = {"seconds": (step_milliseconds if "optimizer" in question else seconds)(**question)}
        except Exception as error:  # a rival that cannot run is no reason to stop
            answer = {"error": "%s: %s" % (type(error).__name__, str(error).split("\n")[0])}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
