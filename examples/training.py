"""What the training programs here share: their command line, one device or several, a step, and the loop around it."""

import argparse
import os
import pathlib
import resource
import sys
import time

import tensorflow as tf

MODES = ["stock", "xla", "tfuse", "tfuse+xla"]

# ---- the command line ----


def parser(doc, numbers):
    """`numbers` has (name, default, what it means) of every whole number that the program takes."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter,
                                   allow_abbrev=False)  # what starts a script looks for --profile by its whole name
    made.add_argument("--mode", choices=MODES, default="tfuse",
                      help="Keras without XLA or with, without tfuse or with (tfuse)")
    made.add_argument("--dtype", choices=["float32", "mixed_bfloat16", "mixed_float16"], default="mixed_bfloat16")
    made.add_argument("--strategy", choices=["none", "mirrored", "multiworker"], default="none",
                      help="one device; all GPUs of this machine, or its CPU twice; the processes that TF_CONFIG names")
    for name, value, text in numbers:
        made.add_argument("--" + name, type=int, default=value, help="%s (%d)" % (text, value))
    made.add_argument("--json", metavar="FILE", type=pathlib.Path, help="write what was measured there")
    made.add_argument("--profile", action="store_true", help="show where the time of a step goes, and end")
    return made


def parsed(made, arguments):
    options = made.parse_args(arguments)
    if options.strategy != "none" and options.mode.endswith("xla"):
        made.error("--strategy goes with --mode stock or tfuse: XLA compiles a step of one device")
    return options


def start(main, parse):
    """What a program does when it is started."""
    if "--profile" in sys.argv:
        rest = [argument for argument in sys.argv if argument != "--profile"]
        os.execv(sys.executable, [sys.executable, "-m", "tfuse", "profile", *rest])
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    main(parse())


# ---- devices ----


def make_strategy(name, batch):
    """To be called before anything else runs: several workers meet here. `batch` is what all replicas share."""
    strategy = _strategy(name)
    if batch % strategy.num_replicas_in_sync:
        sys.exit("--batch %d cannot be shared by %d replicas evenly" % (batch, strategy.num_replicas_in_sync))
    return strategy


def _strategy(name):
    if name == "mirrored":  # on all GPUs, or on the CPU twice
        kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
        cpu, = tf.config.list_physical_devices("CPU")
        if kind == "CPU" and not tf.config.get_logical_device_configuration(cpu):
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        return tf.distribute.MirroredStrategy([device.name for device in tf.config.list_logical_devices(kind)])
    # One process per worker; TF_CONFIG in the environment says who they are.
    return tf.distribute.MultiWorkerMirroredStrategy() if name == "multiworker" else tf.distribute.get_strategy()


def ahead(data):
    """A data set of one device, whose next batches are on the GPU before they are asked for. A copy to a GPU waits for all
    that the GPU was told to do before; made ahead of time, it does not keep the next step waiting, too."""
    gpus = tf.config.list_logical_devices("GPU")
    return data.apply(tf.data.experimental.prefetch_to_device(gpus[0].name, 2)) if gpus else data


def peak_memory():
    """In bytes: the GPU's since it was last reset, or this process's."""
    if tf.config.list_logical_devices("GPU"):
        return tf.config.experimental.get_memory_info("GPU:0")["peak"]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def reset_peak():
    if tf.config.list_logical_devices("GPU"):
        tf.config.experimental.reset_memory_stats("GPU:0")


# ---- steps ----


def train_function(model, mean_loss, strategy, xla):
    """A step: (inputs, labels) of this process's replicas -> the mean loss over all."""
    def replica_step(inputs, labels):
        with tf.GradientTape() as tape:
            loss = mean_loss(inputs, labels) / strategy.num_replicas_in_sync
            scaled = model.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, [v.value for v in model.trainable_variables])
        model.optimizer.apply(gradients, model.trainable_variables)
        return loss

    @tf.function(jit_compile=xla)
    def train_step(inputs, labels):
        return strategy.reduce("SUM", strategy.run(replica_step, (inputs, labels)), axis=None)

    return train_step


def train(train_step, batches, options, count, unit, first=0, after=lambda done: None):
    """Trains options.steps steps, of which each counts `count` tokens or images (the unit), and prints a line now and then;
    returns the losses and what was measured after the first steps. `first` steps were made before; after(steps made) is
    called behind each."""
    losses, warm = [], min(options.warmup, options.steps - 1)
    begin = time.perf_counter()
    for i, pair in zip(range(options.steps), batches):
        losses.append(train_step(*pair))
        if i + 1 == warm:
            losses[-1].numpy()  # waits for the GPU
            reset_peak()
            begin = time.perf_counter()
        elif i + 1 > warm and ((i + 1) % options.every == 0 or i + 1 == options.steps):
            loss = float(losses[-1])
            ms = (time.perf_counter() - begin) / (i + 1 - warm) * 1e3
            print("step %5d  loss %.4f  %8.2f ms/step  %9.0f %s/s  %6.2f GB" % (
                first + i + 1, loss, ms, count / ms * 1e3, unit, peak_memory() / 1e9), flush=True)
        after(i + 1)
    return {"ms_per_step": ms, unit + "_per_s": count / ms * 1e3, "peak_GB": peak_memory() / 1e9,
            "losses": [float(loss) for loss in losses]}
