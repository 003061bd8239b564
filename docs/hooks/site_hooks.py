"""Hooks of MkDocs: fill in generated and included parts, and publish files that pages link to.

A page has ``<!-- included: PATH -->`` in the place of a page elsewhere in the repository, such as
CONTRIBUTING.md. Links lead to the same files as in the repository: files outside ``docs/`` are copied to the
site, and a link to an included page leads to the page that includes it.
"""

import re
from pathlib import Path
from posixpath import relpath

from generated import filled
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from page_links import links, named, with_links

ROOT = Path(__file__).resolve().parents[2]
DOCS = "docs/"
INCLUDED = re.compile(r"^<!-- included: (\S+) -->$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the files outside ``docs/`` that pages link to."""
    for page in files.documentation_pages():
        for path in _linked(page.src_uri, page.content_string):
            if files.get_file_from_path(path) is None and (ROOT / path).is_file():
                files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fills in the parts of a page, and changes its links to files elsewhere to their place in the site."""
    included = {
        origin: one.src_uri
        for one in files.documentation_pages()
        for origin in INCLUDED.findall(one.content_string)
    }
    here = page.file.src_uri

    def in_site(origin: str, path: str) -> str:
        target = named(origin, path)
        place = included.get(target, target.removeprefix(DOCS))
        return relpath(place, str(Path(here).parent))

    def part(match: re.Match[str]) -> str:
        origin = match.group(1)
        text = (ROOT / origin).read_text(encoding="utf-8")
        return with_links(text, lambda path: in_site(origin, path))

    own = with_links(markdown, lambda path: in_site(DOCS + here, path))
    return filled(INCLUDED.sub(part, own))


def _linked(page: str, text: str) -> set[str]:
    """Returns the files outside ``docs/``, to which a page and what it includes link."""
    texts = {DOCS + page: text}
    texts |= {path: (ROOT / path).read_text(encoding="utf-8") for path in INCLUDED.findall(text)}
    targets = {named(path, link.path) for path, part in texts.items() for link in links(part) if link.path}
    return {target for target in targets if not target.startswith(DOCS)}
