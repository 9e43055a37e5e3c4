"""README.md's badges, docs/badges/: what tfuse works with, read from what builds and tests it."""
import functools
import pathlib
import re

import matrix
import metadata

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLORS = {"tfuse": "#3f51b5", "TensorFlow": "#d95f02", "Python": "#3670a0", "NVIDIA GPUs": "#5b8a00", "license": "#555"}
LETTER, GAP = 6.6, 6  # pixels


def facts():
    """{label: what it says}."""
    said = (ROOT / ".bazelrc").read_text()
    oldest = re.search(r"^build:release .*?=sm_(\d)(\d)", said, re.MULTILINE)
    releases = [version.rpartition(".")[0] for version in matrix.RELEASES]
    minors = [minor for pair in matrix.RELEASES.values() for minor in pair]
    return {
        "tfuse": metadata.version_in((ROOT / "python/tfuse/_version.py").read_text()),
        "TensorFlow": f"{releases[0]} – {releases[-1]}",
        "Python": f"3.{min(minors)} – 3.{max(minors)}",
        "NVIDIA GPUs": f"compute capability {oldest[1]}.{oldest[2]}+",
        "license": re.search(r"^License: (.*)$", metadata.METADATA, re.MULTILINE)[1],
    }


def svg(label, text):
    left, right = (len(t) * LETTER + 2 * GAP for t in (label, text))
    words = [f'<text x="{at:.0f}" y="14" textLength="{len(t) * LETTER:.0f}">{t}</text>'
             for at, t in ((GAP, label), (left + GAP, text))]
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right:.0f}" height="20" role="img">',
                      '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">',
                      f'<rect width="{left:.0f}" height="20" fill="#444"/>',
                      f'<rect x="{left:.0f}" width="{right:.0f}" height="20" fill="{COLORS[label]}"/>', *words, "</g>", "</svg>", ""])


def files():
    """{path: how it is made}."""
    return {f"docs/badges/{label.split()[0].lower()}.svg": functools.partial(svg, label, text)
            for label, text in facts().items()}
