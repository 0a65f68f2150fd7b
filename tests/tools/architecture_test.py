"""Checks README's section Architecture and CONTRIBUTING's "How to add". The
files that they name must exist, a training step must pass through at most
twelve of them, and an op, a pass, a model and a backend must be in the source
files that "How to add" lists and no others. The table of the C++ interface
must list what runtime/fusor.h includes, and C++ samples must be tested code."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("ir", "passes", "codegen", "models", "runtime", "tools")
PLACEHOLDER = re.compile(r"NAME|FOLDER|FAMILY")


def sources():
    """Maps paths of C++ files, except tests, to their texts."""
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
            for folder in FOLDERS for path in (ROOT / folder).rglob("*")
            if path.suffix in (".h", ".cc")}


class ArchitectureTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.sources = sources()
        cls.readme = (ROOT / "README.md").read_text(encoding="utf-8")
        cls.section = cls.readme.split("\n## Architecture\n")[1].split("\n## ")[0]
        contributing = (ROOT / ".github/CONTRIBUTING.md").read_text("utf-8")
        cls.how_to_add = contributing.split("\n## How to add\n")[1]

    def part(self, title):
        """Returns the lines of "How to add" about an op, a pass, a model or a
        backend."""
        return re.search(rf"\*\*{title}\*\*(.*?)(?=\n\*\*|$)",
                         self.how_to_add, re.S).group(1)

    def with_words(self, words):
        """Returns the source files that contain one of the words, lower-case
        words in quotes."""
        pattern = re.compile("|".join(
            rf'"{w}"' if w.islower() else rf"\b{w}\b" for w in words))
        return {path for path, text in self.sources.items()
                if pattern.search(text)}

    def test_files_that_the_section_names_exist(self):
        text = self.section + self.how_to_add
        named = {name for name in re.findall(r"`([\w/.]+\.\w+)`", text)
                 if "/" in name and not PLACEHOLDER.search(name)}
        self.assertGreater(len(named), 30)
        self.assertEqual({n for n in named if not (ROOT / n).exists()}, set())

    def test_a_step_passes_at_most_twelve_files(self):
        walk = self.section.split("### The life of a training step")[1]
        files = re.findall(r"^\| \d+ \|.*\| `([\w/.]+)` \|$", walk, re.M)
        self.assertEqual(len(files), len(set(files)))
        self.assertGreaterEqual(len(files), 8)
        self.assertLessEqual(len(files), 12)

    def test_an_op_with_an_element_function(self):
        touched = self.with_words(["tanh", "kTanh"])
        code = {"codegen/cpu/scalar_emitter.cc",
                "codegen/cuda/cuda_expressions.cc", "runtime/cpu/llvm_jit.cc"}
        self.assertEqual(touched - code, {
            "ir/builder.h", "ir/op_kind.h", "ir/ops/elementwise.cc",
            "ir/scalar_op.cc", "ir/scalar_op.h",
            "models/onnx/onnx_exporter.cc", "tools/python/graph_builder.cc"})
        part = self.part(r"An op")
        for path in ("ir/builder.h", "ir/op_kind.h", "ir/scalar_op.cc",
                     "ir/scalar_op.h", "models/onnx/onnx_exporter.cc",
                     "tools/python/graph_builder.cc"):
            self.assertIn(f"`{path}`", part)

    def test_a_pass_is_three_source_files(self):
        passes = re.findall(r'^    \{"(\w+)", (\w+), Stage::',
                            self.sources["passes/pipeline.cc"], re.M)
        self.assertGreater(len(passes), 20)
        for name, function in passes:
            declared = re.compile(rf"\bbool {function}\((ir::)?Graph&")
            files = {path for path, text in self.sources.items()
                     if declared.search(text)}
            with self.subTest(name):
                self.assertEqual(len(files), 2, files)
                self.assertTrue(all(f.startswith("passes/") for f in files))
        self.assertIn("`passes/passes.h`", self.part("A pass"))

    def test_a_model_is_two_source_files(self):
        families = re.search(r"kFamilies\[\]\)\(\) = \{(.*?)\};",
                             self.sources["models/architectures.h"], re.S)
        for family in re.findall(r"\w+", families.group(1)):
            with self.subTest(family):
                self.assertEqual(len(self.with_words([family])), 2)
        self.assertIn("`models/architectures.h`", self.part("A model"))

    def test_a_backend_is_its_two_folders(self):
        for name in ("cpu", "cuda", "null"):
            folders = (f"codegen/{name}/", f"runtime/{name}/")
            included = re.compile(rf'#include "(codegen|runtime)/{name}/')
            users = {path for path, text in self.sources.items()
                     if included.search(text) and not path.startswith(folders)}
            # The model of a GPU's traffic prints kernels as CUDA C++.
            users -= {"tools/inspect/report/gpu_model.cc"}
            with self.subTest(name):
                self.assertEqual(users, set())

    def test_the_interface_is_the_table(self):
        table = self.readme.split("\n| name | header | purpose |\n")[1]
        rows = re.findall(r"^\| (.*?) \| `([\w/.]+)` \|",
                          table.split("\n\n")[0], re.M)
        included = re.findall(r'#include "(.*)"',
                              self.sources["runtime/fusor.h"])
        self.assertEqual(sorted(header for _, header in rows), included)
        names = [(name, header) for column, header in rows
                 for name in re.findall(r"`(?:\w+::)?(\w+)`", column)]
        self.assertLessEqual(len(names), 25)
        for name, header in names:
            with self.subTest(name):
                self.assertRegex(
                    self.sources[header],
                    rf"(?m)^(class|struct|enum class) {name}\b[^;]*$"
                    rf"|^\S.* {name}\(")

    def test_the_samples_are_tested_code(self):
        examples = {path: path.read_text(encoding="utf-8")
                    for path in (ROOT / "tests/examples").iterdir()
                    if path.suffix in (".h", ".cc")}
        code = "".join(examples[ROOT / "tests/examples/ten_lines_test.cc"]
                       .split())
        samples = re.findall(r"\n```cpp\n(.*?)\n```", self.readme, re.S)
        self.assertEqual(len(samples), 2)
        for sample in samples:
            for part in sample.split("\n\n"):
                self.assertIn("".join(part.split()), code)
        for path, text in examples.items():
            for header in re.findall(r'#include "(.*)"', text):
                self.assertRegex(
                    header, r"(runtime/fusor|models/model)\.h|tests/", path)


if __name__ == "__main__":
    unittest.main()
