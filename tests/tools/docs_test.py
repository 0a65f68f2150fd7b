"""Tests tools/docs without the site: its pages must contain every public
declaration of the C++ interface, every public name of the Python package and
every part of a manual page."""

import ast
import pathlib
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/docs"))

import cpp_api  # noqa: E402
import man_pages  # noqa: E402
import prose  # noqa: E402
import python_api  # noqa: E402

STUB = ROOT / "build/python/fusor/_fusor.pyi"

HEADER = """\
#pragma once

// About the file.

namespace fusor::ir {

class Later;

// A pair [a, b]:
//   Pair p{1};
struct Pair {
  int a = 0;  // the first
  int Sum() const { return a + b_; }

 private:
  int b_ = 0;
};

class Box : public Pair {
 public:
  // Creates an empty box.
  explicit Box(int size = {}) : size_(size), all_{size} {}
  bool operator==(const Box&) const = default;
  std::function<void(int)> changed{};  // may be null

  // --- Reading, of *all* -----------------------------------------------------
  // Returns the size.
  int size() const { return size_; }
  int Hidden() const;
  class Lock {
   public:
    ~Lock();

   private:
    int held_;
  };

 protected:
  int secret() const;

 private:
  friend class Later;
  int size_;
};

// Return halves of a value.
int First(int value);
int Second(int value);
template <typename T, typename = std::enable_if_t<(sizeof(T) > 1)>>
T Third(const std::map<int, T>& value) {
  return value.at(3);
}

}  // namespace fusor::ir

#define FUSOR_TWICE(x) \\
  ((x) + (x))
"""

MAN = r""".TH "fusor-train" 1 "" "fusor 1" "fusor manual"
.SH "NAME"
fusor\-train \- train
.SH "SYNOPSIS"
\fBfusor train\fR [\fIOPTIONS\fR] \fIDATA\fR
.SH "MODEL"
.TP
\fB\-a\fR, \fB\-\-arch\fR \fINAME\fR
Network: resnet_50 or C:\e<x>. See fusor(1).
.SH "SEE ALSO"
.BR fusor (1)
"""


class CppTest(unittest.TestCase):

    def page(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "example.h"
            file.write_text(HEADER)
            return cpp_api.Page(cpp_api.Header(file.parent, file.name))

    def test_every_public_declaration_has_an_anchor(self):
        page = self.page()
        self.assertEqual(set(page.anchors), {
            "ir::Pair", "ir::Box", "ir::Box::Box", "ir::Box::operator==",
            "ir::Box::changed", "ir::Box::size", "ir::Box::Hidden",
            "ir::Box::Lock", "ir::First", "ir::Second", "ir::Third",
            "FUSOR_TWICE"})

    def test_bodies_and_private_members_are_left_out(self):
        text = self.page().text
        for hidden in ("return", "b_", "size_", "secret", "held_", "friend"):
            self.assertNotIn(hidden, text)
        self.assertIn("struct Pair {\n  int a = 0;  // the first\n"
                      "  int Sum() const;\n};\n", text)
        self.assertIn("```cpp\nexplicit Box(int size = {});\n```", text)
        self.assertIn("changed{};  // may be null\n", text)
        self.assertIn("class Lock {\n public:\n  ~Lock();\n};\n", text)

    def test_comments_are_text(self):
        text = self.page().text
        self.assertIn("About the file.\n", text)
        self.assertIn("A pair \\[a, b\\]:\n\n```cpp\nPair p{1};\n```", text)
        self.assertIn("### Reading, of \\*all\\*\n", text)

    def test_a_comment_in_the_singular_describes_one_function(self):
        text = self.page().text
        self.assertIn("Returns the size.\n\n```cpp\nint size() const;\n```",
                      text)
        self.assertIn("Return halves of a value.\n\n```cpp\n"
                      "int First(int value);\nint Second(int value);\n", text)

    def test_every_declaration_of_the_interface(self):
        declared = re.compile(
            r"^(?:class|struct|enum class) (\w+)\b[^;]*$"
            r"|^using (\w+) =|^#define (\w+)"
            r"|^(?!using|class|struct|enum|namespace|friend|return|#|//)"
            r"[\w:\[][^=;{}/]*?\b(\w+)\((?!\*)", re.M)
        count = 0
        for path in cpp_api.closure(ROOT, "runtime/fusor.h"):
            text = (ROOT / path).read_text(encoding="utf-8")
            names = {name for match in declared.finditer(text)
                     for name in match.groups() if name}
            anchors = {name.split("::")[-1] for name in cpp_api.Page(
                cpp_api.Header(ROOT, path)).anchors}
            with self.subTest(path):
                self.assertEqual(names - anchors, set())
            count += len(names)
        self.assertGreater(count, 250)


class PythonTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.text, cls.anchors = python_api.page(ROOT)

    def test_every_public_name_has_text(self):
        init = ast.parse((ROOT / "tools/python/fusor/__init__.py").read_text())
        public = next(ast.literal_eval(node.value) for node in init.body
                      if isinstance(node, ast.Assign)
                      and node.targets[0].id == "__all__")
        for name in public:
            with self.subTest(name):
                self.assertRegex(
                    self.text, rf"(?s)\{{ #fusor\.{name} \}}\n\n"
                    r"(```python\n.*?```\n\n)?[A-Z]\w*")

    def test_members_have_signatures(self):
        self.assertIn("lr: float = 0.1,\n    weight_decay", self.text)
        self.assertIn('input(name, shape, dtype="f32")\n', self.text)
        self.assertIn("__call__(*batch: Array, **named: Array) -> float",
                      self.text)
        self.assertIn("- `path`: what save", self.text)

    @unittest.skipUnless(STUB.exists(), "the extension is not built")
    def test_every_name_of_the_extension(self):
        for node in ast.parse(STUB.read_text()).body:
            name = getattr(node, "name", "")
            if f"fusor.{name}" not in self.anchors:
                continue
            for member in getattr(node, "body", []):
                inner = getattr(member, "name", "_")
                if isinstance(node, ast.ClassDef) and inner[0] != "_":
                    with self.subTest(f"{name}.{inner}"):
                        self.assertIn(f"fusor.{name}.{inner}", self.anchors)


class TextTest(unittest.TestCase):

    def test_a_manual_page(self):
        self.assertEqual(
            man_pages.to_markdown(MAN, ["fusor", "fusor-train"]), """\
# fusor-train

## Name

fusor-train - train

## Synopsis

`fusor train` \\[*OPTIONS*\\] *DATA*

## Model

`-a`, `--arch` *NAME*
:   Network: resnet\\_50 or C:\\\\&lt;x>. See [fusor(1)](fusor.md).

## See also

[fusor(1)](fusor.md)
""")

    def test_code_in_a_comment(self):
        self.assertEqual(
            prose.from_comment(["Throws kGraph, see ir/op.h: a_b `c_d`.", "",
                                "- one", "  two"]),
            "Throws `kGraph`, see `ir/op.h`: a\\_b `c_d`.\n\n"
            "- one\n    two\n")


if __name__ == "__main__":
    unittest.main()
