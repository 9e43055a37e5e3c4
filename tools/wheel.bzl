"""The wheel as a folder of one file: its name says which C library it wants, which only the built library can tell."""

def _wheel_impl(ctx):
    out = ctx.actions.declare_directory(ctx.label.name)
    args = ctx.actions.args()
    args.add("--out", out.path)
    args.add_all(ctx.files.libraries, before_each = "--library")
    args.add_all(ctx.files.texts, before_each = "--text")
    args.add_all(ctx.files.package)
    ctx.actions.run(
        executable = ctx.executable._tool,
        arguments = [args],
        inputs = ctx.files.libraries + ctx.files.texts + ctx.files.package,
        outputs = [out],
        mnemonic = "Wheel",
    )
    return [DefaultInfo(files = depset([out]))]

wheel = rule(
    implementation = _wheel_impl,
    attrs = {
        "libraries": attr.label_list(allow_files = True, doc = "libtfuse.so and those beside it"),
        "package": attr.label_list(allow_files = True, doc = "files under python/, and those of tfuse/include"),
        "texts": attr.label_list(allow_files = True, doc = "README.md and LICENSE"),
        "_tool": attr.label(cfg = "exec", executable = True, default = "//tools:wheel"),
    },
)
