"""Hooks of MkDocs: which pages the site has, and the links between them.

A document of the tree is a page at its own path, so the relative links that it
has for readers of the tree work. A source file or a folder that a document
links to is a page, too.
"""

import html
import json
import pathlib
import re

from mkdocs.structure.files import File, InclusionLevel

import cpp_api
import man_pages
import python_api

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = (".github", "ir", "passes", "codegen", "models", "runtime", "tools",
           "tests")
MANUAL = ROOT / "build/manual/man1"
UMBRELLA = ["runtime/fusor.h", "models/model.h"]
LANGUAGES = {".cc": "cpp", ".h": "cpp", ".py": "python", ".sh": "bash",
             ".txt": "cmake"}
LINK = re.compile(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)")

# Title -> documents, as globs, and the names of generated parts.
NAV = {
    "Guide": ["README.md", "tools/fusor/TRAINING.md", "tools/fusor/RECIPES.md",
              "tools/fusor/SCALING.md", "tools/fusor/DEBUGGING.md",
              "runtime/cuda/README.md"],
    "Command line": ["manual"],
    "Python": ["tools/python/README.md", "tests/examples/*.ipynb",
               "api/python.md"],
    "C++": ["cpp"],
    "Measurements": ["tests/results/*.md"],
    "Development": [".github/CONTRIBUTING.md", "tools/CHANGELOG.md",
                    ".github/SECURITY.md", "tests/benchmarks/*/README.md",
                    "tests/*/README.md"],
}

# Targets of the links between pages of this build.
_links = {}  # text of a code span, as "ir::Graph" -> (src_uri, HTML id)
_types = {"cpp": {}, "python": {}}  # type without its namespace -> the same
_generated = {}  # src_uri -> Markdown


class TreeFile(File):
    """A page at a path of the tree that need not end in .md."""

    def is_documentation_page(self):
        return True


def _documents():
    return [ROOT / "README.md", *sorted(
        path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))]


def _relative(path):
    return path.relative_to(ROOT).as_posix()


def _destination(path):
    """Returns the address of the page of a path of the tree."""
    path = path.removeprefix(".")  # servers hide such folders
    if path == "README.md" or path.endswith("/README.md"):
        return path.removesuffix("README.md") + "index.html"
    if (ROOT / path).is_dir():
        return path + "/index.html"
    return path.removesuffix(".md") + ".html"


def _code_page(path):
    """Returns the page of a source file, or of a notebook without outputs."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return "\n\n".join(
            "".join(cell["source"]) if cell["cell_type"] == "markdown"
            else f"```python\n{''.join(cell['source'])}\n```"
            for cell in json.loads(text)["cells"])
    language = LANGUAGES.get(path.suffix, "text")
    return (f"---\nsearch:\n  exclude: true\n---\n# {_relative(path)}\n\n"
            f"````{language}\n{text}\n````\n")


def _folder_page(folder, has_page):
    """Returns a list of a folder's files that have a page."""
    lines = [f"# {_relative(folder)}\n"]
    for path in sorted(folder.iterdir()):
        if has_page(path):
            title = path.name
            if path.suffix == ".md":
                title = path.read_text(encoding="utf-8").split("\n")[0][2:]
            lines.append(f"- [{title}]({folder.name}/{path.name})")
    return "\n".join(lines) + "\n"


def _linked_paths(documents):
    """Returns the files and folders of the tree that documents link to, and
    the files in these folders."""
    found = set()
    for document in documents:
        text = re.sub(r"^(```|````).*?^\1$", "", document.read_text("utf-8"),
                      flags=re.S | re.M)
        for target in LINK.findall(text):
            path = (document.parent / target).resolve()
            if path.exists() and path.suffix != ".md":
                found.add(path)
                if path.is_dir():
                    found |= {p for p in path.iterdir() if p.is_file()
                              and p.suffix in (*LANGUAGES, ".ipynb")}
    return sorted(found)


def _add_tree():
    """Adds the pages of what documents link to."""
    linked = _linked_paths(_documents())
    for path in linked:
        uri = _relative(path)
        if not path.is_dir():
            _generated[uri] = _code_page(path)
        elif not (path / "README.md").exists():
            _generated[uri] = _folder_page(
                path, lambda p: p in linked or p.suffix == ".md")


def _add_cpp():
    """Adds a page per public header, and an index, the README's table."""
    public = [h for u in UMBRELLA for h in cpp_api.closure(ROOT, u)]
    direct = cpp_api.includes(ROOT, UMBRELLA[0]) + UMBRELLA[1:]
    types, ambiguous = _types["cpp"], set()
    for path in dict.fromkeys(public):
        if path == UMBRELLA[0]:
            continue
        uri = f"api/cpp/{path.removesuffix('.h')}.md"
        page = cpp_api.Page(cpp_api.Header(ROOT, path))
        _generated[uri] = page.text
        _links[path] = (uri, "")
        for name, anchor in page.anchors.items():
            _links[name] = (uri, anchor)
            short = name.split("::")[-1]
            if name in page.types:
                ambiguous |= {short} & types.keys()
                types[short] = (uri, anchor)
    for name in ambiguous:
        del types[name]
    table = (ROOT / "README.md").read_text(encoding="utf-8").split(
        "\n### Names\n")[1].split("\n\n")
    rows = next(part for part in table if part.startswith("| name"))
    _generated["api/cpp/index.md"] = (
        "# C++ interface\n\nAll names are in namespace `fusor`. "
        "`runtime/fusor.h` includes all headers but `models/model.h`.\n\n"
        f"{rows}\n| `models::BuildModel` | `models/model.h` | "
        "a built-in model |\n")
    others = sorted(h for h in set(public) - set(direct) - set(UMBRELLA))
    entry = {h: {h.split("/")[-1]: _links[h][0]} for h in direct + others}
    return ["api/cpp/index.md", {"Interface": [entry[h] for h in direct]},
            {"Types that it uses": [entry[h] for h in others]}]


def _add_manual():
    """Adds the manual pages, if they have been built."""
    names = sorted(p.stem for p in MANUAL.glob("*.1"))
    for name in names:
        uri = f"manual/{name}.md"
        text = (MANUAL / f"{name}.1").read_text(encoding="utf-8")
        _generated[uri] = man_pages.to_markdown(text, names)
        _links[name.replace("-", " ")] = (uri, "")
    return [f"manual/{name}.md" for name in names]


def on_config(config):
    """Generates pages, and the navigation."""
    for pages in (_links, *_types.values(), _generated):
        pages.clear()
    _add_tree()
    parts = {"cpp": _add_cpp(), "manual": _add_manual()}
    _generated["api/python.md"], anchors = python_api.page(ROOT)
    for name, anchor in anchors.items():
        _links[name] = ("api/python.md", anchor)
        if re.fullmatch(r"fusor\.[A-Z]\w*", name):
            _types["python"][name.split(".")[1]] = _links[name]
    config.nav = []
    for title, entries in NAV.items():
        pages = []
        for entry in entries:
            if entry in parts:
                pages += parts[entry]
            elif entry in _generated:
                pages.append(entry)
            else:
                pages += [_relative(p) for p in sorted(ROOT.glob(entry))]
        if pages:
            config.nav.append({title: pages})
    return config


def on_files(files, config):
    """Adds all pages to those of the folder static/."""
    for path in _documents():
        uri = _relative(path)
        file = TreeFile.generated(config, uri, abs_src_path=str(path),
                                  inclusion=InclusionLevel.INCLUDED)
        file.dest_uri = _destination(uri)
        files.append(file)
    for uri, text in _generated.items():
        in_nav = uri.endswith((".md", ".ipynb"))
        file = TreeFile.generated(
            config, uri, content=text,
            inclusion=InclusionLevel.INCLUDED if in_nav
            else InclusionLevel.NOT_IN_NAV)
        file.dest_uri = _destination(uri)
        files.append(file)
    return files


def on_page_content(text, page, config, files):
    """Makes links of code spans and of types in code."""
    def link(target, shown):
        uri, anchor = target
        if uri == page.file.src_uri and not anchor:
            return shown
        url = files.get_file_from_path(uri).url_relative_to(page.file)
        return f'<a href="{url}{"#" if anchor else ""}{anchor}">{shown}</a>'

    def in_block(match):
        types = _types[match["language"]]
        return re.sub(
            r'<span class="n">(\w+)</span>', lambda m: link(types[m[1]], m[0])
            if m[1] in types else m[0], match[0])

    def replace(match):
        if match["language"]:
            return in_block(match)
        target = match["span"] and _links.get(html.unescape(match["span"]))
        return link(target, match[0]) if target else match[0]

    return re.sub(
        r"<a\b.*?</a>|<h\d.*?</h\d>|<code>(?P<span>[^<]+)</code>"
        r'|<div class="language-(?P<language>cpp|python) .*?</pre>',
        replace, text, flags=re.S)


def on_post_build(config):
    """Removes the page for unknown addresses, which is of use to a server at
    the root of a site only."""
    (pathlib.Path(config.site_dir) / "404.html").unlink()
