"""What a release is made of: the changelog and its notes, the source distribution, the matrix's page, the bill of materials; and
that the forge's workflows and the site are held to what is there."""

import ctypes
import hashlib
import importlib
import lzma
import pathlib
import re
import subprocess
import sys
import tarfile
import zipfile

import pytest

from conftest import ROOT
from tfuse import __version__
from tfuse._core import _library

pytestmark = pytest.mark.skipif(not (ROOT / "run").exists(), reason="not in the source tree")


def tool(name):
    """A module of tools/, which is on the path only meanwhile: wheel.py would pass for the package of that name."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


@pytest.fixture
def release():
    return tool("release")


def commands():
    usage = subprocess.run(["bash", ROOT / "run"], check=True, text=True, stdout=subprocess.PIPE).stdout
    return re.findall(r"^  (\w+) ", usage, re.MULTILINE)


# ---- the version and its notes ----


def test_one_version_everywhere(release):
    """The newest section of the changelog, the citation and the package."""
    text = (ROOT / "CHANGELOG.md").read_text()
    found = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", text, re.MULTILINE)
    assert found[0] == ("Unreleased", "") and len(found) == text.count("\n## ")
    (version, date), *_ = found[1:]
    citation = (ROOT / "CITATION.cff").read_text()
    assert version == __version__ and date
    assert "\nversion: %s\n" % version in citation and '\ndate-released: "%s"\n' % date in citation
    assert release.section(text, version)


LOG = "# Changelog\n\n## [Unreleased]\n%s\n## [1.1.0] - 2030-01-02\n\n### Added\n\n- This.\n\n## [1.0.0] - 2030-01-01\n\n- That.\n"


def test_notes_are_the_versions_section(release):
    assert release.notes(LOG % "", "1.1.0") == "# tfuse 1.1.0\n\n### Added\n\n- This.\n"
    assert release.notes(LOG % "", "1.0.0") == "# tfuse 1.0.0\n\n- That.\n"


@pytest.mark.parametrize("entry, version, why", [("", "1.2.0", r"no section .*1\.2\.0"), ("\n- New.\n", "1.1.0", "Unreleased"),
                                                 ("", "1.1", "no section")])
def test_notes_that_would_not_be_true_are_refused(release, entry, version, why):
    with pytest.raises(release.Refused, match=why):
        release.notes(LOG % entry, version)


# ---- the source distribution ----


def test_sdist(tmp_path):
    """What was listed, under one folder, with metadata that pip reads; the same bytes again."""
    sdist = tool("sdist")
    (tmp_path / "README.md").write_text("# It\n")
    (tmp_path / "run").write_text("#!/bin/sh\n")
    (tmp_path / "run").chmod(0o755)
    for name in ("a.tar.gz", "b.tar.gz"):
        sdist.write(tmp_path / name, "1.2.3", ["run", "README.md"], tmp_path)
    packed = (tmp_path / "a.tar.gz").read_bytes()
    assert packed == (tmp_path / "b.tar.gz").read_bytes() and packed[4:8] == bytes(4)  # gzip's date
    with tarfile.open(tmp_path / "a.tar.gz") as archive:
        modes = {entry.name: entry.mode for entry in archive}
        info = archive.extractfile("tfuse-1.2.3/PKG-INFO").read().decode()
    assert modes == {"tfuse-1.2.3/PKG-INFO": 0o644, "tfuse-1.2.3/README.md": 0o644, "tfuse-1.2.3/run": 0o755}
    assert "\nVersion: 1.2.3\n" in info and info.endswith("text/markdown\n\n# It\n")


def test_building_from_source_says_how(capsys):
    sdist = tool("sdist")
    assert 'build-backend = "sdist"\nbackend-path = ["tools"]' in (ROOT / "pyproject.toml").read_text()
    with pytest.raises(SystemExit) as ended:
        sdist.build_wheel("x")
    how = str(ended.value)
    assert "x86_64 and aarch64" in how and set(re.findall(r"\./run (\w+)", how)) == {"wheel"} <= set(commands())


# ---- the matrix, as a page ----

WHEELS = {"tfuse-1.whl": "ab", "tfuse-2.whl": "cd", "tfuse-1.tar.gz": "ef"}


def table(release, versions, **row):
    rows = [{"tensorflow": v, "passed": 7, "failed": 0, "skipped": 1, "doctor": "ok", "seconds": 9, **row} for v in versions]
    return {"wheel": "tfuse-1.whl", "sha256": "ab", "machine": "x86_64", "cuda": False, "rows": rows}


def test_matrix_page_says_what_was_not_tested(release):
    first, *others = release.matrix.RELEASES
    page = release.matrix_page("1.2.3", [table(release, [first]), table(release, others[1:])], WHEELS)
    assert "| %s | 7 | 0 | 1 | ok | 9 |" % first in page and "on x86_64, without a GPU" in page
    assert "Not tested: `tfuse-1.whl` with TensorFlow %s.\n" % others[0] in page
    assert "Not tested: `tfuse-2.whl` with TensorFlow %s.\n" % ", ".join(release.matrix.RELEASES) in page


@pytest.mark.parametrize("change, why", [({"sha256": "cd"}, "another build"), ({"wheel": "tfuse-3.whl"}, "another build")])
def test_a_matrix_of_another_wheel_is_refused(release, change, why):
    with pytest.raises(release.Refused, match=why):
        release.matrix_page("1.2.3", [{**table(release, ["2.21.0"]), **change}], WHEELS)


@pytest.mark.parametrize("row", [{"failed": 1}, {"doctor": "failed"}])
def test_a_matrix_with_failures_is_refused(release, row):
    with pytest.raises(release.Refused, match="failures with TensorFlow 2.21.0"):
        release.matrix_page("1.2.3", [table(release, ["2.21.0"], **row)], WHEELS)


def test_the_next_tensorflow_holds_no_release_up(release):
    """It may fail, and a Python that is not there is told in words."""
    next_one, its_python = release.matrix.NEXT
    page = release.matrix_page("1.2.3", [table(release, [next_one], failed=1)], WHEELS)
    assert "| %s | 7 | 1 |" % next_one in page
    with pytest.raises(release.matrix.Skipped, match="skipped: there is no python3.14 on the PATH"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(release.matrix.shutil, "which", lambda name: None)
            patch.setattr(release.matrix.sys, "version_info", (3, 12))
            release.matrix.find_python(its_python)
    row = {"failed": 0, "doctor": "skipped: there is no python3.14 on the PATH"}
    assert not release.matrix.is_bad(row) and release.matrix.is_bad({**row, "failed": 1})
    assert release.matrix.is_bad({**row, "doctor": "failed"})


def test_a_newer_tensorflow_is_not_forbidden():
    """A release that is not tested yet installs; 2.16 is the first that loads the library."""
    wanted = re.findall(r"^Requires-Dist: tensorflow(?:\[and-cuda\])?(.*?);", tool("metadata").METADATA, re.MULTILINE)
    assert wanted == [">=2.16.1"] * 2


def test_matrix_says_which_wheel_it_tested(release, tmp_path):
    wheel = tmp_path / "tfuse-1.whl"
    wheel.write_bytes(b"wheel")
    told = release.matrix.about(wheel, True)
    assert (told["wheel"], told["sha256"], told["cuda"]) == ("tfuse-1.whl", hashlib.sha256(b"wheel").hexdigest(), True)


def test_matrix_takes_this_machines_wheel_of_a_folder(tmp_path):
    """It is known by its tag; none, or two, are an error before anything is installed."""
    call = [sys.executable, ROOT / "tools/matrix.py", "--wheel", tmp_path, "2.99.0"]
    assert "2.99.0 is not one of" in subprocess.run(call, text=True, stderr=subprocess.PIPE).stderr
    (tmp_path / "tfuse-1-py3-none-manylinux_2_17_other.whl").touch()
    done = subprocess.run([*call[:-1], "2.21.0"], text=True, stderr=subprocess.PIPE)
    assert done.returncode == 2 and "has 0 wheels for " in done.stderr


# ---- the bill of materials ----


def test_bill_of_materials():
    sbom = tool("sbom")
    pins = (ROOT / "tools/requirements_nvrtc.txt").read_text().splitlines()
    bill = sbom.bill("1.2.3", "2030-01-01T00:00:00Z", WHEELS, pins, {"libc.so.6"})
    parts = {part["name"]: part for part in bill["components"]}
    assert parts["tfuse-1.whl"]["hashes"] == [{"alg": "SHA-256", "content": "ab"}]
    assert {line.split("==")[0] for line in pins if line and line[0] != "#"} <= set(parts)
    assert parts["nvidia-cuda-nvrtc-cu12"]["scope"] == "excluded" and parts["nvidia-cuda-nvrtc-cu12"]["version"][0].isdigit()
    assert parts["tensorflow"]["scope"] == "optional" and parts["libc.so.6"]["scope"] == "required"
    assert len({part["bom-ref"] for part in bill["components"]}) == len(bill["components"])
    assert set(bill["dependencies"][0]["dependsOn"]) == {p["bom-ref"] for p in parts.values() if p["type"] == "library"}
    assert bill["serialNumber"] != sbom.bill("1.2.3", "", {"tfuse-1.whl": "00"}, pins, set())["serialNumber"]


def test_libraries_of_a_wheel(tmp_path):
    """This library itself, as a wheel has it."""
    sbom = tool("sbom")
    from tfuse._core import _library
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as archive:
        archive.write(_library.path, "tfuse/libtfuse.so")
    assert {"libtensorflow_framework.so.2", "libc.so.6"} <= set(sbom.libraries_of(tmp_path / "x.whl"))


# ---- the forge's workflows, and the site ----

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORGES_RELEASE = ('gh release create "$GITHUB_REF_NAME" --repo "$GITHUB_REPOSITORY" --verify-tag --notes-file release/NOTES.md '
                  'release/*')
MAY_WRITE = {("docs", "publish"): {"pages", "id-token"}, ("release", "publish"): {"id-token"},
             ("release", "attest"): {"contents", "id-token", "attestations"}}


def jobs(path):
    """{name: text} of a workflow's jobs, after what comes before them, as ""."""
    before, *parts = re.split(r"^  (\w+):\n", path.read_text().partition("\njobs:\n")[2], flags=re.MULTILINE)
    return {"": path.read_text().partition("\njobs:\n")[0], **dict(zip(parts[::2], parts[1::2]))}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned(path):
    """By a commit, with its version in a comment, and the same one wherever an action is used."""
    used = re.findall(r"uses: *(.*)", path.read_text())
    for action in used:
        assert action.startswith("./.github/") or re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+(\.\d+)*", action), action
    everywhere = {action for other in WORKFLOWS for action in re.findall(r"uses: *(.*)", other.read_text())}
    assert len({action.partition("@")[0] for action in everywhere}) == len(everywhere)
    checkouts = path.read_text().count("uses: actions/checkout@")
    assert path.read_text().count("{persist-credentials: false}") == checkouts


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_may_write_runs_no_code_of_ours(path):
    """A workflow reads; the jobs that may do more neither check out the project nor run it, and no others may."""
    for name, text in jobs(path).items():
        given = re.findall(r"permissions: *\{(.*)\}", text)
        assert len(given) == text.count("permissions") == (1 if name == "" else (path.stem, name) in MAY_WRITE), (path.name, name)
        rights = dict(re.split(": *", right) for right in ", ".join(given).split(", ") if right)
        if (path.stem, name) not in MAY_WRITE:
            assert rights in ({}, {"contents": "read"}), (path.name, name)
            continue
        assert rights == dict.fromkeys(MAY_WRITE[path.stem, name], "write"), (path.name, name)
        assert "checkout" not in text and "./run" not in text and "container:" not in text and "pip " not in text, (path.name, name)
    assert not {key for key in MAY_WRITE if key[0] == path.stem} - {(path.stem, name) for name in jobs(path)}


def test_workflows_run_what_there_is():
    """Each step is an action, or one command of ./run, with options that its files know; or what makes the forge's release."""
    called = set()
    for path in WORKFLOWS:
        steps = re.findall(r"^ *(?:- )?run: *(.*)$", path.read_text(), re.MULTILINE)
        for step in steps:
            if step == FORGES_RELEASE:
                continue
            command = re.fullmatch(r"\./run (\w+)( .+)?", step)
            assert command and command[1] in commands() and not re.search(r"[|;&<>`]", step), "%s: %s" % (path.name, step)
            called.add(command[1])
            for config in re.findall(r"--config=(\w+)", step):
                assert re.search(r"^build:%s " % config, (ROOT / ".bazelrc").read_text(), re.MULTILINE), step
        for local in re.findall(r"uses: \./(\S+)", path.read_text()):
            assert (ROOT / local).exists(), local
    assert {"test", "wheel", "matrix", "docs", "release"} <= called


def test_workflows_test_every_release_of_tensorflow(release):
    listed = re.search(r"tensorflow: \[(.*)\]", (ROOT / ".github/workflows/wheels.yml").read_text())[1].split(", ")
    assert listed == list(release.matrix.ALL)


def test_publishing_is_trusted_and_attested():
    text = (ROOT / ".github/workflows/release.yml").read_text()
    assert "pypa/gh-action-pypi-publish" in text and "attestations: true" in text and "id-token: write" in text
    assert "subject-checksums: release/SHA256SUMS" in text
    assert not re.search(r"password|secrets\.", "".join(path.read_text() for path in WORKFLOWS))


@pytest.mark.parametrize("name", ["docs", "release"])
def test_tools_are_pinned(name):
    lines = (ROOT / "tools" / ("requirements_%s.txt" % name)).read_text().splitlines()
    assert all(re.fullmatch(r"#.*|[\w\[\]-]+==[\w.]+", line) for line in lines) and len(lines) > 1


LOCKS = sorted((ROOT / "tools/locked").glob("*.txt"))


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_locks_are_hashed_and_hold_what_is_wanted(path):
    """Each package has a version and hashes; tools/lock.py has been run since the requirements were changed."""
    head, *lines = path.read_text().splitlines()
    packages = re.split(r"(?<!\\)\n", "\n".join(lines))
    locked = {}
    for package in packages:
        found = re.fullmatch(r"([\w.-]+)==([\w.]+)( ; [^\\\n]+)?( \\\n    --hash=sha256:[0-9a-f]{64})+", package)
        assert found, package
        locked.setdefault(found[1], set()).add(found[2])
    source = ROOT / re.fullmatch(r"# By tools/lock.py, from (tools/requirements\w*\.txt): .*", head)[1]
    wanted = [line for line in source.read_text().splitlines() if line[0] != "#"]
    for line in wanted:
        name, _, version = re.sub(r"\[.*\]", "", line).partition("==")
        assert name in locked and version in {"", *locked[name]}, line


def test_what_is_released_is_made_with_locked_packages():
    """Each installation that ./run makes takes hashes, but that of CUDA's packages, which no job of the forge has."""
    text = (ROOT / "run").read_text()
    calls = re.findall(r"^ *pip_install (.*)$", text, re.MULTILINE)
    assert len(calls) == 5
    for call in calls:
        assert "--require-hashes -r tools/locked/" in call or re.search(r'"\$\{(hashes|wanted)\[@\]\}"', call), call
    assert "wanted=(--require-hashes -r tools/locked/python.txt)" in text and (ROOT / "tools/locked/release.txt").exists()
    lock = tool("lock")
    assert {path.stem for path in LOCKS} == set(lock.LOCKS)


def test_the_site_has_every_page():
    text = (ROOT / "tools/mkdocs.yml").read_text()
    listed = set(re.findall(r": (\S+\.md)$", text, re.MULTILINE))
    pages = {str(path.relative_to(ROOT)) for where in ("*.md", "docs/*.md", "examples/**/*.md") for path in ROOT.glob(where)}
    assert listed == pages


def test_a_broken_link_in_the_site_is_an_error():
    """MkDocs fails for warnings if it is strict, and does not see them if it is quiet."""
    call, = re.findall(r"bin/mkdocs build (.*)", (ROOT / "run").read_text())
    assert "--strict" in call and "quiet" not in call and "-q" not in call
    text = (ROOT / "tools/mkdocs.yml").read_text()
    assert all("%s: warn" % kind in text for kind in ("anchors", "unrecognized_links", "absolute_links"))


def test_the_sites_markdown():
    """A link to a source leads to the page that shows it, and the name of a block's file is its title."""
    site = tool("docs_site")
    text = '[a](../examples/gpt2.py) [b](ops.md#rows) [c](https://x.org/y.py)\n\n```c file=ops/x.c\nint i;\n```\n'
    assert site.translated(text, "docs/jit.md") == (
        '[a](../examples/gpt2.py.md) [b](ops.md#rows) [c](https://x.org/y.py)\n\n```c title="ops/x.c"\nint i;\n```\n')
    found = site.linked_sources(site.paths(site.PAGES))
    assert {"LICENSE", "kernels/jit/tfuse.cuh", "examples/gpt2.py"} <= set(found)
    assert not any(path.endswith((".md", ".png")) for path in found)


# ---- device code ----


def test_the_library_unpacks_what_the_build_packs():
    """Byte for byte: nothing, one byte, runs, what nothing can be saved of, distances of all lengths, a library's code."""
    pack, unpack, free = tool("nvrtc").packed, ctypes.CDLL(_library.path).tfu_lzma_decode, ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]
    random = b"".join(hashlib.sha256(b"%d" % i).digest() for i in range(1000))
    parts = b"".join(random[i * i % 1999:][:i % 47] + random[i * i * 7 % 30000:][:i % 300] for i in range(900))
    images = [b"", b"x", b"x" * 9000, random, parts, (parts + random) * 3, pathlib.Path(_library.path).read_bytes()[:2 ** 18]]
    for image in images:
        for arch in ("sm_90", "compute_90"):
            data, size, out = pack(image, arch), ctypes.c_size_t(), ctypes.c_void_p()
            error = ctypes.create_string_buffer(2000)
            failed = unpack(data, ctypes.c_size_t(len(data)), ctypes.byref(out), ctypes.byref(size), error)
            assert not failed, (len(image), arch, error.value)
            assert ctypes.string_at(out, size.value) == image, (len(image), arch)
            free(out)
            assert lzma.decompress(data, lzma.FORMAT_ALONE) == image  # a .lzma file to others too
