"""Injects violations of each rule of tools/check_style.py into temporary
trees. Exactly these must be found."""

import pathlib
import shutil
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_style  # noqa: E402
import cpp_scan  # noqa: E402


def lines(count):
    return "  f();\n" * count


class RuleTest(unittest.TestCase):

    def findings(self, rule, files):
        """Returns the number of findings of `rule` per path in a tree of these
        files."""
        with tempfile.TemporaryDirectory() as folder:
            for path, text in files.items():
                file = pathlib.Path(folder) / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            found, skipped = check_style.run(check_style.Tree(folder), [rule])
        self.skipped = skipped
        counts = {}
        for finding in found:
            counts[finding.path] = counts.get(finding.path, 0) + 1
        return counts

    def test_every_rule_has_a_test(self):
        for rule in check_style.RULES:
            method = "test_" + rule.replace("-", "_")
            self.assertTrue(
                any(m.startswith(method) for m in dir(self)), method)

    def test_layering(self):
        self.assertEqual(self.findings("layering", {
            "ir/a.cc": '#include "passes/passes.h"\n#include "ir/a.h"\n'
                       '#include "ir/io/parser.h"\n',
            "ir/io/a.cc": '#include "ir/a.h"\n#include "ir/support/str.h"\n',
            "passes/fusion/a.cc": '#include "codegen/plan/plan.h"\n'
                                  '#include "passes/patterns/a.h"\n'
                                  '#include "passes/passes.h"\n'
                                  '#include "ir/target/cost.h"\n',
            "codegen/a.cc": '#include "passes/pipeline.h"\n',
            "codegen/kernel/a.cc": '#include "codegen/lower/a.h"\n',
            "models/a.cc": '#include "passes/passes.h"\n',
            "runtime/a.cc": '#include "codegen/plan/plan.h"\n'
                            '#include "codegen/lower/a.h"\n'
                            '#include "tools/inspect/dump/dumper.h"\n',
            "runtime/fusor.h": '#include "codegen/compiler.h"\n'
                               '#include "runtime/data/loader.h"\n'
                               '#include "runtime/cpu/jit.h"\n'
                               '#include "models/model.h"\n',
            "tools/inspect/dump/a.cc": '#include "runtime/session.h"\n'
                                       '#include "tools/fusor/main.h"\n',
            "tools/fusor/a.cc": '#include "runtime/session.h"\n'
                                '#include "runtime/cpu/jit.h"\n'
                                '#include "codegen/cuda/cuda_printer.h"\n'
                                '#include "codegen/cuda/nvrtc.h"\n',
            "runtime/new/CMakeLists.txt": "fusor_backend(new SOURCES a.cc)\n",
            "runtime/b.cc": '#include "runtime/new/new.h"\n',
            "runtime/cpu/a.cc": '#include "runtime/cpu/jit.h"\n'
                                '#include "codegen/cpu/llvm.h"\n'
                                '#include "runtime/null/record.h"\n'
                                '#include "runtime/data/loader.h"\n',
            "codegen/cpu/a.cc": '#include "runtime/cpu/jit.h"\n',
            "tests/runtime/cpu/a_test.cc": '#include "runtime/cpu/jit.h"\n',
            "tests/fakes/a.cc": '#include "runtime/cuda/context.h"\n'
                                '#include "runtime/cpu/jit.h"\n',
            "tests/runtime/a_test.cc": '#include "runtime/cpu/jit.h"\n',
            "ir/b.cc": '#include "b.h"\n',
        }), {"ir/a.cc": 2, "passes/fusion/a.cc": 2, "codegen/kernel/a.cc": 1,
             "models/a.cc": 1, "runtime/a.cc": 2, "runtime/fusor.h": 2,
             "tools/inspect/dump/a.cc": 1, "tools/fusor/a.cc": 2,
             "runtime/b.cc": 1, "runtime/cpu/a.cc": 2,
             "codegen/cpu/a.cc": 1, "tests/fakes/a.cc": 1,
             "tests/runtime/a_test.cc": 1, "ir/b.cc": 1})

    def test_include_cycles(self):
        self.assertEqual(self.findings("include-cycles", {
            "ir/a.h": '#include "ir/b.h"\n',
            "ir/a.cc": '#include "ir/a.h"\n#include "ir/c.h"\n',
            "ir/b.h": '#include "ir/c.h"\n',
            "ir/c.h": "",
            "ir/c.cc": '#include "ir/c.h"\n#include "ir/a.h"\n',
            "ir/d.h": '#include "ir/c.h"\n',
        }), {"ir/c.cc": 1})
        self.assertEqual(self.findings("include-cycles", {
            "ir/a.h": '#include "ir/b.h"\n',
            "ir/a.cc": '#include "ir/a.h"\n#include "ir/c.h"\n',
            "ir/b.h": '#include "ir/c.h"\n', "ir/c.h": "",
        }), {})

    def test_folder_size(self):
        units = {f"ir/u{i}.{suffix}": "" for i in range(20)
                 for suffix in ("h", "cc")}
        self.assertEqual(self.findings("folder-size", units), {})
        units["ir/u20.h"] = ""
        units["ir/ops/u21.cc"] = ""
        self.assertEqual(self.findings("folder-size", units), {"ir": 1})

    def test_vendor_headers(self):
        self.assertEqual(self.findings("vendor-headers", {
            "codegen/a.cc": "#include <cuda_runtime.h>\n#include <nvrtc.h>\n",
            "runtime/a.h": "#include <cudnn_frontend.h>\n#include <nccl.h>\n",
            "runtime/cuda/a.cc": "#include <cuda.h>\n#include <dnnl.hpp>\n",
            "runtime/cpu/a.cc": "#include <llvm/IR/Module.h>\n"
                                "#include <dnnl.hpp>\n"
                                "#include <gloo/context.h>\n",
            "tests/runtime/cpu/a.cc": "#include <llvm/IR/Module.h>\n",
            "passes/a.cc": "#include <llvm/IR/Module.h>\n",
            "ir/graph.cc": '#include "ir/io/graph.pb.h"\n',
            "ir/io/serialize_graph.cc": '#include "ir/io/graph.pb.h"\n'
                               "#include <google/protobuf/text_format.h>\n",
            "ir/target/target_proto.cc": '#include "ir/target/target.pb.h"\n',
            "ir/io/serialize_graph.h": '#include "ir/io/graph.pb.h"\n',
        }), {"codegen/a.cc": 2, "runtime/a.h": 2, "runtime/cuda/a.cc": 1,
             "passes/a.cc": 1, "ir/graph.cc": 1, "ir/io/serialize_graph.h": 1})

    def test_root_entries(self):
        self.assertEqual(self.findings("root-entries", {
            "README.md": "", ".ci/run": "", "ir/a.cc": "", "NOTES.md": "",
            "docs/a.md": "",
        }), {"NOTES.md": 1, "docs": 1})

    def test_file_length(self):
        self.assertEqual(self.findings("file-length", {
            "ir/a.cc": "\n" * 800, "ir/b.cc": "\n" * 801,
            "tools/b.py": "\n" * 801, "tools/c.sh": "\n" * 801,
        }), {"ir/b.cc": 1, "tools/b.py": 1, "tools/c.sh": 1})

    def test_function_length(self):
        self.assertEqual(self.findings("function-length", {
            "ir/short.cc": "int F() {\n" + lines(78) + "}\n",
            "ir/long.cc": "namespace a {\nint F() {\n" + lines(79) + "}\n}\n",
            "ir/method.h": "class A : public B {\n public:\n  int F() const {\n"
                           + lines(79) + "  }\n};\n",
            "ir/constructor.cc": "A::A(int a)\n    : a_{a}, b_(2) {\n"
                                 + lines(79) + "}\n",
            "ir/table.cc": "const Op kOps[] = {\n" + "    {1, {2}},\n" * 90
                           + "};\n",
            "ir/lambda.cc": "const Op kOps[] = {\n    {.f = [](int x) {\n"
                            + lines(79) + "    }},\n};\n",
            "tests/ir/raw_test.cc": 'TEST(A, B) {\n  F(R"(' + "\n" * 90
                                    + ')");\n}\n',
            "tests/ir/long_test.cc": "TEST(A, B) {\n" + lines(79) + "}\n",
            "tools/a.py": "def f():\n" + "    g()\n" * 80,
        }), {"ir/long.cc": 1, "ir/method.h": 1, "ir/constructor.cc": 1,
             "ir/lambda.cc": 1, "tests/ir/long_test.cc": 1, "tools/a.py": 1})

    def test_environment(self):
        self.assertEqual(self.findings("environment", {
            "runtime/a.cc": 'const char* p = std::getenv("X");\n',
            "ir/support/environment.cc": 'char* p = getenv("X");\n',
            "ir/b.cc": "// getenv is read elsewhere\nint get_environment;\n",
        }), {"runtime/a.cc": 1})

    def test_environment_table(self):
        table = ('EnvironmentVariable{"FUSOR_A", "", ""},\n'
                 'EnvironmentVariable{"FUSOR_B", "", ""},\n')
        files = {"ir/support/environment.cc": table,
                 "README.md": "`FUSOR_A`, `FUSOR_B`\n",
                 "runtime/a.cc": 'auto a = Environment("FUSOR_A");\n',
                 "tools/b.cc": 'auto b = Environment("FUSOR_B");\n'}
        self.assertEqual(self.findings("environment", files), {})
        self.assertEqual(
            self.findings("environment", dict(files, **{"tools/b.cc": ""})),
            {"ir/support/environment.cc": 1})
        self.assertEqual(
            self.findings("environment", dict(files, **{"README.md": ""})),
            {"ir/support/environment.cc": 2})

    def test_library_output(self):
        self.assertEqual(self.findings("library-output", {
            "ir/a.cc": "void F() { exit(1); }\n",
            "passes/a.cc": 'void F() { printf("a"); }\n',
            "codegen/a.cc": "void F() { std::cout << 1; }\n",
            "models/a.cc": 'void F() { fmt::print("a"); }\n',
            "runtime/a.cc": "void F() { fputs(p, stderr); std::abort(); }\n",
            "runtime/b.cc": "void F() { a.exit(1); snprintf(p, 1, q); }\n"
                            "// std::cout is for tools\n"
                            'const char* kText = "exit(1)";\n',
            "tools/a.cc": "void F() { std::cout << 1; exit(2); }\n",
        }), {"ir/a.cc": 1, "passes/a.cc": 1, "codegen/a.cc": 1,
             "models/a.cc": 1, "runtime/a.cc": 2})

    def test_op_kinds(self):
        self.assertEqual(self.findings("op-kinds", {
            "passes/a.cc": 'bool F() { return node.op().name == "relu"; }\n',
            "passes/b.cc": 'bool F() { return "relu" != node->op_name(); }\n',
            "passes/c.cc": 'bool F() { return &n.op() == &GetOp("relu"); }\n',
            "passes/d.cc": "bool F() { return a.op_name() == b.op_name(); }\n",
            "codegen/a.cc": 'bool F() { return call.op == "copy"; }\n'
                            'bool G() { return call.attrs.Has("pad"); }\n',
            "runtime/a.cc": 'bool F() { return node.attrs().Has("pad"); }\n',
            "tools/a.cc": 'bool F() { return op_name().find("conv") == 0; }\n',
            "passes/e.cc": "bool F() { return n.kind() == OpKind::kRelu; }\n"
                           'Value G() { return Make("relu", x); }\n'
                           'bool H() { return a.String("mode") == "max"; }\n'
                           'bool I() { return input.attrs.Has("init"); }\n',
            "ir/io/a.cc": 'bool F() { return op_name == "fusion"; }\n',
            "ir/ops/registry.cc": 'bool F() { return op->name == ""; }\n',
            "tests/a.cc": 'bool F() { return n.op_name() == "relu"; }\n',
        }), {"passes/a.cc": 1, "passes/b.cc": 1, "passes/c.cc": 1,
             "passes/d.cc": 1, "codegen/a.cc": 2, "runtime/a.cc": 1,
             "tools/a.cc": 1})

    def test_own_header(self):
        self.assertEqual(self.findings("own-header", {
            "ir/a.h": "", "ir/a.cc": '#include <vector>\n#include "ir/a.h"\n',
            "ir/b.h": "", "ir/b.cc": '// b\n#include "ir/b.h"\n',
            "ir/c.cc": "#include <vector>\n",
        }), {"ir/a.cc": 1})

    def test_header_guards(self):
        self.assertEqual(self.findings("header-guards", {
            "ir/a.h": "#ifndef A\n#define A\n#endif\n",
            "ir/b.h": "// B.\n#pragma once\n",
            "ir/c.h": "#pragma once\nusing namespace std;\n",
        }), {"ir/a.h": 1, "ir/c.h": 1})

    def test_file_names(self):
        self.assertEqual(self.findings("file-names", {
            "ir/graph.cc": "", "ir/GraphNode.cc": "", "ir/string_utils.h": "",
            "runtime/cuda/k.cu": "", "ir/a.cpp": "", "passes/common.h": "",
        }), {"ir/GraphNode.cc": 1, "ir/string_utils.h": 1,
             "runtime/cuda/k.cu": 1, "ir/a.cpp": 1, "passes/common.h": 1})

    def test_marks(self):
        mark = "TO" + "DO"
        self.assertEqual(self.findings("marks", {
            "ir/a.cc": f"// {mark}: later\n",
            "tools/a.sh": "cd /wo" + "rk/x\n",
            "README.md": f"{mark}\n",
            "ir/b.cc": "// photodocument; a/ro" + "ot/b\n",
        }), {"ir/a.cc": 1, "tools/a.sh": 1, "README.md": 1})

    def test_cmake_sources(self):
        self.assertEqual(self.findings("cmake-sources", {
            "ir/CMakeLists.txt": "fusor_folder(ir\n  SOURCES\n    b.cc\n"
                                 "    a.cc\n)\n",
            "passes/CMakeLists.txt": "fusor_folder(passes SOURCES a.cc b.cc\n"
                                     "  LIBS z y)\n",
            "codegen/CMakeLists.txt": "file(GLOB sources *.cc)\n",
        }), {"ir/CMakeLists.txt": 1, "codegen/CMakeLists.txt": 1})

    @unittest.skipUnless(shutil.which("clang-format"), "needs clang-format")
    def test_clang_format(self):
        style = "BasedOnStyle: Google\n"
        self.assertEqual(self.findings("clang-format", {
            ".clang-format": style, "ir/a.cc": "int  a;\n",
            "ir/b.cc": "int b;\n",
        }), {"ir/a.cc": 1})

    def test_clang_format_missing_is_skipped_visibly(self):
        with mock.patch("shutil.which", return_value=None):
            self.assertEqual(
                self.findings("clang-format", {"ir/a.cc": "int  a;\n"}), {})
        self.assertEqual(len(self.skipped), 1)

    def test_exceptions_excuse_only_what_they_name(self):
        long_functions = ("int F() {\n" + lines(79) + "}\n"
                          "int G() {\n" + lines(79) + "}\n")
        self.assertEqual(self.findings("function-length", {
            "ir/a.cc": long_functions,
            check_style.EXCEPTIONS: "function-length ir/a.cc:F a reason\n",
        }), {"ir/a.cc": 1})

    def test_exceptions_that_excuse_nothing_are_found(self):
        self.assertEqual(self.findings("function-length", {
            "ir/a.cc": "int F();\n",
            check_style.EXCEPTIONS: "# comment\n"
                                    "function-length ir/a.cc a reason\n",
        }), {check_style.EXCEPTIONS: 1})

    def test_exceptions_without_a_reason_are_found(self):
        self.assertEqual(self.findings("file-length", {
            "ir/a.cc": "\n" * 801,
            check_style.EXCEPTIONS: "file-length ir/a.cc\n",
        }), {check_style.EXCEPTIONS: 1, "ir/a.cc": 1})


class ScanTest(unittest.TestCase):

    def test_comments_and_literals_are_blank(self):
        code = cpp_scan.Scan(
            'int a = 1\'000; // {\n/* { */ char c = \'{\'; auto s = "{\\"{";\n'
            'auto r = R"x({ )" })x";\n').code
        self.assertNotIn("{", code)
        self.assertIn("1'000", code)
        self.assertEqual(code.count("\n"), 3)

    def test_functions_are_named_and_measured(self):
        scan = cpp_scan.Scan(
            "namespace a::b {\n"
            "struct P { int x = 0; };\n"
            "enum class E { kA, kB };\n"
            "const std::map<int, int> kTable = {{1, 2}, {3, 4}};\n"
            "template <typename T>\n"
            "auto F(T t) -> std::vector<T> {\n"
            "  struct L { int y() { return 1; } };\n"
            "  if (t) {\n"
            "  }\n"
            "}\n"
            "#define M(x) if (x) {\n"
            "Q::Q(int a) : a_{a}, b_(1) {\n"
            "}\n"
            "}  // namespace a::b\n")
        self.assertEqual(scan.functions(), [("F", 5, 6), ("Q::Q", 12, 2)])


if __name__ == "__main__":
    unittest.main()
