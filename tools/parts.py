"""Where the time of Bazel's last command went, as one line. Usage: parts.py OUTPUT_BASE SETUP_SECONDS

What runs at the same time shares the time: the parts add up to the whole.
"""
import gzip
import json
import os
import re
import sys

PARTS = [("tests", r"Testing "), ("device code", r"Compiling \S+\.cu for "), ("C", r"(Compiling|Linking) ")]


def part_of(name):
    return next((part for part, pattern in PARTS if re.match(pattern, name)), "the rest")


def shares(spans):
    """{part: seconds} of (part, start, end), each moment divided among all that run in it."""
    edges = sorted([(start, 1, part) for part, start, _ in spans] + [(end, -1, part) for part, _, end in spans])
    running, found, last = {}, {}, 0
    for at, change, part in edges:
        active = sum(running.values())
        for name, count in running.items():
            found[name] = found.get(name, 0) + (at - last) * count / active if active else found.get(name, 0)
        running[part] = running.get(part, 0) + change
        last = at
    return found


def line(events, setup):
    spans = [(part_of(e["name"]), e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6)
             for e in events if e.get("cat") == "action processing"]
    whole = max((e["ts"] + e.get("dur", 0)) / 1e6 for e in events if "ts" in e)
    found = shares(spans)
    found["the rest"] = found.get("the rest", 0) + max(whole - sum(found.values()), 0)
    parts = {"install": setup, **{name: found[name] for name, _ in PARTS[::-1] if name in found}, "the rest": found["the rest"]}
    return "%.0f s: %s" % (setup + whole, ", ".join("%s %.0f s" % part for part in parts.items()))


def main(output_base, setup):
    path = os.path.join(output_base, "command.profile.gz")
    with gzip.open(path) as file:
        found = json.load(file)
    print(line(found["traceEvents"] if isinstance(found, dict) else found, float(setup)))


if __name__ == "__main__":
    main(*sys.argv[1:])
