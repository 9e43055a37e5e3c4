"""tfuse.calibrate: ranges, by methods whose answers are known; layers of 8 bits with them; files; what is refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import since_now
from tfuse.__main__ import main
from tfuse._tools import _files
from tfuse.calibration.calibrate import SAMPLE, _Seen
from tfuse.calibration.histograms import BINS, Histogram

pytestmark = pytest.mark.skipif(tuple(map(int, keras.__version__.split(".")[:2])) < (3, 15),
                                reason="this Keras has other formats")
RNG = np.random.default_rng(0)


def histogram(*batches):
    made = Histogram()
    for batch in batches:
        made.add(tf.constant(batch))
    return made


def test_bins_are_those_of_all_values():
    """Batches of any order and size: of zeros alone at first, and of values that are beyond the bins."""
    values = [np.zeros(5), RNG.normal(size=1000), 9 * RNG.normal(size=(7, 100)), RNG.normal(size=10)]
    made, whole = histogram(*values), np.abs(np.concatenate([v.ravel() for v in values]))
    assert made.counts.sum() == whole.size and made.most == pytest.approx(whole.max())
    want, _ = np.histogram(whole, BINS, (0, made.width * BINS))
    assert np.abs(np.cumsum(made.counts) - np.cumsum(want)).max() <= 3  # values at a bin's edge


def test_ranges():
    """One value of a thousand is far away: the largest is its range, and the other methods cut it off."""
    made = histogram(np.concatenate([np.linspace(0, 1, 10**5), [1000.0] * 2, RNG.uniform(0, 2, 10**5)]).astype("float32"))
    assert made.range("max") == 1000 and made.clipped(1000) == 0
    assert made.range("percentile", 99.9) <= 2.5 and made.clipped(2.5) == pytest.approx(1e-5, rel=0.01)
    values = np.abs(RNG.normal(size=10**5))
    normal = histogram(values.astype("float32"))
    error = lambda range: np.mean((values - np.minimum(np.round(values * 127 / range), 127) * range / 127)**2)
    best = normal.range("mse")
    assert error(best) <= 1.02 * min(error(r) for r in np.linspace(1, normal.most, 60))
    assert 2.5 < normal.range("entropy") <= normal.most
    heavy = histogram(RNG.standard_t(2, size=10**5).astype("float32"))
    assert heavy.range("entropy") < 0.5 * heavy.most
    for far, least in ((RNG.uniform(1, 2, 10**4), 1.9), (RNG.integers(0, 10, 10**4), 8.9), (RNG.normal(290, 10, 10**4), 300)):
        assert histogram(far.astype("float32")).range("entropy") > least  # all are far from 0


def model():
    keras.utils.set_random_seed(1)
    return keras.Sequential([
        keras.Input((6, 16)), keras.layers.EinsumDense("abc,cde->abde", (None, 4, 8), activation="gelu", name="einsum"),
        keras.layers.Reshape((6, 32)), tfuse.Dense(8, name="dense")], name="model")


@pytest.mark.parametrize("method", ["entropy", "percentile", "mse", "max"])
def test_a_calibrated_model(method, tmp_path):
    made, x = model(), RNG.normal(size=(64, 6, 16)).astype("float32")
    before = made.predict(x, verbose=0)
    found = tfuse.calibrate(made, x, method)
    assert [row.layer.split("/")[-1] for row in found.rows] == ["einsum", "dense"]
    assert all(row.quantized and 0 < row.range <= row.most and 0 < row.error < 0.1 for row in found.rows), str(found)
    after = made.predict(x, verbose=0)
    error = np.sqrt(np.mean((after - before)**2) / np.mean(before**2))
    assert 0 < error < 0.1
    since = since_now()
    with tfuse.enabled():
        served = tf.function(made, autograph=False)(x)
    np.testing.assert_allclose(served, after, atol=1e-5)
    assert len(since(op="QuantizedLinear", when="ran")) == 2
    if method == "max":
        made.save(tmp_path / "model.keras")
        np.testing.assert_allclose(keras.saving.load_model(tmp_path / "model.keras").predict(x, verbose=0), after, atol=1e-6)
        found.plot(tmp_path / "ranges.png")
        assert (tmp_path / "ranges.png").stat().st_size > 1000
        assert "einsum" in str(found) and "8 bits" in str(found)


def test_inputs_have_a_gradient():
    made, x = model(), tf.constant(RNG.normal(size=(4, 6, 16)), tf.float32)
    tfuse.calibrate(made, x.numpy(), "max")

    def gradient():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = made(x)
        return tape.gradient(y, x)

    want = gradient()
    with tfuse.enabled():
        np.testing.assert_allclose(gradient(), want, atol=1e-5)


@pytest.mark.parametrize("make", [
    lambda q, static: ("int8", q.Int8QuantizationConfig(activation_quantizer=static)),
    lambda q, static: ("int4", q.Int4QuantizationConfig(block_size=-1, activation_quantizer=static))], ids=["int8", "int4"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_values_beyond_the_range(make, dtype):
    layer, x = keras.layers.Dense(6, dtype=dtype), tf.constant(9 * RNG.normal(size=(5, 16)), dtype)
    layer.build((None, 16))
    mode, config = make(keras.quantizers, tfuse.calibration.StaticQuantizer(0.75))
    layer.quantize(mode, config=config)
    want, since = layer(x), since_now()
    with tfuse.enabled():
        np.testing.assert_allclose(tf.cast(layer(x), "float32"), tf.cast(want, "float32"),
                                   **(dict(rtol=0.03, atol=0.03) if dtype == "bfloat16" else dict(rtol=1e-5, atol=1e-5)))
    assert since(op="QuantizedLinear", when="ran")


def test_scales_are_multiplied_in_float32():
    """Those of a kernel and of its inputs are 129 / 128 and 3 / 2 here: the product lies between two numbers of bfloat16."""
    layer = keras.layers.Dense(1, dtype="bfloat16")
    layer.build((None, 1))
    layer.quantize("int8", config=keras.quantizers.Int8QuantizationConfig(
        activation_quantizer=tfuse.calibration.StaticQuantizer(127 / 1.5)))
    layer.kernel_scale.assign([1 + 2**-7])
    layer._kernel.assign([[36]])
    with tfuse.enabled(), tf.device("CPU"):  # where sums are scaled in float32
        assert float(layer(tf.constant([[28.625]], tf.bfloat16))[0, 0]) == 1024  # 43 * 36 / 1.51171875


def test_layers_that_lose_too_much_stay():
    made, data = model(), tf.data.Dataset.from_tensor_slices((RNG.normal(size=(40, 6, 16)), np.zeros(40))).batch(8)
    found = tfuse.calibrate(made, data, "max", most_error=1e-9)
    assert [(row.quantized, row.why) for row in found.rows] == [(False, "its error is larger")] * 2
    assert all(layer.quantization_mode is None for layer in made.layers if hasattr(layer, "lora_enabled"))


def double(x):
    return 2 * x


def test_errors_are_those_of_the_layer_itself():
    """Of functions that no configuration has, and of LoRA weights with a factor of their own."""
    x = RNG.normal(size=(64, 16)).astype("float32")
    made = keras.Sequential([keras.Input((16,)), keras.layers.Dense(8, activation=double, name="own"),
                             keras.layers.EinsumDense("ab,bc->ac", (4,), bias_axes="c", activation=lambda y: y + 1)])
    made.layers[0].enable_lora(2, lora_alpha=16)
    made.layers[0].lora_kernel_b.assign(RNG.normal(size=made.layers[0].lora_kernel_b.shape))
    before = made.predict(x, verbose=0)
    errors = [row.error for row in tfuse.calibrate(made, x, "max").rows]
    assert all(0 < error < 0.02 for error in errors)
    np.testing.assert_allclose(made.predict(x, verbose=0), before, atol=0.05 * np.abs(before).max())


def test_what_cannot_be_known_stays():
    made = keras.Sequential([keras.Input((6, 16)), keras.layers.TimeDistributed(keras.layers.Dense(4)), keras.layers.Dense(3)])
    x = RNG.normal(size=(8, 6, 16)).astype("float32")
    before = made.predict(x, verbose=0)
    of_time, last = tfuse.calibrate(made, x, "max").rows
    assert not of_time.quantized and "multiplies by its kernel as it is" in of_time.why and last.quantized
    assert np.abs(made.predict(x, verbose=0) - before).max() < 0.1 * np.abs(before).max()
    broken = model()
    broken.layers[0].kernel.assign(np.full(broken.layers[0].kernel.shape, np.nan))
    with pytest.raises(ValueError, match="dense: there are inputs that are infinite or no numbers"):
        tfuse.calibrate(broken, x, "max")
    alone = keras.Sequential([keras.Input((16,)), keras.layers.Dense(4)])
    alone.layers[0].kernel.assign(np.full((16, 4), np.nan))
    assert not tfuse.calibrate(alone, x[0], "max", most_error=0.5).rows[0].quantized

    class Compiled(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(4)
            self.run = tf.function(lambda x: self.dense(x))

        def call(self, x):
            return self.run(x)

    made = Compiled()
    made(x[0])
    with pytest.raises(ValueError, match="is called by a tf.function, where its inputs cannot be read"):
        tfuse.calibrate(made, x[0, :5], "max")


def test_data_come_as_fit_takes_them():
    x, y = RNG.normal(size=(40, 6, 16)).astype("float32"), np.zeros(40)
    pairs = tf.data.Dataset.from_tensor_slices((x, y))
    batches = [x[i:i + 8] for i in range(0, 40, 8)]
    ranges = [[row.range for row in tfuse.calibrate(model(), data, "max", progress=True).rows]
              for data in (x, (x, y), (x, y, y), batches, iter(batches), pairs.batch(8), pairs.filter(lambda x, y: True).batch(8))]
    assert all(found == pytest.approx(ranges[0], rel=1e-5) for found in ranges)
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    for data in ({"a": x[:, 0, :4], "b": x[:, 1, :4]}, ([x[:, 0, :4], x[:, 1, :4]], y)):
        both = keras.Model([a, b], keras.layers.Dense(2)(keras.layers.concatenate([a, b])))
        assert tfuse.calibrate(both, data, "max").rows[0].range == np.abs(x[:, :2, :4]).max()
    with pytest.raises(ValueError, match="data must have an end"):
        tfuse.calibrate(model(), pairs.repeat().batch(8))


def test_few_rows_are_kept():
    """Of sequences, too, whose steps are rows: as many as the error is measured with, and of an EinsumDense whole examples."""
    for layer, x, kept in zip(model().layers[::2], (16, 32), [(1, 100, 16), (SAMPLE, 32)]):
        seen = _Seen(layer)
        for _ in range(2):
            seen._see(tf.ones([8, 100, x]))
        assert [tuple(sample.shape) for sample in seen.sample] == [kept]


def test_refusals():
    made, x = model(), np.ones((4, 6, 16), "float32")
    for wrong, text in ((dict(method="median"), "method must be one of"), (dict(bits=4), "bits must be 8, got 4"),
                        (dict(percentile=0.9999), "percentile must be from 50 to 100"), (dict(most_error=-1), "most_error must be"),
                        (dict(data=[]), "there are no data"), (dict(model="model.keras"), "model must be a Keras model, got 'model.keras'"),
                        (dict(data=[x * np.nan]), "einsum: there are inputs that are infinite or no numbers"),
                        (dict(model=keras.Sequential([keras.Input((2,)), keras.layers.ReLU()])), "no Dense or EinsumDense")):
        with pytest.raises(ValueError, match=text):
            tfuse.calibrate(**{"model": made, "data": [x], **wrong})
    assert "call" not in vars(made.layers[0])
    with pytest.raises(ValueError, match="range must be a positive number, got 0"):
        tfuse.calibration.StaticQuantizer(0)


def test_the_command(tmp_path, capsys, monkeypatch):
    made, x = model(), RNG.normal(size=(64, 6, 16)).astype("float32")
    made.save(tmp_path / "model.keras")
    np.save(tmp_path / "data.npy", x)
    arguments = ["calibrate", str(tmp_path / "model.keras"), "--data", str(tmp_path / "data.npy"), "--method", "max"]
    assert main([*arguments, "--save", str(tmp_path / "small.keras"), "--plot", str(tmp_path / "ranges.png")]) == 0
    assert "8 bits" in capsys.readouterr().out and (tmp_path / "ranges.png").exists()
    tfuse.calibrate(made, x, "max")
    np.testing.assert_allclose(keras.saving.load_model(tmp_path / "small.keras").predict(x, verbose=0),
                               made.predict(x, verbose=0), atol=1e-5)
    (tmp_path / "small.keras").unlink()
    with pytest.raises(SystemExit, match="--plot: Format 'none' is not supported"):  # after what was asked for is saved
        main([*arguments, "--save", str(tmp_path / "small.keras"), "--plot", str(tmp_path / "ranges.none")])
    assert (tmp_path / "small.keras").exists()
    with pytest.raises(SystemExit, match="--save: there is no folder .*nowhere for"):  # before anything is measured
        main([*arguments, "--save", str(tmp_path / "nowhere/small.keras")])
    with pytest.raises(SystemExit, match="--data must name a .npy file, got .*model.keras"):
        main([*arguments[:3], str(tmp_path / "model.keras")])
    np.save(tmp_path / "flat.npy", x[:, 0])
    with pytest.raises(SystemExit, match=r"flat.npy has shape \(64, 16\); the model takes \(None, 6, 16\)"):
        main([*arguments[:3], str(tmp_path / "flat.npy")])
    np.save(tmp_path / "nan.npy", x * np.nan)
    capsys.readouterr()
    assert main([*arguments[:3], str(tmp_path / "nan.npy")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("calibrate: ") and said.count("\n") == 1
    with pytest.raises(SystemExit, match="--save must name a .keras file, got small.h5"):
        main(["calibrate", "none.keras", "--data", "none.npy", "--save", "small.h5"])
    monkeypatch.delattr(keras.quantizers, "Int8QuantizationConfig")
    assert main(arguments) == 1 and "update Keras" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="there is no"):
        main(["calibrate", str(tmp_path / "other.keras"), "--data", str(tmp_path / "data.npy")])


def huge(path):
    """A header that promises 4 TB."""
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (10**12,)})


@pytest.mark.parametrize("write, why", [
    (lambda path: path.touch(), "cannot be loaded: "), (lambda path: path.write_bytes(b"PK\3\4" + bytes(50)), "cannot be loaded: "),
    (lambda path: np.savez(open(path, "wb"), a=np.ones(3)), "cannot be loaded: "), (huge, "cannot be loaded: "),
    (lambda path: path.mkdir(), "cannot be loaded: IsADirectoryError"),
    (lambda path: np.save(path, np.array(["a", 1], object), allow_pickle=True), "cannot be loaded: "),
    (lambda path: np.save(path, np.ones(3, "complex64")), "has dtype complex64: real numbers or bool are wanted"),
    (lambda path: np.save(path, np.array(["a"])), "has dtype <U1"), (lambda path: np.save(path, np.ones([0, 3])), "(is empty|cannot be loaded)"),
], ids=["empty", "zip", "npz", "huge", "folder", "pickle", "complex", "text", "no rows"])
def test_what_is_no_data(tmp_path, write, why):
    """It is met before the model is loaded."""
    write(tmp_path / "data.npy")
    with pytest.raises(SystemExit, match="data.npy " + why) as ended:
        main(["calibrate", "nowhere.keras", "--data", str(tmp_path / "data.npy")])
    assert len(str(ended.value).splitlines()) == 1


def test_what_cannot_be_written(tmp_path):
    """It is met before anything is loaded, and leaves nothing behind."""
    (tmp_path / "folder.keras").mkdir()
    for file, why in (("folder.keras", "is a folder, and a file is wanted"), ("/proc/x.keras", "cannot be written: ")):
        with pytest.raises(SystemExit, match="--save: .*" + why):
            main(["calibrate", "nowhere.keras", "--data", "nowhere.npy", "--save", str(tmp_path / file)])
    _files.check_writable("--save", tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.keras"]
