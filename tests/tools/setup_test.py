"""Tests tools/setup.sh with recorded fakes of the package manager and CMake:
what it calls, what it does not call twice, and its messages on failure."""

import contextlib
import os
import pathlib
import pty
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Answers like dpkg-query for all requested packages except those in $ABSENT.
DPKG_QUERY = r"""
for name in "${@:4}"; do
  [[ " $ABSENT " == *" $name "* ]] || echo "installed $name"
done
"""

CMAKE = r"""
if [[ $1 == --preset ]]; then touch build/build.ninja; fi
if [[ $1 == --build ]]; then echo "ninja: no work to do."; fi
"""


# Creates the folder of `python3 -m venv FOLDER` with a python that records its
# calls.
PYTHON = r"""
mkdir -p "$3/bin"
printf '#!/bin/bash\necho "pip $*" >>"$CALLS"\n' >"$3/bin/python"
chmod +x "$3/bin/python"
"""


class SetupTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "tools").mkdir()
        (self.root / "bin").mkdir()
        shutil.copy(ROOT / "tools/setup.sh", self.root / "tools")
        self.fake("dpkg-query", DPKG_QUERY)
        self.fake("apt-get", "")
        self.fake("sudo", 'exec "$@"')
        self.fake("cmake", CMAKE)
        self.fake("python3", PYTHON)

    def fake(self, name, body):
        """Puts a program on the path that records its calls and then runs
        `body`."""
        file = self.root / "bin" / name
        file.write_text(f'#!/bin/bash\necho "{name} $*" >>"$CALLS"\n{body}')
        file.chmod(0o755)

    def setup(self, *arguments, absent="", stderr=subprocess.PIPE):
        calls = self.root / "calls"
        calls.write_text("")
        environment = dict(
            os.environ, CALLS=str(calls), ABSENT=absent,
            PATH=f"{self.root}/bin:{os.environ['PATH']}")
        result = subprocess.run(
            ["bash", self.root / "tools/setup.sh", *arguments],
            env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True,
            check=False)
        self.calls = [c for c in calls.read_text().splitlines()
                      if not c.startswith("sudo")]
        return result

    def called(self, program, *words):
        return [c for c in self.calls if c.split()[0] == program
                and all(w in c.split() for w in words)]

    def test_nothing_is_installed_when_all_is_there(self):
        result = self.setup()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.called("apt-get"), [])
        self.assertRegex(result.stderr, r"packages +all \d+ present \(\d+ s\)")

    def test_one_update_then_only_missing_packages_are_installed(self):
        result = self.setup(absent="lld libgloo-dev")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(self.called("apt-get", "update")), 1)
        install = self.called("apt-get", "install")
        self.assertEqual(len(install), 1)
        self.assertTrue(install[0].endswith(" libgloo-dev lld"), install)

    def test_the_first_run_configures_and_the_second_does_not(self):
        self.setup()
        self.assertEqual(len(self.called("cmake", "--preset", "default")), 1)
        result = self.setup()
        self.assertEqual(self.called("cmake", "--preset"), [])
        self.assertEqual(len(self.called("cmake", "--build")), 1)
        self.assertRegex(result.stderr, r"build +up to date")

    def test_a_moved_tree_is_configured_again(self):
        self.setup()
        cache = self.root / "build/CMakeCache.txt"
        for home, calls in ((self.root, 0), ("/elsewhere", 1)):
            cache.write_text(f"CMAKE_HOME_DIRECTORY:INTERNAL={home}\n")
            result = self.setup()
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(len(self.called("cmake", "--preset")), calls)
        self.assertFalse(cache.exists())

    def test_a_terminal_shows_the_progress_of_the_build(self):
        self.fake("cmake", CMAKE.replace("ninja: no work to do.",
                                         "[1/2] A\\n[2/2] B").replace(
                                             'echo "[', 'echo -e "['))
        ours, theirs = pty.openpty()
        self.addCleanup(os.close, ours)
        self.setup(stderr=theirs)
        os.close(theirs)
        text = b""
        # The end of a terminal without writers is an error.
        with contextlib.suppress(OSError):
            while part := os.read(ours, 4096):
                text += part
        self.assertIn(
            "\rbuild      1/2 \rbuild      2/2 \rbuild      done", text.decode())
        result = self.setup()
        self.assertNotIn("2/2", result.stderr)
        self.assertIn("2/2", (self.root / "build/setup.log").read_text())

    def test_named_targets_are_built(self):
        self.setup("programs")
        self.assertEqual(
            len(self.called("cmake", "--build", "--target", "programs")), 1)

    def test_pythons_packages_are_installed_once_and_not_for_programs(self):
        result = self.setup("programs")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.called("python3"), [])
        for calls in (1, 0):
            result = self.setup()
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(
                len(self.called("python3", "venv", f"{self.root}/build/venv")),
                calls)
            self.assertEqual(len(self.called("pip", "install", "-q")), calls)
            # build/ was configured only for the programs. The Python package
            # needs it configured again.
            self.assertEqual(len(self.called("cmake", "--preset")), calls)

    def test_failing_pip_stops_with_the_reason(self):
        self.fake("python3", "echo no ensurepip; exit 1")
        result = self.setup()
        self.assertEqual(result.returncode, 1)
        self.assertIn("no ensurepip", result.stderr)
        self.assertRegex(result.stderr.splitlines()[-1],
                         "^error: python: pip could not install ipykernel")
        self.assertEqual(self.called("cmake"), [])

    def test_with_cuda_the_first_time_it_is_found_and_configured(self):
        script = self.root / "tools/install_cuda.sh"
        script.write_text('echo "install_cuda $*" >>"$CALLS"; echo "/a;/b"\n')
        self.setup()
        for calls in (1, 0):
            result = self.setup("--cuda", "programs")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(self.called("install_cuda"), [
                f"install_cuda {self.root}/build/cuda "
                f"{self.root}/build/setup.log"])
            self.assertEqual(len(self.called(
                "cmake", "--preset", "-DFUSOR_BACKENDS=cpu;cuda;null",
                "-DCMAKE_PREFIX_PATH=/a;/b")), calls)
            self.assertEqual(
                len(self.called("cmake", "--build", "programs")), 1)

    def test_failing_install_of_cuda_stops_with_its_line_alone(self):
        (self.root / "tools/install_cuda.sh").write_text(
            "echo error: cuda: no space >&2; exit 1")
        result = self.setup("--cuda")
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr.splitlines()[-1],
                         "error: cuda: no space")
        self.assertEqual(self.called("cmake"), [])

    def test_failing_install_shows_the_log_and_the_reason_last(self):
        self.fake("apt-get",
                      "echo E: no such package\n[[ $* != *install* ]]")
        result = self.setup(absent="lld")
        self.assertEqual(result.returncode, 1)
        self.assertIn("E: no such package", result.stderr)
        self.assertEqual(result.stderr.splitlines()[-1],
                         "error: packages: apt-get could not install lld")
        self.assertEqual(self.called("cmake"), [])

    def test_failing_configuration_stops_before_the_build(self):
        self.fake("cmake", "echo CMake Error: broken; exit 1")
        result = self.setup()
        self.assertEqual(result.returncode, 1)
        self.assertIn("CMake Error: broken", result.stderr)
        self.assertEqual(result.stderr.splitlines()[-1],
                         "error: configure: CMake failed")
        self.assertEqual(self.called("cmake", "--build"), [])


if __name__ == "__main__":
    unittest.main()
