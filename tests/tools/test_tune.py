"""python -m tfuse tune: what it lists, what it tries, and what it finds where the fastest value is known."""

import math
import random
import types

import pytest
import rich.console
import tensorflow as tf

from conftest import GPUS, needs_gpu
from tfuse import cases
from tfuse._tools import _bench, _tune


def chosen(stem, name):
    found, = [c for c in _tune.tunables() if (c.stem, c.name) == (stem, name)]
    return found


@pytest.fixture(autouse=True)
def as_before():
    """Every test leaves the library's values as they were."""
    before = {(c.stem, c.name): c.value for c in _tune.tunables()}
    yield
    assert {(c.stem, c.name): c.value for c in _tune.tunables()} == before


@pytest.fixture
def waves():
    """A tunable with the value 16 and the range 1 to 64."""
    tunable = chosen("softmax", "forward_waves")
    yield tunable
    tunable.put(tunable.value)


class FakeEntry:
    """Takes seconds(values of the library's tunables, by name) by a clock that drifts, and is off by `noise` at random."""

    line, direction = types.SimpleNamespace(timed=types.SimpleNamespace(name="fake"), dtype="float32"), "forward"

    def __init__(self, label, seconds, asked=("forward_waves",), noise=0.0, drift=0.0, stem="softmax"):
        self.label, self.seconds, self.asked, self.stem, self.noise, self.drift = label, seconds, asked, stem, noise, drift
        self.random, self.runs = random.Random(label), 0

    def asks(self, some):
        return {(self.stem, name) for name in self.asked}

    def timer(self):
        def time():
            self.runs += 1
            value = self.seconds({c.name: c.value for c in _tune.tunables() if c.stem == self.stem})
            return value * (1 + self.drift * self.runs) * (1 + self.noise * self.random.uniform(-1, 1))

        return time

    def speed(self, seconds):
        return 50 / seconds


def valley(best, depth=1.0):
    """Seconds that are least at `best`, and grow by a tenth of `depth` with each factor of 2."""
    return lambda values: 1 + 0.1 * depth * abs(math.log2(values["forward_waves"] / best))


# ---- the tunables ----


def test_every_choice_is_timed_by_a_benchmark():
    """Or `tune` could not find it: its stem is that of cases which are timed."""
    families = cases.all_timed()
    assert len({(c.stem, c.name) for c in _tune.tunables()}) == len(_tune.tunables()) > 10
    for tunable in _tune.tunables():
        assert tunable.families or tunable.file.startswith("kernels/generation/"), tunable.file
        for family in tunable.families:
            assert families.get(family), "%s of %s" % (tunable.name, tunable.file)


def test_candidates():
    tunable = _tune.Tunable("a", "b", 20, 3, 50, "", 0, False)
    assert tunable.candidates() == [3, 4, 6, 8, 12, 16, 20, 24, 32, 48, 50]
    assert tunable.candidates(quick=True) == [3, 4, 8, 16, 20, 32, 50]
    assert _tune.Tunable("a", "b", 1, 0, 2, "", 0, False).candidates() == [0, 1, 2]


def test_values_are_the_librarys(waves):
    assert (waves.value, waves.least, waves.most) == (16, 1, 64)
    assert waves.file == "kernels/rows/softmax_gpu.c" and waves.line > 1
    waves.put(64)
    assert chosen("softmax", "forward_waves").value == 64
    with pytest.raises(ValueError, match="forward_waves of softmax must be 1 to 64, got 65"):
        waves.put(65)
    assert chosen("softmax", "forward_waves").value == 64


# ---- the search ----


@pytest.mark.parametrize("best", [1, 6, 16, 64])
def test_the_best_is_found_in_noise_and_drift(waves, best):
    entries = [FakeEntry("%d of %d" % (i, best), valley(best), noise=0.02, drift=1e-4) for i in range(4)]
    found = _tune.search(waves, entries)
    assert found.best == chosen("softmax", "forward_waves").value == best
    assert len(found.times) == 4 and all(list(of) == waves.candidates() for of in found.times.values())
    if best == 6:
        assert 0.8 < found.share < 0.95 and len(found.shares) == 4


def test_drift_alone_decides_nothing(waves):
    """A clock that slows down by a third from the first timing to the last."""
    entry = FakeEntry("drift", lambda values: 1.0, drift=1 / 250)
    found = _tune.search(waves, [entry])
    assert entry.runs > 60 and found.best == 16 and not found.reacting


def test_a_gain_that_does_not_come_again_is_none(waves):
    """The value 32 is fast in the first timings only."""
    entry = FakeEntry("luck", None)
    entry.seconds = lambda values: 0.9 if values["forward_waves"] == 32 and entry.runs <= 2 * 3 * 12 else 1.0
    found = _tune.search(waves, [entry])
    assert found.times[entry][32] == pytest.approx(0.9) and found.best == 16 and found.shares == []


def test_entries_that_do_not_react_do_not_count(waves):
    """The one that does is a tenth faster at 4; the mean of all would be better by less than what is worth a change."""
    entries = [FakeEntry("still %d" % i, lambda values: 1.0) for i in range(30)] + [FakeEntry("reacts", valley(4))]
    found = _tune.search(waves, entries)
    assert found.best == 4 and [entry.label for entry in found.reacting] == ["reacts"]
    assert found.share == pytest.approx(1 / 1.2)


def test_what_is_faster_for_some_must_pay_for_others(waves):
    entries = [FakeEntry("a", valley(4)), FakeEntry("b", valley(64, depth=3))]
    assert _tune.search(waves, entries).best == 64


def console():
    return rich.console.Console(width=160, highlight=False, markup=False)


def test_one_choice_at_a_time(capsys):
    """The second tunable is searched with the first at its best; all are the library's own again at the end."""
    some = [c for c in _tune.tunables() if c.stem == "softmax"]
    names = [c.name for c in some]
    assert names == ["forward_waves", "ring_from", "ring_share", "ring_ahead", "backward_cluster"]
    seen = set()

    def seconds(values):
        seen.add((values["forward_waves"], values["backward_cluster"]))
        return valley(4)(values) + 0.1 * (values["backward_cluster"] != 8)

    found = _tune.tune(some, [FakeEntry("softmax float32", seconds, [names[0], names[-1]])], console())
    assert [(f.tunable.name, f.best) for f in found] == [("forward_waves", 4), ("backward_cluster", 8)]
    assert (4, 6) in seen and (16, 6) not in seen
    assert chosen("softmax", "forward_waves").value == 16
    printed = capsys.readouterr().out
    assert "ring_from: no entry asks for it" in printed
    assert "forward_waves: 12 values from 1 to 64, 1 entries" in printed
    row, = [line.split() for line in printed.splitlines() if "softmax float32" in line][:1]
    assert row[2:6] == ["38.5", "41.7", "43.8", "45.5"]  # at 1, 2, 3, 4: 50 / 1.3, …
    assert "time in percent of that with 16" in printed
    lines = [line for f in found for line in _tune.verdict(f)]
    assert lines == ["%s:%d: forward_waves = 4 takes 15.4%% less time than 16 (single entries 15.4%% to 15.4%% less):" % (
                         some[0].file, some[0].line),
                     "    TFU_TUNABLE(forward_waves, 4, 1, 64);",
                     "%s:%d: backward_cluster = 8 takes 9.1%% less time than 2 (single entries 9.1%% to 9.1%% less):" % (
                         some[-1].file, some[-1].line),
                     "    TFU_TUNABLE(backward_cluster, 8, 1, 8);"]


def test_the_values_come_back_after_an_error(waves):
    def seconds(values):
        if values["forward_waves"] == 8:
            raise RuntimeError("out of memory")
        return 1.0

    with pytest.raises(RuntimeError, match="out of memory"):
        _tune.tune([waves], [FakeEntry("fails", seconds)], console())
    assert chosen("softmax", "forward_waves").value == 16


def test_in_haste(waves, capsys):
    """One round, powers of two, and of a kind of entry the first."""
    entries = [FakeEntry("first", valley(32)), FakeEntry("second", valley(1))]
    found, = _tune.tune([waves], entries, console(), quick=True)
    assert found.best == 32 and list(found.times) == entries[:1] and entries[1].runs == 0
    assert entries[0].runs == 2 * len([1, 2, 4, 8, 16, 32, 64]) + 2 * 2 * 2
    assert "second" not in capsys.readouterr().out


def test_what_stays_says_why(waves):
    still, worse = FakeEntry("still", lambda values: 1.0), FakeEntry("worse", valley(16))
    assert _tune.verdict(_tune.search(waves, [still]))[0].endswith("forward_waves = 16 stays: no entry depends on it")
    line, = _tune.verdict(_tune.search(waves, [worse]))
    assert line.endswith("forward_waves = 16 stays: no other value takes 0.5% less time")


# ---- the command ----


def test_listing(capsys):
    assert _tune.main([]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    for tunable in _tune.tunables():
        ops = ", ".join(tunable.families) or tunable.stem
        assert [*ops.split(), tunable.name, str(tunable.value), str(tunable.least), "to", str(tunable.most),
                "%s:%d" % (tunable.file, tunable.line)] in lines


@pytest.mark.parametrize("op, says", [("attention", "attention: it has no tunables"), ("nonsense", "nonsense: no such op")])
def test_ops_without_choices(op, says, capsys):
    with pytest.raises(SystemExit) as left:
        _tune.main([op])
    assert left.value.code == 2
    printed = capsys.readouterr().err
    assert says in printed and "norm (layer_norm, rms_norm), " in printed and " reduce, " in printed and " rope, " in printed


@pytest.mark.skipif(bool(GPUS), reason="there is a GPU")
def test_without_a_gpu(capsys):
    assert _tune.main(["rms_norm"]) == 1
    assert "TensorFlow sees none here" in capsys.readouterr().err


def test_the_command(monkeypatch, capsys):
    """As on a machine with a GPU; the entries and the machine are made up."""
    about = dict.fromkeys(("hardware", "tensorflow", "tfuse", "commit", "date"), "made up")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["one"])
    monkeypatch.setattr(_bench, "Bench", lambda chosen: types.SimpleNamespace(about=about, device="CPU:0"))
    monkeypatch.setattr(_tune, "entries_of", lambda bench, members: [FakeEntry(members[0].name, valley(8))])
    assert _tune.main(["softmax", "--quick"]) == 0
    printed = capsys.readouterr().out
    *_, better, line = printed.splitlines()
    assert printed.startswith("made up, TensorFlow made up")
    assert "forward_waves = 8 takes 9.1% less time than 16" in better and line == "    TFU_TUNABLE(forward_waves, 8, 1, 64);"


def test_ops_by_function_and_by_stem():
    members = cases.all_timed()
    assert _tune.members_of("norm") == ("norm", members["norm"])
    module, named = _tune.members_of("rms_norm")
    assert module == "norm" and {_tune.function_of(timed) for timed in named} == {"rms_norm"}
    assert {timed.name for timed in _tune.members_of("sort")[1]} == {"sort", "argsort"}, "a stem is that of all its functions"
    assert _tune.members_of("log_softmax") == ("softmax", members["softmax"])  # the benchmark does not time it
    assert _tune.members_of("nonsense") == (None, [])


def test_entries_are_the_benchmarks():
    """The lines of a case, in both directions; each runs, here on the CPU, and is timed by the benchmark's clock."""
    asked = []

    def clock(functions):
        (f, setup), = functions.values()
        asked.append(f(setup()))
        return {"tfuse": 0.5}

    bench = types.SimpleNamespace(clock=types.SimpleNamespace(time=clock), copy=8.0, lines=lambda members: [
        _bench.Line(members[0], "float32", (4, 8), {})])
    forward, backward = _tune.entries_of(bench, cases.all_timed()["softmax"])
    assert (forward.label, backward.label) == ("softmax float32 4×8, forward", "softmax float32 4×8, backward")
    assert forward.timer()() == backward.timer()() == 0.5
    y, (dx,) = asked
    assert float(tf.reduce_sum(y)) == pytest.approx(4) and float(tf.reduce_sum(dx)) == pytest.approx(0, abs=1e-5)
    assert forward.speed(0.5) == pytest.approx(100 * 2 * 4 * 32 / 0.5 / 8)  # read and written: 32 elements of 4 bytes
    assert backward.speed(0.5) == pytest.approx(1.5 * forward.speed(0.5))


@needs_gpu
def test_a_launch_asks_for_its_own_choices():
    bench = types.SimpleNamespace(lines=lambda members: [_bench.Line(members[0], "bfloat16", (64, 256), {})])
    some = [c for c in _tune.tunables() if c.stem == "softmax"]
    with tf.device("GPU:0"):
        forward, backward = _tune.entries_of(bench, cases.all_timed()["softmax"])
        assert forward.asks(some) >= {("softmax", "forward_waves"), ("softmax", "ring_from")}
        assert ("softmax", "backward_cluster") in backward.asks(some)
        assert ("softmax", "forward_waves") not in backward.asks(some)
