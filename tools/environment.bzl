"""The repository @python_env: TensorFlow's C headers, NVRTC with its headers, and a Python toolchain.

They come from the project's environment, made by `./run setup`:
  .venv/bin/python   a virtual environment with TensorFlow;   TFUSE_PYTHON names another interpreter
  .venv/nvrtc        a `pip install --target` of NVRTC 12.9;   TFUSE_NVRTC names another folder
NVRTC stands apart because tensorflow[and-cuda] pins another version of the same packages.
"""

_FIND_TENSORFLOW = "import importlib.util as u; s = u.find_spec('tensorflow'); print(s.submodule_search_locations[0] if s else '')"

def _missing(what):
    fail("\n\n%s is missing: run ./run setup first.\n" % what)

def _python_env_impl(ctx):
    root = str(ctx.path(ctx.attr._workspace).dirname)
    for pins in ctx.attr._pins:  # naming them as labels makes Bazel look again when a pinned version changes
        ctx.path(pins)

    python = ctx.os.environ.get("TFUSE_PYTHON", root + "/.venv/bin/python")
    if not ctx.path(python).exists:
        _missing("The Python environment (%s)" % python)
    tensorflow = ctx.execute([python, "-c", _FIND_TENSORFLOW]).stdout.strip()
    if not tensorflow:
        _missing("TensorFlow (in the environment of %s)" % python)
    nvrtc = ctx.os.environ.get("TFUSE_NVRTC", root + "/.venv/nvrtc")
    for part in ["cuda_nvrtc", "cuda_runtime", "cuda_cccl"]:
        if not ctx.path("%s/nvidia/%s" % (nvrtc, part)).exists:
            _missing("NVRTC (%s/nvidia/%s)" % (nvrtc, part))

    ctx.symlink(tensorflow + "/include", "tensorflow")
    ctx.symlink(nvrtc + "/nvidia/cuda_runtime/include", "cuda")
    ctx.symlink(nvrtc + "/nvidia", "nvidia")
    ctx.template("BUILD", ctx.attr._build_file, {"{python}": python})

python_env = repository_rule(
    implementation = _python_env_impl,
    configure = True,
    local = True,
    environ = ["TFUSE_NVRTC", "TFUSE_PYTHON"],
    attrs = {
        "_build_file": attr.label(default = "//tools:environment.BUILD"),
        "_pins": attr.label_list(default = ["//tools:locked/python.txt", "//tools:locked/nvrtc.txt"]),
        "_workspace": attr.label(default = "//:WORKSPACE"),
    },
)
