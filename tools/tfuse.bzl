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
