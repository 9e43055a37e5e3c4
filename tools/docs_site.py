"""MkDocs's hooks for the site (mkdocs.yml): which files are its pages, and what GitHub's Markdown has that MkDocs's has not.

Files keep their places in the repository, so links between them hold in both. A link to a source file leads to a page that
shows it.
"""
import fnmatch
import os
import pathlib
import re

from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ["*.md", "docs/*.md", "examples/**/*.md"]
ASSETS = ["benchmarks/*.png", "tools/docs_site.css"]
LANGUAGES = {".py": "python", ".c": "c", ".h": "c", ".cu": "cuda", ".cuh": "cuda", "": "text"}
LINK = re.compile(r"(?<=\]\()(?!https?:)([^)#\s]+)")


def paths(patterns):
    return sorted(str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern))


def is_source(path):
    return not fnmatch.fnmatch(path, "*.md") and not fnmatch.fnmatch(path, "*.png") and (ROOT / path).is_file()


def linked_sources(pages):
    """The source files that pages link to, from the root."""
    for page in pages:
        for target in LINK.findall((ROOT / page).read_text()):
            path = os.path.normpath(os.path.join(os.path.dirname(page), target))
            if is_source(path):
                yield path


def on_files(files, config):
    theirs = [file for file in files if file.generated_by or not file.src_uri.endswith(".md")]  # the theme's
    pages = paths(PAGES)
    made = [File.generated(config, path, abs_src_path=str(ROOT / path)) for path in pages + paths(ASSETS)]
    for path in sorted(set(linked_sources(pages))):
        text = "# %s\n\n```%s\n%s```\n" % (path, LANGUAGES.get(pathlib.Path(path).suffix, "text"), (ROOT / path).read_text())
        made.append(File.generated(config, path + ".md", content=text))
    return Files(theirs + made)


def on_page_markdown(markdown, page, config, files):
    """Names of files above their blocks; sources by their pages; and a blank line before a list, which GitHub does without."""
    def shown(found):
        path = os.path.normpath(os.path.join(os.path.dirname(page.file.src_uri), found[1]))
        return found[1] + ".md" if is_source(path) else found[1]

    markdown = re.sub(r"^```(\w+) (?:file|edit)=(\S+)$", r'```\1 title="\2"', markdown, flags=re.MULTILINE)
    return LINK.sub(shown, markdown)
