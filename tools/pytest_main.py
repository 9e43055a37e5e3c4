"""The main program of a Bazel py_test: pytest over the files given, its cases reported as Bazel's test.xml."""
import os
import sys

del sys.path[0]  # this file's folder, where wheel.py would pass for the package of that name

import pytest


class Shard:
    """Every n-th case, where Bazel runs a target in n parts at a time."""
    none_left = False

    def pytest_collection_modifyitems(self, items):
        if "TEST_TOTAL_SHARDS" in os.environ:
            open(os.environ["TEST_SHARD_STATUS_FILE"], "w").close()  # by which Bazel sees that they are heeded
            mine = items[int(os.environ["TEST_SHARD_INDEX"])::int(os.environ["TEST_TOTAL_SHARDS"])]
            self.none_left = bool(items) and not mine
            items[:] = mine


scratch = os.environ["TEST_TMPDIR"]
os.environ.update(
    HOME=scratch,
    XDG_CACHE_HOME=scratch,
    TFUSE_LIBRARY=os.path.abspath(os.environ["TFUSE_LIBRARY"]),
)
# Any status but 0 fails the target, 5 among them: no test was collected.
shard = Shard()
status = pytest.main(["-p", "no:cacheprovider", "--basetemp", os.path.join(scratch, "pytest"), "--junitxml", os.environ["XML_OUTPUT_FILE"],
                      *sys.argv[1:]], [shard])
sys.exit(0 if shard.none_left else status)
