"""Tests manual pages and shell completions, which make_manual writes from the
flags: manual_test.py FUSOR."""

import os
import pathlib
import pty
import re
import select
import subprocess
import sys
import tempfile
import time
import unittest

BIN = pathlib.Path(sys.argv.pop(1)).resolve().parent
ROOT = pathlib.Path(__file__).resolve().parents[2]

# A line and the words that each shell must offer after it.
COMPLETIONS = [
    ("fusor tr", {"train"}),
    ("fusor train --fus", {"--fusion", "--fusion-rounding"}),
    ("fusor train --fusion ", {"on", "off"}),
    ("fusor data decode --o", {"--out"}),
    ("fusor data d", {"decode"}),
    ("fusor plan -a vgg16", {"vgg16", "vgg16-bn"}),
    ("rn50 --optimizer la", {"lars", "lamb"}),
]


def run(*command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True,
                          text=True, check=False, **options)
    return done


class ManualTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        done = run(BIN / "make_manual", cls.folder)
        assert done.returncode == 0, done.stderr

    def page(self, name):
        """Returns the page as on a terminal, without hyphenation."""
        source = (self.folder / "man1" / f"{name}.1").read_text()
        done = run("groff", "-man", "-Tutf8", "-ww", "-P-cbou", "-rHY=0",
                   "-rLL=200n", self.folder / "man1" / f"{name}.1")
        self.assertEqual(done.stderr, "", source[:500])
        return done.stdout

    def test_every_command_has_a_page_with_all_its_flags(self):
        commands = re.findall(r"^  ([a-z]\S*) {2,}", run(BIN / "fusor", "--help")
                              .stdout, re.M)
        self.assertGreater(len(commands), 15)
        for command in commands:
            text = run(BIN / "fusor", command, "--help").stdout
            flags = re.findall(r"^  (?:-\w,)?(--[a-z][\w-]*)", text, re.M)
            page = self.page(f"fusor-{command}")
            self.assertIn("--help", flags)
            for flag in flags:
                self.assertTrue(re.search(rf"(?m)^ .*{flag}\b", page),
                                f"{command} {flag}")
        self.assertIn("--cuda-graph", self.page("rn50"))

    def test_the_exit_codes_are_those_of_the_readme(self):
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        table = readme.split("\n## Exit codes\n")[1].split("\n## ")[0]
        page = self.page("fusor").split("EXIT STATUS")[1]
        rows = re.findall(r"^\| (\d+\S*) \| (.*) \|$", table, re.M)
        self.assertGreater(len(rows), 10)
        for code, meaning in rows:
            plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1",
                           meaning).replace("`", "")
            self.assertTrue(re.search(
                rf"(?m)^ +{re.escape(code)} +{re.escape(plain)}$", page), code)

    def test_bash(self):
        for line, expected in COMPLETIONS:
            words = line.split(" ")
            script = (f"source {self.folder}/bash/{words[0]}; "
                      f"COMP_WORDS=({' '.join(w or chr(39) * 2 for w in words)}); "
                      f"COMP_CWORD={len(words) - 1}; _{words[0]}; "
                      'printf "%s\\n" "${COMPREPLY[@]}"')
            done = run("bash", "-c", script)
            self.assertEqual((set(done.stdout.split()), done.stderr),
                             (expected, ""), line)

    def test_bash_takes_values_after_an_equals_sign(self):
        script = (f"source {self.folder}/bash/fusor; "
                  "COMP_WORDS=(fusor train --fusion = o); COMP_CWORD=4; _fusor; "
                  'echo "${COMPREPLY[@]}"')
        self.assertEqual(run("bash", "-c", script).stdout.split(), ["on", "off"])

    def test_fish(self):
        for line, expected in COMPLETIONS:
            program = line.split()[0]
            done = run("fish", "--no-config", "-c",
                       f"source {self.folder}/fish/{program}.fish; "
                       f"complete -C '{line}'", env=dict(
                           os.environ, HOME=str(self.folder)))
            self.assertEqual((set(re.findall(r"^\S+", done.stdout, re.M)),
                              done.stderr), (expected, ""), line)

    def test_zsh(self):
        for line, expected in COMPLETIONS:
            self.complete_in_zsh(line, expected)

    def complete_in_zsh(self, line, expected):
        """Presses Tab twice after the line. All offered words must appear."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ.update(TERM="dumb", HOME=str(self.folder))
            os.execvp("zsh", ["zsh", "-f"])
        shown = ""
        deadline = time.monotonic() + 60

        def read_until(found):
            nonlocal shown
            while not found() and time.monotonic() < deadline:
                if select.select([terminal], [], [], 0.1)[0]:
                    shown += os.read(terminal, 4096).decode(errors="replace")
            self.assertTrue(found(), f"{line}: {shown!r}")

        os.write(terminal, (
            f"fpath=({self.folder}/zsh $fpath); autoload -U compinit; "
            "compinit -u -D; zstyle ':completion:*' insert-tab false; "
            'PS1="rea""dy "\n').encode())
        read_until(lambda: "ready " in shown)
        shown = ""
        os.write(terminal, f"{line}\t\t".encode())
        read_until(lambda: all(re.search(rf"{word}(?![\w-])", shown)
                               for word in expected))
        os.close(terminal)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    unittest.main()
