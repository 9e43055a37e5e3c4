"""Processor seconds to the end of the third training step, tracing and compiling among them, of models of KerasHub and
keras.applications, small but for the number of their layers: stock, with tfuse.enable(), and both with XLA. Each in a process of
its own. All threads count; what else the machine does does not.

  ./run python tools/trace_times.py                                  # all of them, a table
  ./run python tools/trace_times.py T5 Bert --modes tfuse,tfuse+xla
  ./run python tools/trace_times.py T5 --modes tfuse+xla --profile   # where Python spends the time

On a machine without a GPU, enable() leaves products, convolutions and other things to Keras. --as-on-a-gpu has tfuse serve them
all the same, by its kernels for CPUs: so tracing is what it is with a GPU, and compiling is not.
"""
import argparse
import cProfile
import json
import pstats
import re
import subprocess
import sys
import time

MODES = ["stock", "tfuse", "stock+xla", "tfuse+xla"]
WORDS, BATCH, LENGTH, IMAGE = 64, 2, 32, 64
DIMS = dict(vocabulary_size=WORDS, hidden_dim=32, intermediate_dim=64)
SHARED = dict(num_query_heads=4, num_key_value_heads=2)
# The options of NAME + "Backbone" of keras_hub.models, beside DIMS and the number of layers; of the last ones all options.
TEXT = {
    "GPT2": dict(num_heads=4, max_sequence_length=LENGTH), "Bert": dict(num_heads=4, max_sequence_length=LENGTH),
    "Llama": SHARED, "Mistral": dict(SHARED, sliding_window=8), "Mixtral": dict(SHARED, num_experts=2, sliding_window=8),
    "Qwen": SHARED, "Qwen3": dict(SHARED, head_dim=8), "Phi3": SHARED, "GPTNeoX": dict(num_heads=4, max_sequence_length=LENGTH),
    "Gemma": dict(SHARED, head_dim=8), "Gemma3": dict(SHARED, head_dim=8, image_size=None),
    "Bloom": dict(num_heads=4, max_sequence_length=LENGTH), "Falcon": dict(num_attention_heads=4),
    "T5": dict(num_heads=4), "DebertaV3": dict(num_heads=4, max_sequence_length=LENGTH, bucket_size=4),
    "GptOss": dict(SHARED, head_dim=8, num_experts=3, top_k=2, sliding_window=8),
    "T5Gemma": dict(query_pre_attn_scalar=8, tie_word_embeddings=True, **{
        side + name: value for side in ("encoder_", "decoder_") for name, value in dict(
            hidden_dim=32, intermediate_dim=64, num_attention_heads=4, num_key_value_heads=2, head_dim=8).items()}),
}
FLOAT32 = ["Mixtral"]  # whose loss of KerasHub's own mixes dtypes in bfloat16
IMAGES = ["ResNet50", "EfficientNetB0", "ConvNeXtTiny", "MobileNetV2"]  # of keras.applications, which are as deep as they are
MODELS = [*TEXT, *IMAGES]


# ---- in the process that measures ----


def text_model(name, layers):
    import keras
    import keras_hub
    options = dict(TEXT[name], vocabulary_size=WORDS)
    if name == "T5Gemma":
        for side in "encoder_", "decoder_":
            options.update({side + "num_layers": layers, side + "layer_types": ["full_attention"] * layers})
    else:
        options.update(DIMS, num_layers=layers)
    body = getattr(keras_hub.models, name + "Backbone")(**options)
    output = body.output
    if isinstance(output, dict):
        output = output.get("decoder_sequence_output", output.get("sequence_output"))
    return keras.Model(body.input, keras.layers.Dense(WORDS)(output))


def text_batch(model):
    import numpy as np
    tokens = np.random.default_rng(0).integers(1, WORDS, (BATCH, LENGTH))
    there = np.arange(LENGTH) < [[LENGTH], [LENGTH // 2]]
    values = {"token_ids": np.where(there, tokens, 0), "padding_mask": there.astype(np.int64), "segment_ids": 0 * tokens}
    return {part.name: next(value for name, value in values.items() if part.name.endswith(name)) for part in model.inputs}, tokens


def image_model(name):
    import keras
    return getattr(keras.applications, name)(weights=None, input_shape=(IMAGE, IMAGE, 3), classes=10, classifier_activation=None)


def image_batch():
    import numpy as np
    return np.random.default_rng(0).random((BATCH, IMAGE, IMAGE, 3), np.float32), np.arange(BATCH)


def measure(name, mode, layers, as_on_a_gpu, profile):
    """Processor seconds from the beginning of the first step to the end of the third."""
    import keras
    import tensorflow as tf
    import tfuse
    from tfuse._core import _library
    keras.config.set_dtype_policy("float32" if name in FLOAT32 else "mixed_bfloat16")
    if as_on_a_gpu:
        _library.without_gpu = lambda: False
    if mode.startswith("tfuse"):
        tfuse.enable()
    model = text_model(name, layers) if name in TEXT else image_model(name)
    batch = text_batch(model) if name in TEXT else image_batch()
    batch = tf.nest.map_structure(tf.constant, batch)
    optimizer = keras.optimizers.AdamW(1e-4)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=mode.endswith("xla"))
    optimizer.build(model.trainable_variables)
    model.make_train_function()
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    start = time.process_time()
    for _ in range(3):
        loss = float(model.train_function(iter([batch]))["loss"])
    seconds = time.process_time() - start
    if profile:
        profiler.disable()
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("cumulative").print_stats(80)
    print(json.dumps({"seconds": seconds, "loss": loss}))


# ---- in the process that asks ----


def asked(name, mode, options):
    """What a new process measured, as a text: seconds, or why there are none."""
    command = [sys.executable, __file__, name, "--measure", mode, "--layers", str(options.layers),
               *["--as-on-a-gpu"] * options.as_on_a_gpu, *["--profile"] * options.profile]
    try:
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=options.limit)
    except subprocess.TimeoutExpired:
        return "over %d" % options.limit
    if options.profile:
        print(done.stderr)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if re.match(r"[\w.]+(Error|Exception)\b", line)]
        print("trace_times: %s, %s: %s" % (name, mode, (errors or ["status %d" % done.returncode])[-1]), file=sys.stderr)
        return "failed"
    return "%.1f" % json.loads(done.stdout.splitlines()[-1])["seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="of " + ", ".join(MODELS) + "; none: all")
    parser.add_argument("--modes", default=",".join(MODES), help="of " + ", ".join(MODES) + ", with commas between")
    parser.add_argument("--layers", type=int, default=4, help="of the models of KerasHub (4)")
    parser.add_argument("--limit", type=int, default=600, help="seconds after which a process is stopped (600)")
    parser.add_argument("--as-on-a-gpu", action="store_true", help="serve what is left to Keras where there is no GPU")
    parser.add_argument("--profile", action="store_true", help="print what Python did")
    parser.add_argument("--measure", choices=MODES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    modes = options.modes.split(",")
    for kind, names, all in ("model", options.models, MODELS), ("mode", modes, MODES):
        if set(names) - set(all):
            parser.error("there is no %s %s; there are %s" % (kind, ", ".join(sorted(set(names) - set(all))), ", ".join(all)))
    if options.measure:
        return measure(options.models[0], options.measure, options.layers, options.as_on_a_gpu, options.profile)
    row = lambda name, cells: print("| %-14s | %s |" % (name, " | ".join("%9s" % cell for cell in cells)), flush=True)
    row("processor s", modes)
    row("---", ["---"] * len(modes))
    for name in options.models or MODELS:
        row(name, [asked(name, mode, options) for mode in modes])


if __name__ == "__main__":
    main()
