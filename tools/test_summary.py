"""Sums up one `bazel test`: what failed, and on the last line `N passed, N failed, N skipped`, counting test cases.

  test_summary.py LOG TESTLOGS STATUS
      LOG is Bazel's command log of the run (--test_summary=short names each target and how it ended), TESTLOGS the folder
      bazel-testlogs, STATUS Bazel's exit status. A target that did not build, crashed or ran out of time is a failure even
      where its cases say nothing. Exits 1 when anything failed.
"""
# The build event protocol would say all this, but the Bazel that Debian ships dies of it.
import collections
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

TARGET = re.compile(r"^(//\S+:\S+) +(?:\(cached\) )?(PASSED|FLAKY|FAILED TO BUILD|FAILED|TIMEOUT|NO STATUS|INCOMPLETE|[A-Z ]+)", re.M)
RAN = ("PASSED", "FLAKY", "FAILED", "TIMEOUT")  # for all else, a test.xml would be an earlier run's


def reports(folder):
    """The files of a target's last run. Those of earlier ones, in another number of shards, may lie beside them."""
    found = sorted(folder.glob("**/test.xml"), key=lambda path: path.stat().st_mtime)
    shards = lambda path: "" if path.parent == folder else path.parent.name.partition("_of_")[2]
    return [path for path in found if shards(path) == shards(found[-1])]


def read_cases(folder):
    """(outcome, name, message, log) of every case that a target reported."""
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
            yield outcome, case.get("name", "?"), message.strip().split("\n")[0], path.with_name("test.log")


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    log, testlogs, status = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
    count, lines = collections.Counter(), []
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]|\r", "", log.read_text(errors="replace"))
    for label, ended in sorted(set(TARGET.findall(text))):
        folder = testlogs / label.lstrip("/").replace(":", "/")
        cases = list(read_cases(folder)) if ended in RAN else []
        count.update(outcome for outcome, *_ in cases)
        bad = [f"  {label} {name}: {message}" for outcome, name, message, _ in cases if outcome == "failed"]
        logs = dict.fromkeys(log for outcome, *_, log in cases if outcome == "failed")
        if ended not in ("PASSED", "FLAKY") and not bad:
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
