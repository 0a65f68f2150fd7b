#!/usr/bin/env python3
"""Checks the style rules of the tree.

    tools/check_style.py [--root DIR] [--list] [RULE...]

Prints one line per finding, `path:line: rule: message`. Exits with 1 if there
are findings, with 77 if a rule could not run (clang-format is not installed).
Each rule is a function in RULES with the rule as its docstring.

tools/style_exceptions.txt lists exceptions: `rule path[:key] reason`. key
limits the exception to one function or name. An exception without a finding is
itself a finding, so the list can only shrink.
"""

import argparse
import ast
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import cpp_scan  # noqa: E402

FOLDERS = ("ir", "passes", "codegen", "models", "runtime", "tools", "tests")
LIBRARY = ("ir", "passes", "codegen", "models", "runtime")
ROOT_ENTRIES = frozenset(
    FOLDERS + ("CMakeLists.txt", "CMakePresets.json", "LICENSE", "README.md"))

# The folders that the files of a folder may include, besides the folder itself
# and ir/. The longest prefix of a path applies, which may be the path of a
# file. "x/" stands for x and all folders in it.
COMPILE_HALF = ("codegen", "codegen/kernel", "codegen/plan")
INCLUDES = {
    "ir": ("ir/support",),
    "ir/support": (),
    "ir/interpreter": ("ir", "ir/support"),
    "ir/target": ("ir", "ir/support"),
    "ir/io": ("ir", "ir/support"),
    "ir/ops": ("ir", "ir/support", "ir/interpreter"),
    "passes": ("passes/",),
    "passes/simplify": ("passes",),
    "passes/library": ("passes",),
    "passes/collectives": ("passes",),
    "passes/training": ("passes", "passes/simplify", "passes/library",
                        "passes/collectives"),
    "passes/fusion": ("passes", "passes/simplify", "passes/library",
                      "passes/collectives"),
    "passes/patterns": ("passes", "passes/simplify", "passes/library",
                        "passes/collectives", "passes/fusion"),
    "passes/precision": ("passes", "passes/simplify", "passes/library",
                         "passes/collectives", "passes/fusion",
                         "passes/patterns"),
    "passes/layout": ("passes", "passes/simplify", "passes/library",
                      "passes/collectives", "passes/fusion",
                      "passes/patterns"),
    "codegen/kernel": (),
    "codegen/lower": ("codegen/kernel", "passes/fusion"),
    "codegen/plan": ("codegen", "codegen/kernel", "codegen/lower"),
    "codegen": ("passes/", "codegen/kernel", "codegen/lower", "codegen/plan"),
    "codegen/autotune": ("passes/", "codegen", "codegen/kernel",
                         "codegen/lower", "codegen/plan"),
    "codegen/cpu": COMPILE_HALF,
    "codegen/cuda": COMPILE_HALF,
    "codegen/null": COMPILE_HALF,
    "runtime/backend": ("codegen", "codegen/kernel", "codegen/plan"),
    "runtime/distributed": ("codegen", "codegen/kernel", "codegen/plan",
                            "runtime/backend"),
    "runtime": ("codegen", "codegen/kernel", "codegen/plan",
                "codegen/autotune", "passes/", "runtime/backend",
                "runtime/distributed"),
    "runtime/fusor.h": ("codegen", "runtime/"),
    "runtime/checkpoint": ("codegen", "codegen/plan", "runtime",
                           "runtime/backend", "runtime/distributed",
                           "runtime/data", "runtime/data/files"),
    "runtime/train": ("codegen", "codegen/plan", "runtime", "runtime/backend",
                      "runtime/distributed", "runtime/data"),
    "runtime/cpu": COMPILE_HALF + ("codegen/cpu", "runtime/backend",
                                   "runtime/distributed", "runtime/cpu/gloo"),
    "runtime/cpu/gloo": COMPILE_HALF + ("runtime/backend",
                                        "runtime/distributed", "runtime/cpu"),
    "runtime/cuda": COMPILE_HALF + ("codegen/cuda", "runtime/backend",
                                    "runtime/distributed",
                                    "runtime/cuda/nccl"),
    "runtime/cuda/nccl": COMPILE_HALF + ("codegen/cuda", "runtime/backend",
                                         "runtime/distributed",
                                         "runtime/cuda"),
    "runtime/null": COMPILE_HALF + ("codegen/null", "runtime/backend",
                                    "runtime/distributed"),
    "runtime/data": ("runtime/data/augment", "runtime/data/image"),
    "runtime/data/augment": ("runtime/data/image",),
    "runtime/data/image": (),
    "runtime/data/files": (),
    "runtime/data/datasets": ("runtime/data", "runtime/data/files",
                              "runtime/data/image"),
    "models": (),
    "models/import": ("models",),
    "models/onnx": ("models", "models/import"),
    "tools/inspect": ("passes/", "codegen/", "runtime/", "tools/inspect/"),
    "tools": ("passes/", "codegen/", "models/", "runtime/", "tools/"),
    "tests": tuple(folder + "/" for folder in FOLDERS),
}

# A backend has its compiler in codegen/NAME and its runtime in runtime/NAME.
# Backends are these and each folder in runtime/ whose CMakeLists.txt calls
# fusor_backend().
BACKENDS = frozenset(("cpu", "cuda", "null"))
# Backend headers that other folders may include; need no toolkit and no device.
BACKEND_DATA = frozenset(("codegen/cuda/cuda_printer.h",))

# Third-party headers that stay inside one backend.
VENDOR_HEADERS = {
    "cuda": re.compile(
        r"(cuda|nvrtc|cudnn|cublas|nccl|nvml|nvtx|curand|nvtx3/|cub/|thrust/)"
        r"[\w./]*$"),
    "cpu": re.compile(r"(llvm|llvm-c|gloo|oneapi)/|dnnl[\w.]*$"),
}

MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 80
MAX_FOLDER_UNITS = 20


@dataclasses.dataclass(frozen=True)
class Finding:
    rule: str
    path: str
    line: int
    message: str
    key: str = ""

    def __str__(self):
        return f"{self.path}:{self.line}: {self.rule}: {self.message}"


class SkipRule(Exception):
    """The rule cannot run on this machine."""


class Tree:
    """The files of a checkout: paths relative to the root, and texts."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.paths = sorted(self._list())
        self.backends = BACKENDS | {
            p.split("/")[1] for p in self.paths
            if re.fullmatch(r"runtime/\w+/CMakeLists.txt", p)
            and "fusor_backend(" in self.text(p)}
        self._scans = {}

    def _list(self):
        """Returns tracked and unignored files; without git, all files."""
        listed = self._list_by_git()
        if listed is not None:
            return [p for p in listed if (self.root / p).is_file()]
        found = []
        for folder, subfolders, files in os.walk(self.root):
            at_root = pathlib.Path(folder) == self.root
            subfolders[:] = [
                s for s in subfolders if s != "__pycache__" and not
                (at_root and (s.startswith("build") or s.startswith(".")))]
            found += [(pathlib.Path(folder) / f).relative_to(
                self.root).as_posix() for f in files]
        return found

    def _list_by_git(self):
        """Returns git's list; None without git or outside a checkout."""
        try:
            git = subprocess.run(
                ["git", "-C", str(self.root), "ls-files", "-z", "--cached",
                 "--others", "--exclude-standard"], capture_output=True,
                check=False)
        except FileNotFoundError:
            return None
        if git.returncode != 0:
            return None
        return [p for p in git.stdout.decode().split("\0") if p]

    def text(self, path):
        return (self.root / path).read_text(encoding="utf-8")

    def select(self, *suffixes, folders=FOLDERS):
        return [p for p in self.paths if p.endswith(suffixes)
                and p.split("/")[0] in folders]

    def cpp(self, folders=FOLDERS):
        return self.select(".cc", ".h", folders=folders)

    def scan(self, path):
        """Returns the C++ file without comments and literals (see cpp_scan)."""
        if path not in self._scans:
            self._scans[path] = cpp_scan.Scan(self.text(path))
        return self._scans[path]


def backend_of(tree, path):
    """Returns `cpu` for files in {,tests/}{codegen,runtime}/cpu, else None."""
    parts = path.removeprefix("tests/").split("/")
    if (len(parts) > 2 and parts[0] in ("codegen", "runtime")
            and parts[1] in tree.backends):
        return parts[1]
    return None


def may_see_backend(tree, path, backend):
    """A backend's own files may, and the fakes of what CUDA's calls."""
    return (backend_of(tree, path) == backend
            or backend == "cuda" and path.startswith("tests/fakes/"))


def includes(tree, path):
    """Yields (line, header, quoted) for every #include in the file."""
    for number, line in enumerate(tree.text(path).splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
        if match:
            yield number, match[2], match[1] == '"'


def check_layering(tree):
    """Own headers are included by path from the root, as INCLUDES allows."""
    for path in tree.cpp():
        for line, header, quoted in includes(tree, path):
            problem = quoted and layering_problem(tree, path, header)
            if problem:
                yield Finding("layering", path, line, problem, header)


def rule_of(path):
    """Returns the key of INCLUDES that applies to the file."""
    prefix = path
    while prefix not in INCLUDES:
        prefix = prefix.rpartition("/")[0]
    return prefix


def layering_problem(tree, path, header):
    """Returns why `path` must not include `header`; None if it may."""
    if header.split("/")[0] not in FOLDERS:
        return f'"{header}" is not a path from the root of the tree'
    backend = backend_of(tree, header)
    if (backend and header not in BACKEND_DATA
            and not may_see_backend(tree, path, backend)):
        return f"nobody outside backend {backend} may include {header}"
    rule = rule_of(path)
    folder = header.rsplit("/", 1)[0]
    core = () if rule.split("/")[0] == "ir" else ("ir/",)
    allowed = (rule, *core, *INCLUDES[rule])
    for entry in allowed:
        if folder == entry or (entry.endswith("/") and
                               (folder + "/").startswith(entry)):
            return None
    return (f"{rule}/ may include {', '.join(allowed)}, not {header}")


def unit_of(path):
    """Returns the unit of a file: a header with its source, x.h and x.cc."""
    return path.rsplit(".", 1)[0]


def check_include_cycles(tree):
    """Includes between units are acyclic."""
    arrows = {}
    for path in tree.cpp(LIBRARY + ("tools",)):
        own = unit_of(path)
        arrows.setdefault(own, {})
        for line, header, quoted in includes(tree, path):
            target = unit_of(header)
            if quoted and target != own:
                arrows[own].setdefault(target, (path, line))
    done = set()

    def visit(unit, trail):
        trail.append(unit)
        for target, (path, line) in sorted(arrows[unit].items()):
            if target in trail:
                circle = trail[trail.index(target):] + [target]
                yield Finding("include-cycles", path, line,
                              " -> ".join(circle), target)
            elif target in arrows and target not in done:
                yield from visit(target, trail)
        trail.pop()
        done.add(unit)

    for unit in sorted(arrows):
        if unit not in done:
            yield from visit(unit, [])


def check_folder_size(tree):
    """No folder of the library or the tools has more than 20 units."""
    folders = {}
    for path in tree.cpp(LIBRARY + ("tools",)):
        folders.setdefault(path.rsplit("/", 1)[0], set()).add(unit_of(path))
    for folder, units in sorted(folders.items()):
        if len(units) > MAX_FOLDER_UNITS:
            yield Finding("folder-size", folder, 1,
                          f"{len(units)} units, the limit is "
                          f"{MAX_FOLDER_UNITS}")


def check_vendor_headers(tree):
    """Only backend cuda includes CUDA's headers, and only backend cpu those of
    LLVM, oneDNN and Gloo. Only serialize*.cc and *_proto.cc include generated
    protobuf headers."""
    for path in tree.cpp():
        for line, header, _ in includes(tree, path):
            for backend, pattern in VENDOR_HEADERS.items():
                if (pattern.match(header) and
                        not may_see_backend(tree, path, backend)):
                    yield Finding(
                        "vendor-headers", path, line,
                        f"{header} belongs in backend {backend}", header)
            if (header.endswith(".pb.h") or
                    header.startswith("google/protobuf/")):
                name = path.split("/")[-1]
                if not re.match(r"serialize\w*\.cc$|\w+_proto\.cc$", name):
                    yield Finding(
                        "vendor-headers", path, line,
                        f"{header}: only serialize*.cc and *_proto.cc may "
                        "include protobuf headers", header)


def check_root_entries(tree):
    """The root of the tree has only ROOT_ENTRIES and dot-files."""
    for entry in sorted({p.split("/")[0] for p in tree.paths}):
        if entry not in ROOT_ENTRIES and not entry.startswith("."):
            yield Finding("root-entries", entry, 1,
                          "is not an agreed entry of the root")


def check_file_length(tree):
    """No source file is longer than 800 lines."""
    for path in tree.select(".cc", ".h", ".py", ".sh"):
        lines = len(tree.text(path).splitlines())
        if lines > MAX_FILE_LINES:
            yield Finding("file-length", path, lines,
                          f"{lines} lines, the limit is {MAX_FILE_LINES}")


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, node.end_lineno - node.lineno + 1


def check_function_length(tree):
    """No function is longer than 80 lines, from its first line to its closing
    brace, without the lines of raw string literals."""
    for path in tree.select(".cc", ".h", ".py"):
        if path.endswith(".py"):
            functions = python_functions(tree.text(path))
        else:
            functions = tree.scan(path).functions()
        for name, line, length in functions:
            if length > MAX_FUNCTION_LINES:
                yield Finding(
                    "function-length", path, line,
                    f"{name} has {length} lines, the limit is "
                    f"{MAX_FUNCTION_LINES}", name)


def matches(tree, rule, paths, pattern, message):
    """Yields a finding per match of `pattern` in the code of the C++ files."""
    for path in paths:
        code = tree.scan(path).code
        for match in re.finditer(pattern, code):
            line = code.count("\n", 0, match.start()) + 1
            text = " ".join(match[0].split())
            yield Finding(rule, path, line, f"{text}: {message}")


ENVIRONMENT = "ir/support/environment.cc"


def check_environment(tree):
    """Only ir/support/environment.cc reads the environment. Each variable of
    its table has a reader and is listed in the README."""
    paths = [p for p in tree.cpp(LIBRARY + ("tools",)) if p != ENVIRONMENT]
    yield from matches(tree, "environment", paths,
                       r"\b(secure_)?getenv\b|\benviron\b",
                       "use Environment() of ir/support/environment.h")
    if ENVIRONMENT not in tree.paths:
        return
    table = tree.text(ENVIRONMENT)
    readers = "".join(tree.text(p) for p in paths + [ENVIRONMENT])
    readme = tree.text("README.md") if "README.md" in tree.paths else ""
    for match in re.finditer(r'EnvironmentVariable\{"(\w+)"', table):
        name, line = match[1], table.count("\n", 0, match.start()) + 1
        if not re.search(rf'Environment(Flag)?\("{name}"\)', readers):
            yield Finding("environment", ENVIRONMENT, line,
                          f"nothing reads {name}", name)
        if f"`{name}`" not in readme:
            yield Finding("environment", ENVIRONMENT, line,
                          f"README.md does not list {name}", name)


def check_library_output(tree):
    """Library code neither exits nor prints."""
    pattern = (
        r"(?<![\w.>])(exit|_exit|_Exit|quick_exit|abort|printf|vprintf|puts"
        r"|putchar)\s*\(|\bstd::(cout|cerr|clog)\b|\b(stdout|stderr)\b"
        r"|\bfmt::print(ln)?\s*\(\s*\"")
    return matches(tree, "library-output", tree.cpp(LIBRARY), pattern,
                   "library code reports by Error")


def check_op_kinds(tree):
    """Only the op registry and the text and binary forms compare names of ops.
    All other code compares kinds or tests traits, and does not probe a node's
    or a call's attributes to learn its kind."""
    name = r"\bop(_name)?(\(\))?((\.|->)name)?"
    compared = r"\s*[!=]=\s*"
    asked = [
        f'{name}{compared}""',
        f'""{compared}[\\w.>()\\[\\]-]*{name}',
        rf"\bop_name\(\){compared}",
        rf"{compared}[\w.>()\[\]-]*\bop_name\(\)",
        rf"{name}\.(starts_with|ends_with|find)\(",
        r'[!=]=\s*&?(ir::)?(GetOp|FindOp)\(',
        r"\b(attrs\(\)(\.|->)|call_?(\.|->)attrs\.)Has\(",
    ]
    paths = [p for p in tree.cpp(LIBRARY + ("tools",))
             if p != "ir/ops/registry.cc" and not p.startswith("ir/io/")]
    return matches(tree, "op-kinds", paths, "|".join(asked),
                   "compare kinds or test traits (ir/op_kind.h)")


def check_own_header(tree):
    """x.cc includes x.h first, which proves that x.h compiles alone. The build
    compiles headers without a source (target header_check)."""
    present = set(tree.paths)
    for path in tree.select(".cc"):
        header = path.removesuffix(".cc") + ".h"
        if header not in present:
            continue
        first = next(includes(tree, path), (1, "nothing", True))
        if first[1] != header:
            yield Finding("own-header", path, first[0],
                          f"includes {first[1]} before its own {header}")


def check_header_guards(tree):
    """A header starts with #pragma once and has no using-directive."""
    for path in tree.select(".h"):
        code = tree.scan(path).code
        if not code.lstrip().startswith("#pragma once"):
            yield Finding("header-guards", path, 1,
                          "the first directive must be #pragma once")
    yield from matches(tree, "header-guards", tree.select(".h"),
                       r"\busing\s+namespace\b", "not in a header")


def check_file_names(tree):
    """File names are snake_case and name the contents. No .cu, .cpp, .hpp."""
    for path in tree.paths:
        name = path.split("/")[-1]
        stem = name.split(".")[0]
        if re.search(r"\.(cu|cuh|cpp|cxx|hpp)$", name):
            yield Finding("file-names", path, 1, "C++ files are .cc and .h")
        elif name.endswith((".cc", ".h", ".py")):
            if not re.fullmatch(r"[a-z0-9_]+", stem):
                yield Finding("file-names", path, 1, "must be snake_case")
            if re.search(r"(^|_)(utils?|helpers?|common|misc)($|_)", stem):
                yield Finding("file-names", path, 1,
                              "must be named for what it holds")


def check_marks(tree):
    """No marks of unfinished work and no machine-specific paths."""
    pattern = re.compile(r"\b(TOD[O]|FIXM[E]|XX[X])\b|(?<![\w.])/(home|root|work)/")
    suffixes = (".cc", ".h", ".py", ".sh", ".cmake", ".txt", ".md", ".proto")
    for path in tree.select(*suffixes, folders=FOLDERS + ("README.md",)):
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            match = pattern.search(line)
            if match:
                yield Finding("marks", path, number, f"contains {match[0]}")


def source_lists(text):
    """Yields (line, [file...]) for each SOURCES list of a CMake file."""
    for match in re.finditer(r"\bSOURCES\b([^)]*)", text):
        body = re.sub(r"#[^\n]*", "", match[1])
        words = re.split(r"\s+[A-Z_]{3,}\s", body + " ")[0].split()
        yield (text.count("\n", 0, match.start()) + 1,
               [w for w in words if "$" not in w])


def check_cmake_sources(tree):
    """Source lists are explicit and sorted bytewise."""
    lists = [p for p in tree.paths
             if p.split("/")[-1] == "CMakeLists.txt" or p.endswith(".cmake")]
    for path in lists:
        text = tree.text(path)
        for line, files in source_lists(text):
            for before, after in zip(files, files[1:]):
                if before >= after:
                    yield Finding("cmake-sources", path, line,
                                  f"{after} must stand before {before}")
        for match in re.finditer(r"\bfile\s*\(\s*GLOB", text):
            yield Finding("cmake-sources", path,
                          text.count("\n", 0, match.start()) + 1,
                          "source lists are explicit, no file(GLOB)")


def check_clang_format(tree):
    """C++ files are formatted by clang-format with the root's .clang-format."""
    tool = shutil.which("clang-format")
    if tool is None:
        raise SkipRule("clang-format is not installed")
    paths = tree.cpp()
    if not paths:
        return
    result = subprocess.run(
        [tool, "--dry-run", "--style=file", *paths], cwd=tree.root,
        capture_output=True, text=True, check=False)
    dirty = {}
    for match in re.finditer(r"^(\S+?):(\d+):\d+: warning: .*clang-format",
                             result.stderr, re.M):
        dirty.setdefault(match[1], int(match[2]))
    if result.returncode != 0 and not dirty:
        raise RuntimeError(f"clang-format failed: {result.stderr.strip()}")
    for path, line in dirty.items():
        yield Finding("clang-format", path, line,
                      f"run clang-format -i {path}")


RULES = {
    "clang-format": check_clang_format,
    "cmake-sources": check_cmake_sources,
    "environment": check_environment,
    "file-length": check_file_length,
    "file-names": check_file_names,
    "folder-size": check_folder_size,
    "function-length": check_function_length,
    "header-guards": check_header_guards,
    "include-cycles": check_include_cycles,
    "layering": check_layering,
    "library-output": check_library_output,
    "marks": check_marks,
    "op-kinds": check_op_kinds,
    "own-header": check_own_header,
    "root-entries": check_root_entries,
    "vendor-headers": check_vendor_headers,
}

EXCEPTIONS = "tools/style_exceptions.txt"


def read_exceptions(tree):
    """Returns {(rule, path, key): line}, and findings for malformed lines."""
    exceptions, findings = {}, []
    if EXCEPTIONS not in tree.paths:
        return exceptions, findings
    for number, line in enumerate(tree.text(EXCEPTIONS).splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = line.split(None, 2)
        if len(fields) < 3 or fields[0] not in RULES:
            findings.append(Finding("exceptions", EXCEPTIONS, number,
                                    "expected: rule path[:key] reason"))
            continue
        path, _, key = fields[1].partition(":")
        exceptions[fields[0], path, key] = number
    return exceptions, findings


def run(tree, rules):
    """Returns the findings of `rules` without exceptions, and why rules were
    skipped."""
    exceptions, findings = read_exceptions(tree)
    used, skipped = set(), []
    for rule in rules:
        try:
            for finding in RULES[rule](tree):
                keys = {(rule, finding.path, ""),
                        (rule, finding.path, finding.key)} & set(exceptions)
                used |= keys
                if not keys:
                    findings.append(finding)
        except SkipRule as reason:
            skipped.append(f"{rule}: {reason}")
    for exception, number in exceptions.items():
        if exception[0] in rules and exception not in used:
            findings.append(Finding("exceptions", EXCEPTIONS, number,
                                    "excuses nothing any more; remove it"))
    return findings, skipped


def main():
    parser = argparse.ArgumentParser(description="Checks the tree's rules.")
    parser.add_argument("--root", default=os.path.join(
        os.path.dirname(os.path.abspath(__file__)), ".."))
    parser.add_argument("--list", action="store_true",
                        help="print the names of the rules")
    parser.add_argument("rules", nargs="*", metavar="RULE", default=[],
                        help="default: all")
    options = parser.parse_args()
    if options.list:
        print("\n".join(RULES))
        return 0
    unknown = set(options.rules) - set(RULES)
    if unknown:
        parser.error(f"no such rule: {', '.join(sorted(unknown))}")
    findings, skipped = run(Tree(options.root), options.rules or list(RULES))
    for finding in findings:
        print(finding)
    for reason in skipped:
        print(f"skipped: {reason}")
    if findings:
        return 1
    return 77 if skipped else 0


if __name__ == "__main__":
    sys.exit(main())
