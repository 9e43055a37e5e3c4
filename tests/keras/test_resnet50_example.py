"""examples/resnet50.py, small: it trains on pictures that it draws, and the loss falls. And examples/pictures.py: what is
drawn is what its class says, and the pipeline gives every picture once a round, cropped and mirrored."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf

from gpt2_example import explained, left_as_it_was, runs

import pictures
import resnet50

IMAGE, CLASSES, FILES = 32, 4, 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("pictures") / "drawn"
    pictures.made(made, IMAGE, CLASSES, FILES)
    return made


def first_batch(folder, batch, seed=1, **context):
    context = tf.distribute.InputContext(**context)
    return next(iter(pictures.pipeline(*pictures.labelled(folder), IMAGE, batch, seed, context)))


# ---- training ----

LINE = re.compile(r"step +(\d+)  loss ([\d.]+) +([\d.]+) ms/step +(\d+) images/s +([\d.]+) GB")


def test_the_loss_falls(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(resnet50, "AGAIN", 4)
    options = resnet50.parse([
        "--mode=tfuse", "--dtype=float32", "--image=%d" % IMAGE, "--batch=16", "--classes=%d" % CLASSES, "--steps=16",
        "--every=8", "--rate=0.001", "--pictures=%s" % folder, "--json=%s" % (tmp_path / "measured.json")])
    with left_as_it_was():
        _, rows = explained(resnet50.main, options)
    measured = json.loads((tmp_path / "measured.json").read_text())
    losses = measured["losses"]
    assert len(losses) == 16 and np.mean(losses[-8:]) < 0.5 * np.mean(losses[:5]), losses
    assert {"BatchNormGrad", "TensorsUpdate"} <= set(runs(rows)), rows
    assert "relu of a batch norm and another tensor" in {row["why"] for row in rows}

    first, found, *lines, again, _, last = capsys.readouterr().out.splitlines()
    assert first == "tfuse, float32, 23.6 million parameters, 16 images of 32 x 32 a step"
    assert found == "%d pictures of %d classes in %s" % (FILES, CLASSES, folder) and again.startswith("the last batch again")
    assert [LINE.fullmatch(line)[1] for line in lines] == ["8", "16"]
    assert measured["images_per_s"] == pytest.approx(16e3 / measured["ms_per_step"])
    share = max(0, 1 - measured["ms_without_input"] / measured["ms_per_step"])
    assert measured["input_share"] == pytest.approx(share)
    assert last.startswith("input takes %.1f%% of a step: %.2f ms" % (100 * share, measured["ms_per_step"]))


@pytest.mark.parametrize("arguments, told", [
    (["--image", "31"], "takes no less than 32"), (["--steps", "0"], "nothing to measure"),
    (["--strategy", "mirrored", "--mode", "xla"], "--strategy goes with --mode")])
def test_what_the_command_line_refuses(arguments, told, capsys):
    with pytest.raises(SystemExit):
        resnet50.parse(arguments)
    assert told in capsys.readouterr().err


def test_pictures_of_too_many_classes_or_none(folder, tmp_path):
    for place, classes in [(folder, CLASSES - 1), (tmp_path, CLASSES)]:
        options = resnet50.parse(["--pictures=%s" % place, "--classes=%d" % classes])
        with pytest.raises(SystemExit, match="must have pictures, FOLDER/CLASS/.*, of at most %d classes" % classes):
            resnet50.batches(tf.distribute.get_strategy(), options)


# ---- drawing ----


def test_pictures_are_drawn_once(folder):
    paths, labels = pictures.labelled(folder)
    assert len(paths) == FILES and labels == sorted(i % CLASSES for i in range(FILES))
    assert len({open(path, "rb").read() for path in paths}) == FILES  # no two are the same
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]  # nothing is left aside
    before = (folder / "0001" / "1.jpg").stat().st_mtime_ns
    pictures.made(folder, IMAGE, CLASSES, FILES)
    assert (folder / "0001" / "1.jpg").stat().st_mtime_ns == before


def test_another_process_may_be_first(folder, tmp_path, monkeypatch):
    place = tmp_path / "drawn"
    draw = pictures.draw

    def while_drawing(*about):
        (place / "theirs").mkdir(parents=True, exist_ok=True)
        return draw(*about)

    monkeypatch.setattr(pictures, "draw", while_drawing)
    pictures.made(place, IMAGE, CLASSES, 4)
    assert [path.name for path in tmp_path.rglob("*")] == ["drawn", "theirs"]


# ---- the pipeline ----


def test_labels_are_those_of_the_pictures(folder):
    """The mean colour of a crop is nearest to that of its class."""
    images, labels = first_batch(folder, FILES)
    assert images.dtype == tf.uint8 and images.shape == (FILES, IMAGE, IMAGE, 3) and labels.dtype == tf.int64
    colour = lambda hue, value: tf.image.hsv_to_rgb([hue, 0.8, value]).numpy() * 255
    means = np.stack([(colour(label / 10, 1.0) + colour(0.0, 0.4)) / 2 for label in range(CLASSES)])
    distances = np.linalg.norm(images.numpy().mean((1, 2))[:, None] - means, axis=-1)
    np.testing.assert_array_equal(np.argmin(distances, axis=1), labels)


def test_a_seed_gives_the_same_batches_again(folder):
    (images, labels), (same, _), (other, _) = (first_batch(folder, 8, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(images, same)
    assert not np.array_equal(images, other) and len(set(labels.numpy())) > 1


def test_every_picture_comes_once_a_round(folder):
    """And workers share a round; each replica has its share of a batch."""
    _, labels = first_batch(folder, FILES)
    assert sorted(labels.numpy()) == sorted(i % CLASSES for i in range(FILES))
    workers = {"num_input_pipelines": 2, "num_replicas_in_sync": 2}
    shares = [first_batch(folder, FILES, input_pipeline_id=i, **workers) for i in range(2)]
    assert sorted(np.concatenate([labels for _, labels in shares])) == sorted(labels.numpy())


def test_pictures_are_cropped_and_mirrored(tmp_path, monkeypatch):
    """Of a picture whose green grows from left to right: crops differ in their range, and half of them fall."""
    ramp = np.tile(np.arange(192, dtype=np.uint8)[:, None] * [0, 1, 0], (96, 1, 1)).astype(np.uint8)
    path = str(tmp_path / "ramp.jpg")
    tf.io.write_file(path, tf.io.encode_jpeg(ramp, quality=100))
    rows = [pictures.read(path, 0, [1, i], IMAGE)[0].numpy()[..., 1].mean(0) for i in range(40)]
    rising = np.array([row[-1] > row[0] for row in rows])
    assert 0.25 < rising.mean() < 0.75
    ranges = np.array([abs(row[-1] - row[0]) for row in rows])
    assert len(set(ranges.round())) > 10 and ranges.min() > 30 and ranges.max() < 192
    monkeypatch.setattr(pictures, "AREA", (0.999, 1.0))
    whole = pictures.read(path, 0, [1, 0], IMAGE)[0].numpy()[..., 1].mean(0)
    np.testing.assert_allclose(np.sort(whole), (np.arange(IMAGE) + 0.5) * 6 - 0.5, atol=3)
