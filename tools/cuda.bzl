"""Device code: every .cu file for every architecture, as C files with the images inside."""

Architectures = provider("What device code is compiled for.", fields = {"names": "sm_NN for a cubin, compute_NN for PTX"})

def _architectures_impl(ctx):
    return Architectures(names = {name: None for name in ctx.build_setting_value if name}.keys())

architectures = rule(
    doc = "A setting of the command line: a list of names, with commas; none is none.",
    implementation = _architectures_impl,
    build_setting = config.string_list(flag = True),
)

Quick = provider("Whether device code is only compiled to see that it can be.", fields = ["said"])

def _quick_impl(ctx):
    return Quick(said = ctx.build_setting_value)

quick = rule(
    doc = "A setting of the command line: whether device code is compiled in half the time, for machines that do not run it.",
    implementation = _quick_impl,
    build_setting = config.bool(flag = True),
)

# What device code may include beside its family's own headers: core, but for what is the host's alone.
_FOR_DEVICES = [
    "kernels/core",
    "kernels/core/device",
    "ops",
]
_FOR_BOTH = [
    "kernels/core/gpu/channels.h",
    "kernels/core/gpu/rows.h",
    "kernels/core/gpu/tensor_map.h",
    "kernels/core/gpu/walk.h",
]

def _headers(ctx, source):
    """Those that a source may include. So a change compiles little again, even where Bazel has yet to learn which of them
    the source reaches."""
    return [h for h in ctx.files.hdrs if h.dirname == source.dirname or h.dirname in _FOR_DEVICES or h.short_path in _FOR_BOTH]

def _cuda_images_impl(ctx):
    tables, images, costs = [], [], []
    architectures = ctx.attr.architectures[Architectures].names
    for source in ctx.files.srcs:
        stem = source.basename[:-len(".cu")]
        headers = _headers(ctx, source)
        of_stem = []
        for arch in architectures:
            image = ctx.actions.declare_file("images/%s.%s.lzma" % (stem, arch))
            unused = ctx.actions.declare_file("images/%s.%s.unused" % (stem, arch))
            cost = ctx.actions.declare_file("images/%s.%s.cost" % (stem, arch))
            args = ctx.actions.args()
            args.add("compile")
            args.add("--nvidia", ctx.file._nvidia)
            args.add("--arch", arch)
            args.add("--out", image)
            args.add("--unused", unused)
            args.add("--cost", cost)
            if ctx.attr.quick[Quick].said:
                args.add("--quick")
            args.add(source)
            args.add_all(headers)
            ctx.actions.run(
                executable = ctx.executable._nvrtc,
                arguments = [args],
                inputs = [source, ctx.file._nvidia] + headers,
                outputs = [image, unused, cost],
                unused_inputs_list = unused,
                mnemonic = "Nvrtc",
                progress_message = "Compiling %s for %s" % (source.short_path, arch),
            )
            of_stem.append(image)
            costs.append(cost)
        table = ctx.actions.declare_file("images/%s_images.c" % stem)
        args = ctx.actions.args()
        args.add("table")
        args.add("--stem", stem)
        args.add("--out", table)
        args.add_all(of_stem)
        ctx.actions.run(
            executable = ctx.executable._nvrtc,
            arguments = [args],
            inputs = of_stem,
            outputs = [table],
            mnemonic = "ImageTable",
        )
        tables.append(table)
        images += of_stem

    info = ctx.actions.declare_file("images/build_info.c")
    args = ctx.actions.args()
    args.add("info")
    args.add("--nvidia", ctx.file._nvidia)
    args.add("--version-file", ctx.file.version_file)
    args.add("--out", info)
    args.add_all(architectures)
    ctx.actions.run(
        executable = ctx.executable._nvrtc,
        arguments = [args],
        inputs = [ctx.file._nvidia, ctx.file.version_file],
        outputs = [info],
        mnemonic = "BuildInfo",
    )
    return [DefaultInfo(files = depset(tables + images + [info])), OutputGroupInfo(costs = depset(costs))]

cuda_images = rule(
    doc = "For each STEM.cu: an image per architecture, and STEM_images.c with the table tfu_STEM_images; and build_info.c.",
    implementation = _cuda_images_impl,
    attrs = {
        "architectures": attr.label(providers = [Architectures]),
        "hdrs": attr.label_list(allow_files = True),
        "quick": attr.label(providers = [Quick]),
        "srcs": attr.label_list(allow_files = [".cu"]),
        "version_file": attr.label(allow_single_file = [".py"]),
        "_nvidia": attr.label(allow_single_file = True, default = "@python_env//:nvidia"),
        "_nvrtc": attr.label(cfg = "exec", executable = True, default = "//tools:nvrtc"),
    },
)

def _portable_impl(ctx):
    costs = depset(transitive = [src[OutputGroupInfo].costs for src in ctx.attr.srcs])
    return [DefaultInfo(files = depset(ctx.files.srcs)), OutputGroupInfo(costs = costs)]

portable = rule(
    doc = "What is the same for every target: built once, in the build machine's own configuration.",
    implementation = _portable_impl,
    attrs = {"srcs": attr.label_list(cfg = "exec")},
)

def _linked_only_impl(ctx):
    return [CcInfo(linking_context = ctx.attr.library[CcInfo].linking_context)]

linked_only = rule(
    doc = "A library that others link, while its headers, and all else that it compiles with, are not theirs.",
    implementation = _linked_only_impl,
    attrs = {"library": attr.label(providers = [CcInfo])},
)

def _cost_table_impl(ctx):
    costs = ctx.attr.images[OutputGroupInfo].costs
    table = ctx.actions.declare_file(ctx.label.name + ".txt")
    args = ctx.actions.args()
    args.add("costs")
    args.add("--out", table)
    args.add_all(costs)
    ctx.actions.run(executable = ctx.executable._nvrtc, arguments = [args], inputs = costs, outputs = [table])
    return [DefaultInfo(files = depset([table]))]

cost_table = rule(
    doc = "NAME.txt: the seconds that each source of device code takes to compile, and its bytes, by architecture.",
    implementation = _cost_table_impl,
    attrs = {
        "images": attr.label(),
        "_nvrtc": attr.label(cfg = "exec", executable = True, default = "//tools:nvrtc"),
    },
)
