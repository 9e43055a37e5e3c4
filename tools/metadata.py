"""What is said of the project: METADATA of a wheel, PKG-INFO of a source distribution."""
import re

METADATA = """\
Metadata-Version: 2.1
Name: tfuse
Version: {version}
Summary: Fused operations for TensorFlow, on CPUs and NVIDIA GPUs
License: Apache-2.0
Classifier: License :: OSI Approved :: Apache Software License
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: C
Classifier: Programming Language :: Python :: 3
Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence
Requires-Python: >=3.9
Provides-Extra: tensorflow
Requires-Dist: tensorflow>=2.16.1; extra == "tensorflow"
Provides-Extra: and-cuda
Requires-Dist: tensorflow[and-cuda]>=2.16.1; extra == "and-cuda"
Provides-Extra: bench
Requires-Dist: matplotlib; extra == "bench"
Requires-Dist: rich; extra == "bench"
"""


def text(version, readme=""):
    """What is said of the project: METADATA of a wheel, PKG-INFO of a source distribution."""
    return METADATA.format(version=version) + (readme and "Description-Content-Type: text/markdown\n\n" + readme)


def version_in(source):
    """Of tfuse/_version.py."""
    return re.search(r'__version__ = "([^"]+)"', source)[1]
