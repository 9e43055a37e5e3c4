"""gcc as Bazel sees it. Bazel's automatic toolchain knows one compiler at a time, asks for it again whenever CC changes,
and links libstdc++ into C; this one is a fixed path per target."""

load("@bazel_tools//tools/cpp:cc_toolchain_config_lib.bzl", "feature", "tool_path")

_TOOLS = ["ar", "cpp", "gcc", "gcov", "ld", "nm", "objcopy", "objdump", "strip"]

def _gcc_config_impl(ctx):
    return cc_common.create_cc_toolchain_config_info(
        ctx = ctx,
        toolchain_identifier = ctx.label.name,
        compiler = "gcc",
        target_cpu = ctx.label.name,
        target_libc = "glibc",
        target_system_name = "linux",
        host_system_name = "linux",
        abi_version = "gcc",
        abi_libc_version = "glibc",
        cxx_builtin_include_directories = ["/usr"],
        features = [feature(name = "supports_pic", enabled = True)],
        tool_paths = [tool_path(name = t, path = ctx.attr.prefix + t) for t in _TOOLS],
    )

_gcc_config = rule(
    implementation = _gcc_config_impl,
    attrs = {"prefix": attr.string(doc = "the tools' common path, up to their names")},
    provides = [CcToolchainConfigInfo],
)

def gcc_toolchain(name, prefix):
    """A C toolchain of the tools PREFIXgcc, PREFIXar, … . It lists no files: they are part of the machine."""
    _gcc_config(name = name + "_config", prefix = prefix)
    native.cc_toolchain(
        name = name,
        all_files = ":none",
        compiler_files = ":none",
        dwp_files = ":none",
        linker_files = ":none",
        objcopy_files = ":none",
        strip_files = ":none",
        toolchain_config = ":" + name + "_config",
    )
