"""Tests tools/docs.sh: every document and every public name must be on the
site, links must have targets, and the site must load nothing from a network.
Exits with 77 (skipped by ctest) if pip cannot install MkDocs."""

import html
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools/docs.sh"
MANUAL = sorted((ROOT / "build/manual/man1").glob("*.1"))
sys.path.insert(0, str(ROOT / "tools/docs"))

import cpp_api  # noqa: E402
import python_api  # noqa: E402


def build(*arguments):
    return subprocess.run(["bash", SCRIPT, *arguments], capture_output=True,
                          text=True, check=False)


def attributes(text, tags, names):
    """Yields the attribute's values in a page's elements."""
    for tag in re.findall(rf"<(?:{tags})\b[^>]*>", text):
        for value in re.findall(rf'\s(?:{names})="([^"]*)"', tag):
            yield html.unescape(value)


class DocsSiteTest(unittest.TestCase):

    def page(self, path):
        return PAGES[SITE / path]

    def test_every_document_is_a_page(self):
        listed = subprocess.run(
            ["git", "-C", ROOT, "ls-files", "*.md"], capture_output=True,
            text=True, check=False).stdout.split() or ["README.md"]
        for path in listed:
            name = path.removeprefix(".").replace("README.md", "index.md")
            title = re.search(r"^# (.*)", (ROOT / path).read_text(), re.M)[1]
            with self.subTest(path):
                text = self.page(name.removesuffix(".md") + ".html")
                self.assertIn(html.escape(title.replace("`", ""), quote=False),
                              re.sub(r"</?code>", "", text))

    def test_links_have_targets(self):
        ids = {path: {*attributes(text, r"\w+", "id|name")}
               for path, text in PAGES.items()}
        count = 0
        for path, text in PAGES.items():
            for link in set(attributes(text, "a", "href")):
                if re.match(r"\w+:", link):
                    continue
                count += 1
                file, _, anchor = urllib.parse.unquote(link).partition("#")
                target = (path.parent / file).resolve() if file else path
                if target not in PAGES:
                    self.fail(f"{path}: {link} is not there")
                if anchor and anchor not in ids[target] | {"__skip"}:
                    self.fail(f"{path}: {link} has no such anchor")
        self.assertGreater(count, 1000)

    def test_nothing_is_loaded_from_a_network(self):
        for path, text in PAGES.items():
            loaded = attributes(text, "script|link|img|iframe|source|object",
                                "src|href|srcset|data")
            for url in loaded:
                self.assertNotRegex(url, r"^(\w+:)?//", path)
            # The theme would download a program to draw these.
            self.assertNotIn('class="mermaid"', text)
        for path in SITE.rglob("*.css"):
            self.assertNotRegex(path.read_text("utf-8"),
                                r"(url\(|@import)\s*['\"]?(https?:)?//", path)

    def test_lists_are_lists(self):
        # MkDocs, unlike GitHub, requires an empty line before a list.
        for path, text in PAGES.items():
            self.assertNotRegex(re.sub(r"<pre.*?</pre>", "", text, flags=re.S),
                                r"<p>[^<]*\n(-|\*|\d+\.) ", path)

    @unittest.skipUnless(MANUAL, "the manual pages are not built")
    def test_manual_pages(self):
        for path in MANUAL:
            text = self.page(f"manual/{path.stem}.html")
            flags = re.findall(r"\\fB(\\-[\w\\-]+)\\fR", path.read_text("utf-8"))
            for flag in flags:
                self.assertIn(f"<code>{flag.replace(chr(92), '')}</code>", text)
        self.assertIn('<a href="manual/fusor-compare.html">'
                      '<code>fusor compare</code></a>', self.page("index.html"))

    def test_names_of_the_interfaces_link_to_their_declarations(self):
        readme = self.page("index.html")
        table = (ROOT / "README.md").read_text("utf-8").split(
            "\n| name | header | purpose |\n")[1].split("\n\n")[0]
        rows = re.findall(r"^\| (.*?) \| `([\w/.]+)` \|", table, re.M)
        self.assertGreater(len(rows), 15)
        for column, header in rows:
            file = f"api/cpp/{header.removesuffix('.h')}.html"
            for name in re.findall(r"`([\w:]+)`", column):
                with self.subTest(name):
                    self.assertIn(f'id="{name}"', self.page(file))
                    self.assertIn(
                        f'<a href="{file}#{name}"><code>{name}</code></a>',
                        readme)

    def test_every_declaration_has_an_anchor(self):
        for path in cpp_api.closure(ROOT, "runtime/fusor.h")[1:]:
            text = self.page(f"api/cpp/{path.removesuffix('.h')}.html")
            declared = cpp_api.Page(cpp_api.Header(ROOT, path)).anchors
            self.assertEqual(set(declared.values())
                             - {*attributes(text, r"\w+", "id")}, set())
        text = self.page("api/python.html")
        self.assertEqual(set(python_api.page(ROOT)[1].values())
                         - {*attributes(text, r"\w+", "id")}, set())

    def test_types_in_declarations_are_links(self):
        self.assertIn('<a href="../ir/graph.html#ir::Graph">'
                      '<span class="n">Graph</span></a>',
                      self.page("api/cpp/codegen/compiler.html"))

    def test_sources_that_documents_link_to_are_pages(self):
        self.assertIn('<span class="n">LayerNorm</span>',
                      self.page("tests/examples/mlp.cc.html"))
        self.assertIn('href="mlp.cc.html"',
                      self.page("tests/examples/index.html"))

    def test_a_folder_of_other_files_is_left_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "mine.txt"
            file.write_text("mine")
            result = build(folder)
            self.assertEqual(result.returncode, 1)
            self.assertEqual(
                result.stderr, f"error: site: {folder}: expected a new or empty "
                "folder or an earlier site\n")
            self.assertEqual(file.read_text(), "mine")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        SITE = pathlib.Path(scratch).resolve() / "site"
        built = build(SITE)
        print(built.stderr, file=sys.stderr, end="")
        if "error: python: pip could not install" in built.stderr:
            sys.exit(77)
        if built.returncode != 0:
            sys.exit(1)
        PAGES = {path: path.read_text(encoding="utf-8")
                 for path in SITE.rglob("*.html")}
        unittest.main()
