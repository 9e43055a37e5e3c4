"""The CUDA driver from Python, by ctypes: what doctor asks it, and the clock that the benchmark times with."""

import ctypes
import dataclasses
import statistics
import time

import tensorflow as tf

from tfuse._core import _library
from tfuse._core._address import address

_FILLER = 1 << 30  # bytes: half a millisecond's copy


@dataclasses.dataclass
class Gpu:
    ordinal: int
    name: str
    capability: int
    memory: int


class Driver:
    """libcuda.so.1; `error` is set when it is there but does not work."""

    def __init__(self, cuda):
        self.cuda, self.error = cuda, ""
        if result := cuda.cuInit(0):
            self.error = "cuInit: %s" % self._name(result)

    @staticmethod
    def find():
        try:
            return Driver(ctypes.CDLL("libcuda.so.1"))
        except OSError:
            return None

    def _name(self, result):
        text = ctypes.c_char_p()
        self.cuda.cuGetErrorName(result, ctypes.byref(text))
        return (text.value or b"error %d" % result).decode()

    def call(self, function, *arguments):
        if result := getattr(self.cuda, function)(*arguments):
            raise RuntimeError("%s: %s" % (function, self._name(result)))

    def get(self, function, *arguments, kind=ctypes.c_int):
        """What a function writes to its first argument."""
        value = kind()
        self.call(function, ctypes.byref(value), *arguments)
        return value.value

    def version(self):
        """The CUDA that the driver serves: 12050 is 12.5."""
        return self.get("cuDriverGetVersion")

    def devices(self):
        return [self._device(i) for i in range(self.get("cuDeviceGetCount"))]

    def _device(self, ordinal):
        name = ctypes.create_string_buffer(128)
        self.call("cuDeviceGetName", name, len(name), ordinal)
        major, minor = (self.get("cuDeviceGetAttribute", a, ordinal) for a in (75, 76))  # COMPUTE_CAPABILITY_MAJOR, _MINOR
        memory = self.get("cuDeviceTotalMem_v2", ordinal, kind=ctypes.c_size_t)
        return Gpu(ordinal, name.value.decode(), major * 10 + minor, memory)


class WallClock:
    """Seconds per call on the CPU: the median of several rounds. The functions take turns, so that all see the same
    machine. A function is a pair (f, setup): f(setup()) is called, and setup stays out of the time."""

    name = "wall clock"

    def time(self, functions, rounds=9, at_least=0.02):
        calls, seconds = {}, {name: [] for name in functions}
        for name, (f, setup) in functions.items():
            self._round(f, setup, 1)
            calls[name] = max(1, int(at_least / max(self._round(f, setup, 1), 1e-9)))
        for _ in range(rounds):
            for name, (f, setup) in functions.items():
                self._settle(f, setup)
                seconds[name].append(self._round(f, setup, calls[name]))
        return {name: statistics.median(s) for name, s in seconds.items()}

    def _settle(self, f, setup, seconds=0.05):
        """Calls that do not count: after another function, it takes threads some time to find their cores again."""
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            self._round(f, setup, 1)

    def _round(self, f, setup, calls):
        items = [setup() for _ in range(calls)]
        start = time.perf_counter()
        while items:
            f(items.pop())
        return (time.perf_counter() - start) / calls


def wall_seconds(call, calls):
    """Of a call, host and device together, as a loop in Python sees it."""
    tf.test.experimental.sync_devices()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    tf.test.experimental.sync_devices()
    return (time.perf_counter() - start) / calls


class GpuClock:
    """The same on the GPU's own clock: events on TensorFlow's stream, around calls that are all queued before the first
    of them runs, so that the host's speed plays no part."""

    name = "GPU events"
    OFTEN = (2e-3, (7, 5)), (2e-2, (5, 3)), (float("inf"), (3, 1))  # up to so many seconds: rounds, of so many calls

    def __init__(self):
        import tfuse
        with tf.device("GPU:0"):
            tfuse.square(tf.ones([8]))  # makes the stream known
            self._filler = [tf.zeros([_FILLER // 4]) for _ in range(2)]
        self._filler_at = [ctypes.c_void_p(address(t)) for t in self._filler]
        self._driver = Driver.find()
        self._stream = ctypes.c_void_p(_library.library.tfu_trace_stream())
        context = ctypes.c_void_p()
        self._driver.call("cuStreamGetCtx", self._stream, ctypes.byref(context))
        self._driver.call("cuCtxSetCurrent", context)
        self._begin, self._end = (
            ctypes.c_void_p(self._driver.get("cuEventCreate", 0, kind=ctypes.c_void_p)) for _ in range(2))
        self._filler_seconds = 1.0
        self._filler_seconds = self._round(lambda _: self._fill(), lambda: None, 8, 0)

    def _fill(self):
        """Keeps the GPU busy with a copy: a product would leave it too hot for its full clock."""
        self._copy(*self._filler_at, _FILLER)

    def _copy(self, to, source, size):
        self._driver.call("cuMemcpyDtoDAsync_v2", to, source, ctypes.c_size_t(size), self._stream)

    def _round(self, f, setup, calls, host_seconds):
        """Seconds per call; host_seconds is what queueing one takes."""
        items = [setup() for _ in range(calls)]
        for _ in range(int(2 * calls * host_seconds / self._filler_seconds) + 2):
            self._fill()
        self._driver.call("cuEventRecord", self._begin, self._stream)
        while items:
            f(items.pop())
        self._driver.call("cuEventRecord", self._end, self._stream)
        self._driver.call("cuEventSynchronize", self._end)
        return self._driver.get("cuEventElapsedTime", self._begin, self._end, kind=ctypes.c_float) / 1e3 / calls

    def _host_seconds(self, f, setup):
        item = setup()
        self._driver.call("cuStreamSynchronize", self._stream)
        start = time.perf_counter()
        f(item)
        host = time.perf_counter() - start
        self._driver.call("cuStreamSynchronize", self._stream)
        return host

    def time(self, functions):
        seconds = {}
        for name, (f, setup) in functions.items():
            for _ in range(2):
                f(setup())
            host = self._host_seconds(f, setup)
            once = self._round(f, setup, 1, host)
            rounds, calls = next(often for limit, often in self.OFTEN if once < limit)
            seconds[name] = statistics.median(self._round(f, setup, calls, host) for _ in range(rounds))
        return seconds

    def copy_speed(self, size):
        """Bytes read and written per second by the driver's own device-to-device copy."""
        with tf.device("GPU:0"):
            a, b = (tf.zeros([size // 4]) for _ in range(2))
        to, source = (ctypes.c_void_p(address(tensor)) for tensor in (a, b))
        return 2 * size / self.time({"copy": (lambda _: self._copy(to, source, size), lambda: None)})["copy"]
