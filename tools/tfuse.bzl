"""What all C code of the project is compiled with; -O and -g come from .bazelrc."""

COPTS = [
    "-std=gnu11",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fvisibility=hidden",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Iops",
    "-I.",
    "-include",
    "tools/cc/glibc.h",
]

# Each cubin serves the later minors of its major; the PTX serves what comes after.
ARCHITECTURES = [
    "sm_70",
    "sm_80",
    "sm_90",
    "sm_100",
    "sm_120",
    "compute_90",
]
