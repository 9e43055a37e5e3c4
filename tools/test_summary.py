"""Sums up one `bazel test`: what failed, and on the last line `N passed, N failed, N skipped`, counting test cases.

  test_summary.py LOG TESTLOGS STATUS
      LOG is Bazel's command log of the run (--test_summary=short names each target and how it ended), TESTLOGS the folder
      bazel-testlogs, STATUS Bazel's exit status. A target that did not build, crashed or ran out of time is a failure even
      where its cases say nothing; one that ran out of time is said to have. Exits 1 when anything failed.
"""
# The build event protocol would say all this, but the Bazel that Debian ships dies of it.
import collections
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

TARGET = re.compile(r"^(//\S+:\S+) +(?:\(cached\) )?(PASSED|FLAKY|FAILED TO BUILD|FAILED|TIMEOUT|NO STATUS|INCOMPLETE|[A-Z ]+)"
                    r"(?:.* in ([\d.]+)s$)?", re.M)
RAN = ("PASSED", "FLAKY", "FAILED", "TIMEOUT")  # for all else, a test.xml would be an earlier run's


def reports(folder):
    """The files of a target's last run. Those of earlier ones, in another number of shards, may lie beside them."""
    found = sorted(folder.glob("**/test.xml"), key=lambda path: path.stat().st_mtime)
    shards = lambda path: "" if path.parent == folder else path.parent.name.partition("_of_")[2]
    return [path for path in found if shards(path) == shards(found[-1])]


TIMED_OUT = ("timed out after %s s, its limit, and was ended: it hangs, or the machine was too busy. Run it alone, ./run test "
             "%s; if it is ended again, it hangs where its log ends")


def log_of(report):
    return report.with_name("test.log")


def ran_out(log):
    """Whether Bazel ended what wrote this log: its last line then says so."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return text.rstrip().rpartition("\n")[2].startswith("-- Test timed out at ")


def read_cases(folder):
    """(outcome, name, message, log) of every case that a target reported, with its file's name where the target has another.
    What Bazel reports in the place of a part that it ended is left out."""
    for path in reports(folder):
        try:
            cases = ElementTree.parse(path).getroot().iter("testcase")
        except ElementTree.ParseError:
            continue
        for case in cases:
            children = {child.tag: child for child in case}
            bad = children.get("failure", children.get("error"))
            outcome = "failed" if bad is not None else "skipped" if "skipped" in children else "passed"
            message = "" if bad is None else bad.get("message") or bad.text or ""
            if message.startswith("exited with error code") and ran_out(log_of(path)):
                continue
            file, name = case.get("classname", "").rpartition(".")[2], case.get("name", "?")
            name = name if file in ("", folder.name) else f"{file}::{name}"
            yield outcome, name, message.strip().split("\n")[0], log_of(path)


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    log, testlogs, status = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
    count, lines = collections.Counter(), []
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]|\r", "", log.read_text(errors="replace"))
    for label, ended, seconds in sorted(set(TARGET.findall(text))):
        folder = testlogs / label.lstrip("/").replace(":", "/")
        cases = list(read_cases(folder)) if ended in RAN else []
        count.update(outcome for outcome, *_ in cases)
        bad = [f"  {label} {name}: {message}" for outcome, name, message, _ in cases if outcome == "failed"]
        logs = dict.fromkeys(log for outcome, *_, log in cases if outcome == "failed")
        slow = [log for log in map(log_of, reports(folder)) if ran_out(log)] if ended in RAN else []
        if slow:
            count["failed"] += 1
            bad.append(f"  {label} " + TIMED_OUT % (seconds.partition(".")[0], label))
            logs.update(dict.fromkeys(slow))
        elif ended not in ("PASSED", "FLAKY") and not bad:
            count["failed"] += 1
            bad, logs = [f"  {label}: {ended.strip().lower()}"], folder.glob("**/test.log") if ended in RAN else ()
        lines += bad + [f"    {log}" for log in logs]
    if not status and not count:
        count["failed"] += 1
        lines.append("  no test has reported anything")
    if status and not count["failed"]:
        count["failed"] += 1
        lines.append("  the build: see Bazel's messages above")
    if lines:
        print("\nFailed:", *lines, sep="\n")
    print(f"\n{count['passed']} passed, {count['failed']} failed" + (f", {count['skipped']} skipped" if count["skipped"] else ""))
    sys.exit(count["failed"] > 0)


if __name__ == "__main__":
    main()
