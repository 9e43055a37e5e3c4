"""MkDocs's hooks for the site (mkdocs.yml): which files are its pages, and what GitHub's Markdown has that MkDocs's has not.

Files keep their places in the repository, so links between them hold in both. A link to a source file leads to a page that
shows it.
"""
import os
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ["*.md", "docs/*.md", "examples/**/*.md"]
ASSETS = ["benchmarks/*.png", "docs/badges/*.svg", "tools/docs_site.css"]
LANGUAGES = {".py": "python", ".c": "c", ".h": "c", ".cu": "cuda", ".cuh": "cuda"}
LINK = re.compile(r"(?<=\]\()(?!https?:)([^)#\s]+)")


def paths(patterns):
    return sorted(str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern))


def source(page, target):
    """The path of what a page links to, from the root, if that is a source file."""
    path = os.path.normpath(os.path.join(os.path.dirname(page), target))
    return path if not path.endswith((".md", ".png", ".svg")) and (ROOT / path).is_file() else None


def linked_sources(pages):
    found = {source(page, target) for page in pages for target in LINK.findall((ROOT / page).read_text())}
    return sorted(found - {None})


def on_files(files, config):
    from mkdocs.structure.files import File, Files  # here, so that tests do without MkDocs
    theirs = [file for file in files if not file.src_uri.endswith(".md")]
    pages = paths(PAGES)
    made = [File.generated(config, path, abs_src_path=str(ROOT / path)) for path in pages + paths(ASSETS)]
    for path in linked_sources(pages):
        language = LANGUAGES.get(pathlib.Path(path).suffix, "text")
        text = "# %s\n\n```%s\n%s```\n" % (path, language, (ROOT / path).read_text())
        made.append(File.generated(config, path + ".md", content=text))
    return Files(theirs + made)


def on_page_markdown(markdown, page, config, files):
    """Names of files above their blocks, and sources by their pages. The first page has no neighbours to show beside it."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]
    return translated(markdown, page.file.src_uri)


def translated(markdown, page):
    markdown = re.sub(r"^```(\w+) (?:file|edit)=(\S+)$", r'```\1 title="\2"', markdown, flags=re.MULTILINE)
    return LINK.sub(lambda found: found[1] + ".md" * bool(source(page, found[1])), markdown)
