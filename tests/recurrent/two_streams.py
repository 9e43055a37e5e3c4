"""An LSTM on two devices of one GPU at the same time, which have a stream each: `python two_streams.py`, in a process of its own,
as devices cannot be divided later. Each launch wants nearly all multiprocessors, and its blocks wait for each other."""

import threading

import numpy as np
import tensorflow as tf

import tfuse


def run(devices, units=1024, batch=8, steps=64, times=20):
    """Raises where results differ, of any two calls."""
    rng, results = np.random.default_rng(0), []
    x, kernel, recurrent_kernel = (rng.normal(size=s).astype("float32") / 30
                                   for s in ((batch, steps, 8), (8, 4 * units), (units, 4 * units)))
    mask = np.ones([batch, steps], bool)

    def work(device):
        with tf.device(device):
            inputs = [tf.constant(t) for t in (x, kernel, recurrent_kernel)]
            results.extend([tfuse.lstm(*inputs, mask=mask)[0] for _ in range(times)])

    threads = [threading.Thread(target=work, args=[device]) for device in devices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(results) != times * len(devices) or any(not np.array_equal(results[0], r) for r in results):
        raise AssertionError("results differ")


if __name__ == "__main__":
    gpu = tf.config.list_physical_devices("GPU")[0]
    tf.config.set_logical_device_configuration(gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=2048)] * 2)
    run(["GPU:0", "GPU:1"])
