"""Writes what a release consists of into dist/release: wheels, source distribution, notes, test matrix, bill of materials and
checksums. `./run release` calls it with the wheels that it has built.

  release.py [--untested] WHEEL WHEEL

The test matrix comes from dist/matrix*.json, which `./run matrix --json` writes. --untested does without, and the page says so.
"""
import argparse
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import sys

import matrix
import metadata
import sbom
import sdist

ROOT = sdist.ROOT
OUT = ROOT / "dist/release"


class Refused(Exception):
    pass


def section(changelog, title):
    """The text under "## [title]", without its heading; None where there is no such heading."""
    found = re.search(r"^## \[%s\].*\n((?:(?!## \[).*\n)*)" % re.escape(title), changelog, re.MULTILINE)
    return found and found[1].strip()


def notes(changelog, version):
    text = section(changelog, version)
    if not text:
        raise Refused(f'CHANGELOG.md has no section "## [{version}] - DATE": rename "Unreleased"')
    if section(changelog, "Unreleased"):
        raise Refused(f'CHANGELOG.md has changes under "Unreleased": they belong to {version}, or are not in this release')
    return f"# tfuse {version}\n\n{text}\n"


def matrix_page(version, tables, hashes):
    """The tables of matrix.py as a page. hashes: {file of this release: SHA-256}; a table of another wheel is refused."""
    lines = [f"# tfuse {version}: test matrix", ""]
    for table in tables:
        if table["sha256"] != hashes.get(table["wheel"]):
            raise Refused(f"the matrix is of another build of {table['wheel']}: run ./run matrix --json dist/matrix.json again")
        if bad := [row["tensorflow"] for row in table["rows"] if row["tensorflow"] not in matrix.NEXT and matrix.is_bad(row)]:
            raise Refused(f"the matrix has failures with TensorFlow {', '.join(bad)}")
        lines += [f"`{table['wheel']}` on {table['machine']}, {'with' if table['cuda'] else 'without'} a GPU:", "",
                  "| " + " | ".join(matrix.COLUMNS) + " |", "|---" * len(matrix.COLUMNS) + "|"]
        lines += ["| " + " | ".join(str(row[column]) for column in matrix.COLUMNS) + " |" for row in table["rows"]] + [""]
    for name in sorted(hashes):
        done = {row["tensorflow"] for table in tables if table["wheel"] == name for row in table["rows"]}
        if name.endswith(".whl") and (missing := [release for release in matrix.RELEASES if release not in done]):
            lines.append(f"- Not tested: `{name}` with TensorFlow {', '.join(missing)}.")
    return "\n".join(lines).rstrip() + "\n"


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def validate(text):
    """By CycloneDX's own schema."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator
    if why := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise Refused(f"the bill of materials is no valid CycloneDX: {why}")


def release(wheels, untested):
    version = metadata.version_in((ROOT / "python/tfuse/_version.py").read_text())
    texts = {"NOTES.md": notes((ROOT / "CHANGELOG.md").read_text(), version)}
    tables = [json.loads(path.read_text()) for path in sorted((ROOT / "dist").glob("matrix*.json"))]
    if not tables and not untested:
        raise Refused("dist/ has no matrix*.json: run ./run matrix --json dist/matrix.json first, or say --untested")
    OUT.mkdir(parents=True, exist_ok=True)
    files = [pathlib.Path(shutil.copy(path, OUT)) for path in wheels] + [OUT / sdist.build_sdist(OUT)]
    hashes = {path.name: digest(path) for path in files}
    texts["MATRIX.md"] = matrix_page(version, tables, hashes)

    date = subprocess.run(["git", "log", "-1", "--format=%cI"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    pins = (ROOT / "tools/requirements_nvrtc.txt").read_text().splitlines()
    bill = sbom.bill(version, date.strip(), hashes, pins, {name for path in wheels for name in sbom.libraries_of(path)})
    texts["tfuse.cdx.json"] = json.dumps(bill, indent=2) + "\n"
    validate(texts["tfuse.cdx.json"])
    for name, text in texts.items():
        (OUT / name).write_text(text)
        files.append(OUT / name)
    (OUT / "SHA256SUMS").write_text("".join(f"{digest(path)}  {path.name}\n" for path in files))
    return [*files, OUT / "SHA256SUMS"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--untested", action="store_true", help="do without the test matrix")
    parser.add_argument("wheels", nargs="+", type=pathlib.Path)
    a = parser.parse_args()
    try:
        files = release(a.wheels, a.untested)
    except Refused as why:
        sys.exit(f"release: {why}")
    print("\n".join(str(path.relative_to(ROOT)) for path in files))


if __name__ == "__main__":
    main()
