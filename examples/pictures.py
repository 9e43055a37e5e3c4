"""Pictures for resnet50.py: JPEG files in a folder, and the pipeline that reads, crops and flips them ahead of the steps.

A folder has a folder of its own for each class, and in it the class's pictures, of any size: FOLDER/CLASS/*.jpg. Where there
is none, made() draws one.
"""

import math
import os
import pathlib
import shutil

import tensorflow as tf

AREA = 0.25, 1.0  # of a picture, that its crop has: no less and no more
CHUNK = 256  # pictures that are drawn between two lines

# ---- drawing ----


def draw(label, number, image):
    """A picture of a class, as JPEG: stripes of two colours, with noise and a shift that follow from its number. The digits
    of the class are a bright colour, a dark colour and an angle, which are still there in a crop and in a mirror."""
    height, width = image * 5 // 3, image * 20 // 9  # of 224: 373 x 497, as photographs commonly are
    bright, dark, angle = (tf.cast(label // unit % 10, tf.float32) / 10 for unit in (1, 10, 100))
    y, x = tf.meshgrid(tf.linspace(0.0, 1.0, height), tf.linspace(0.0, 4 / 3, width), indexing="ij")
    shift, *_ = tf.unstack(tf.random.stateless_uniform([2], [number, 0], maxval=2 * math.pi))
    along = x * tf.cos(angle * math.pi / 2) + y * tf.sin(angle * math.pi / 2)
    wave = (0.5 + 0.5 * tf.sin(40 * along + shift))[..., None]
    colours = [tf.image.hsv_to_rgb(tf.stack([hue, 0.8, value])) for hue, value in ((bright, 1.0), (dark, 0.4))]
    noise = tf.random.stateless_normal([height, width, 3], [number, 1], stddev=0.04)
    pixels = wave * colours[0] + (1 - wave) * colours[1] + noise
    return tf.io.encode_jpeg(tf.image.convert_image_dtype(tf.clip_by_value(pixels, 0, 1), tf.uint8), quality=90)


def made(folder, image, classes, files):
    """Draws `files` pictures, of all classes in turn, unless the folder is there. It is made aside and moved: a folder that
    is there is whole, and of several processes that make it, one wins."""
    if folder.exists():
        return
    aside = folder.with_name("%s.%d" % (folder.name, os.getpid()))
    places = [str(aside / ("%04d" % label)) for label in range(min(classes, files))]
    for place in places:
        os.makedirs(place)

    def write(number):
        path = tf.strings.format("{}/{}.jpg", (tf.constant(places)[number % classes], number))
        tf.io.write_file(tf.strings.regex_replace(path, '"', ""), draw(number % classes, number, image))
        return number

    for number in tf.data.Dataset.range(files).map(write, tf.data.AUTOTUNE):
        if (number + 1) % CHUNK == 0 or number + 1 == files:
            print("%d of %d pictures drawn in %s" % (number + 1, files, folder), flush=True)
    try:
        os.replace(aside, folder)
    except OSError:  # another process was first
        shutil.rmtree(aside)


# ---- reading ----


def labelled(folder):
    """The paths of all pictures, and the class of each, as a number."""
    names = sorted(path.name for path in pathlib.Path(folder).iterdir() if path.is_dir())
    found = [(str(path), i) for i, name in enumerate(names) for path in sorted(pathlib.Path(folder, name).glob("*.jp*g"))]
    return [path for path, _ in found], [label for _, label in found]


def read(path, label, seed, image):
    """A random piece of a picture, of which nothing else is decoded, as image x image bytes of red, green and blue, and
    mirrored or not. What is random follows from the seed."""
    data = tf.io.read_file(path)
    whole = tf.constant([[[0.0, 0.0, 1.0, 1.0]]])
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.image.extract_jpeg_shape(data), whole, seed, area_range=AREA, aspect_ratio_range=(3 / 4, 4 / 3))
    crop = tf.image.decode_and_crop_jpeg(data, tf.concat([begin[:2], size[:2]], 0), channels=3)
    pixels = tf.image.stateless_random_flip_left_right(tf.image.resize(crop, [image, image]), seed)
    return tf.cast(tf.round(pixels), tf.uint8), label  # a GPU is given bytes: a quarter of what floats would take


def pipeline(paths, labels, image, batch, seed, context=tf.distribute.InputContext()):
    """Batches without end, in another order in each round. With several workers each has its own share of the pictures, and
    with several replicas each has its own share of a batch."""
    data = tf.data.Dataset.from_tensor_slices((paths, tf.constant(labels, tf.int64)))
    data = data.shuffle(len(paths), seed).repeat()
    data = tf.data.Dataset.zip(data, tf.data.Dataset.counter())
    data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
    data = data.map(lambda pair, i: read(*pair, tf.stack([tf.cast(seed, tf.int64), i]), image), tf.data.AUTOTUNE)
    return data.batch(context.get_per_replica_batch_size(batch), drop_remainder=True).prefetch(tf.data.AUTOTUNE)
