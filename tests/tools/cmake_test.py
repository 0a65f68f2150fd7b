"""Tests the CMake modules: FUSOR_BACKENDS (tools/cmake/FusorBackend.cmake) on
a small project whose only backend lacks a package, and a project that adds the
tree with add_subdirectory."""

import json
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(backends LANGUAGES NONE)
list(APPEND CMAKE_MODULE_PATH {modules})
include(FusorBackend)
fusor_add_backends(NOT_BACKENDS data)
get_property(built GLOBAL PROPERTY FUSOR_BUILT_BACKENDS)
message(STATUS "built: [${{built}}]")
"""

LACKING = """
set(Absent_FOUND FALSE)
set(Present_FOUND TRUE)
fusor_backend(lacking SOURCES a.cc REQUIRES Present Absent)
"""


CONSUMER = """
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES CXX)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
add_custom_target(programs)
add_subdirectory({root} fusor)
add_executable(app app.cc)
target_link_libraries(app PRIVATE fusor)
if(CMAKE_CXX_STANDARD OR CMAKE_RUNTIME_OUTPUT_DIRECTORY)
  message(FATAL_ERROR "settings of this project were changed")
endif()
"""

APP = """
#include "runtime/fusor.h"
int main(int unused, char**) {
  return fusor::ir::Graph("consumer").nodes().empty() ? 0 : 1;
}
"""


class ConsumerTest(unittest.TestCase):

    def test_another_project_adds_the_tree_and_compiles_against_it(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "CMakeLists.txt").write_text(CONSUMER.format(root=ROOT))
            (root / "app.cc").write_text(APP)
            build = root / "build"
            for command in (
                    ["cmake", "-G", "Ninja", "-S", root, "-B", build,
                     "-DFUSOR_BACKENDS=null"],
                    ["ninja", "-C", build, "CMakeFiles/app.dir/app.cc.o"]):
                done = subprocess.run(command, capture_output=True, text=True,
                                      check=False)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            cache = (build / "CMakeCache.txt").read_text()
            self.assertIn("FUSOR_TESTS:BOOL=OFF", cache)
            self.assertIn("CMAKE_BUILD_TYPE:STRING=\n", cache)
            commands = json.loads((build / "compile_commands.json").read_text())
            app, = (entry["command"] for entry in commands
                    if entry["file"].endswith("app.cc"))
            self.assertNotIn("-W", app)
            self.assertIn("-std=gnu++20", app)


class FindCudaTest(unittest.TestCase):
    """Packages of a CUDA toolkit must be found by NVIDIA's file names."""

    FILES = ("include/cublasLt.h", "include/cuda_runtime_api.h",
             "include/cudnn_graph.h", "include/nvrtc.h", "lib/libcudnn.so.9",
             "lib/libnvrtc.so.13")
    PACKAGES = ("cublaslt", "cudnn", "nvrtc")

    def found(self, missing=""):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name in self.FILES:
                file = root / "toolkit" / name
                file.parent.mkdir(parents=True, exist_ok=True)
                if name != missing:
                    file.write_text("")
            (root / "CMakeLists.txt").write_text(
                "cmake_minimum_required(VERSION 3.25)\n"
                "project(find LANGUAGES CXX)\n"
                "set(CMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH OFF)\n"
                f"list(APPEND CMAKE_MODULE_PATH {ROOT / 'tools/cmake'})\n"
                f"set(CMAKE_FIND_ROOT_PATH {root})\n"
                "set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)\n"
                "set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)\n"
                f"set(CMAKE_PREFIX_PATH {root / 'toolkit'})\n" + "".join(
                    f"find_package({name} QUIET)\n"
                    f'message(STATUS "{name}: ${{{name}_FOUND}}")\n'
                    for name in self.PACKAGES))
            done = subprocess.run(
                ["cmake", "-G", "Ninja", "-S", folder, "-B", root / "build"],
                capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            return [name for name in self.PACKAGES
                    if f"-- {name}: TRUE" in done.stdout]

    def test_packages_are_found_by_nvidias_names(self):
        self.assertEqual(self.found(), list(self.PACKAGES))
        self.assertEqual(self.found(missing="include/cudnn_graph.h"),
                         ["cublaslt", "nvrtc"])


class BackendsTest(unittest.TestCase):

    def configure(self, backends):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name in ("lacking", "data"):
                (root / name).mkdir()
            (root / "CMakeLists.txt").write_text(
                PROJECT.format(modules=ROOT / "tools/cmake"))
            (root / "lacking/CMakeLists.txt").write_text(LACKING)
            (root / "data/CMakeLists.txt").write_text(
                'message(FATAL_ERROR "data is no backend")')
            return subprocess.run(
                ["cmake", "-G", "Ninja", "-S", folder, "-B", root / "build",
                 f"-DFUSOR_BACKENDS={backends}"],
                capture_output=True, text=True, check=False)

    def test_auto_leaves_out_a_backend_without_its_packages(self):
        result = self.configure("auto")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("Backend lacking: left out, Absent not found",
                      result.stdout)
        self.assertIn("built: []", result.stdout)

    def test_a_backend_asked_for_by_name_must_build(self):
        result = self.configure("lacking")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("Backend lacking: Absent not found", result.stderr)

    def test_an_unknown_backend_is_an_error_that_lists_the_known(self):
        result = self.configure("tpu")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("no backend folder tpu; there are: lacking",
                      " ".join(result.stderr.split()))


if __name__ == "__main__":
    unittest.main()
