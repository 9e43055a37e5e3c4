"""How long a GPU was idle during the steps that `python -m tfuse profile` has seen, and what it waited for.

Gaps are times in which no kernel ran. What ends a gap says what it was for: a copy to the GPU that ran in it or ended it, a number
that the host had read just before, or else work that the host had not launched yet. Gaps of a few microseconds lie between any
two kernels.
"""

import collections

SHORT = 10e6  # picoseconds: below, one kernel just follows another
LAUNCH = "the host to launch work"
COPY = "a copy to the GPU: feed it by fit() with tfuse.enable(), or by prefetch_to_device"
READ = "the host, which had read a result: read losses and metrics less often"
BETWEEN = "the next of many short kernels: larger batches, or jit_compile=True"

Work = collections.namedtuple("Work", "begin end kind")  # in picoseconds; "kernel", "to GPU", "to host"


def kind_of(name):
    """Of an event on a GPU's stream."""
    if "MemcpyH2D" in name or "HtoD" in name:
        return "to GPU"
    return "to host" if "MemcpyD2H" in name or "DtoH" in name else "kernel"


def works(plane):
    for line in plane.lines:
        if line.name.startswith("Stream"):
            for event in line.events:
                begin = line.timestamp_ns * 1000 + event.offset_ps
                yield Work(begin, begin + event.duration_ps, kind_of(plane.event_metadata[event.metadata_id].name))


def waits(found):
    """(picoseconds from the first work to the last, {what the GPU waited for: picoseconds}) of works in any order."""
    found = sorted(found)
    kernels = [work for work in found if work.kind == "kernel"]
    copies = [work for work in found if work.kind != "kernel"]
    waited, at, end = collections.Counter(), 0, None
    for work in kernels:
        if end is not None and work.begin > end:
            inside = []
            while at < len(copies) and copies[at].begin < work.begin:
                if copies[at].end > end - SHORT:
                    inside.append(copies[at].kind)
                at += 1
            waited[_cause(work.begin - end, inside)] += work.begin - end
        end = work.end if end is None else max(end, work.end)
    return (end - kernels[0].begin, waited) if kernels else (0, waited)


def _cause(gap, copies):
    if gap < SHORT:
        return BETWEEN
    if "to GPU" in copies:
        return COPY
    return READ if "to host" in copies else LAUNCH


def report(planes, steps):
    """Lines to print; none where no GPU ran."""
    found = [work for plane in planes if plane.name.startswith("/device:GPU") for work in works(plane)]
    whole, waited = waits(found)
    if not whole:
        return []
    ms = lambda picoseconds: picoseconds / 1e9 / steps
    lines = ["The GPU was idle for %.2f of %.2f ms of a step. It waited for:" % (ms(sum(waited.values())), ms(whole))]
    return lines + ["  %7.3f ms  %s" % (ms(gap), what) for what, gap in waited.most_common() if ms(gap) >= 0.001]
