#!/usr/bin/env python3
"""Runs the commands in the documents and compares their output with the samples
there.

    doc_samples.py BIN [--update] [--list] [DOCUMENT ...]

BIN is the folder of fusor and rn50. --update rewrites samples that differ,
--list lists all samples. In a document

- a block of commands is fenced with the info string `sh`, or indented and
  starts with a command;
- a sample is any other indented block, and any fenced block without an info
  string. It shows the output (stdout and stderr) of the last command of the
  nearest block of commands before it in the same section;
- a line `...` in a sample stands for any number of lines, `...` within a line
  for any text;
- `<!-- sample: prepare` LINES `-->` before a block of commands are shell lines
  that run before them;
- `<!-- sample: not run, REASON -->` before a sample excludes it.

Each document runs in a scratch folder, from top to bottom, so that a sample may
use the files of the one before. The folder has the programs in build/bin and on
PATH, tools/quickstart.sh with nothing to set up, an image folder DATA if a
command names one, an empty kernel cache, and its own /tmp.

MASKS lists the numbers that vary. All others must be equal on a machine like
MACHINE. On other machines, the library has other layouts and kernels have other
instructions, so only words are compared (ELSEWHERE), and --update is an error.
"""

import argparse
import dataclasses
import difflib
import itertools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENTS = ["README.md", *sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("ir", "passes", "codegen", "models", "runtime", "tools",
                   "tests")
    for path in (ROOT / folder).rglob("*.md")
    # Records of measurements are not documents.
    if "tests/results" not in path.as_posix())]

COMMAND = re.compile(
    r"(\w+=(\"[^\"]*\"|\S*) )*"
    r"((build/bin/)?(fusor|rn50)|bash|python3|sudo|ls|grep|sed|diff|mkdir|tar|"
    r"mpirun|srun|torchrun|torch-venv/\S+|apt-get|\./\S+)( |$)")
# Environment variables that change the programs' behaviour.
FOREIGN = re.compile(
    r"(FUSOR_|OMP_|RANK|WORLD_SIZE|LOCAL_|MASTER_|OMPI_|PMI|SLURM_)")
# Makes ls print as in a terminal.
PRELUDE = 'ls() { command ls -C -T 0 -w 100 "$@"; }\n'
SECONDS = "200"  # limit for the commands of one block

# The machine of the samples, as in `fusor doctor`: instructions and threads,
# and LLVM's name of the CPU.
MACHINE = ("AVX-512 with bf16, 2 threads", "znver5")

NUMBER = r"\d+(?:\.\d+)?(?:e[-+]\d+)?"
# (lines, what varies in them)
MASKS = [(re.compile(lines), re.compile(varies)) for lines, varies in (
    # Times, speeds and shares of times.
    (r"^compile   ", NUMBER + r"(?= |$)"),
    (r"^ +(forward|training|optimize) +\w+ +\d+ ", r"\d+\.\d\d(?=  no|$)"),
    (r"^trained   ", NUMBER + r"(?= s,| images/s)"),
    (r"^time      ", NUMBER + r"(?= %)"),
    (r"^epoch .* iteration ", NUMBER + r"(?= images/s| %)"),
    # The machine.
    (r" on .*, \d+ threads$", r"(?<= on ).*?(?=, AVX)"),
    (r"^ranks     ", r"(?<=: 0-1 on )[^;]+|(?<=:)\d+$"),
    (r"/tmp/fusor-failed-pass-", r"(?<=-)\w{6}$"),
)]
# Parts that depend on the machine: numbers, its name, which steps are slowest, and
# what a pass that runs with AVX2 alone does.
ELSEWHERE = [re.compile(varies) for varies in (
    r"(?<= fuse_contraction ).*",
    r"(?<= )(k_\w+|\w+ by \w+:\w+) at .*", r'(?<=checksum":)".*"',
    r"cpu-a\w+", r"AVX[-\w]*( with bf16)?", "-?" + NUMBER)]


@dataclasses.dataclass
class Block:
    """An indented or fenced block; `start` is the index of its first line."""
    start: int
    lines: list
    indent: str = ""
    info: str = ""
    section: int = 0
    note: str = ""  # comment before it

    @property
    def is_commands(self):
        if self.indent:
            return bool(COMMAND.match(self.lines[0]))
        return self.info == "sh"

    @property
    def is_sample(self):
        return not (self.is_commands or self.info
                    or self.lines[0].startswith("#!"))


@dataclasses.dataclass
class Sample:
    document: str
    block: Block
    commands: list  # None: not run
    problem: str = ""  # why the commands cannot run
    prepare: str = ""

    @property
    def name(self):
        return f"{self.document}:{self.block.start + 1}"


def blocks_of(text):
    """Returns the blocks of a Markdown document, each with the comment before
    it."""
    lines = text.splitlines()
    section, note, i = 0, "", 0
    while i < len(lines):
        line, first = lines[i], i
        if line.startswith("<!--"):
            while "-->" not in lines[i]:
                i += 1
            comment = "\n".join(lines[first:i + 1])
            note = comment.removeprefix("<!--").removesuffix("-->").strip()
        elif line.startswith("```"):
            i += 1
            while lines[i] != "```":
                i += 1
            yield Block(first + 1, lines[first + 1:i], "", line[3:], section,
                        note)
            note = ""
        elif line.startswith("    ") and (i == 0 or not lines[i - 1]):
            while i + 1 < len(lines) and (lines[i + 1].startswith("    ")):
                i += 1
            yield Block(first, [each[4:] for each in lines[first:i + 1]],
                        "    ", "", section, note)
            note = ""
        elif line:
            section += line.startswith("#")
            note = ""
        i += 1


def split_commands(lines):
    """Splits a block into commands, with continuation lines and here
    documents."""
    commands, end = [], None
    for line in lines:
        if end or (commands and commands[-1].endswith("\\")):
            commands[-1] += "\n" + line
        elif line:
            commands.append(line)
        here = re.search(r"<<'(\w+)'", line)
        if here:
            end = here[1]
        elif line == end:
            end = None
    return commands


def samples_of(document, text):
    """Returns the samples of a document in order."""
    commands = None
    for block in blocks_of(text):
        if block.is_commands:
            commands = block
        if not block.is_sample:
            continue
        sample = Sample(document, block, None)
        if not re.match(r"sample: not run, \w", block.note):
            if commands is None or commands.section != block.section:
                sample.problem = ("no commands before it in its section, and "
                                  "no comment `<!-- sample: not run, REASON "
                                  "-->`")
            else:
                sample.commands = split_commands(commands.lines)
                sample.prepare = commands.note.removeprefix("sample: prepare")
                if sample.prepare == commands.note:
                    sample.prepare = ""
        yield sample


class Scratch:
    """A folder in which a document's commands run."""

    def __init__(self, folder, programs):
        self.folder = folder
        for name in ("build", "tools", "tmp"):
            (folder / name).mkdir()
        (folder / "build/bin").symlink_to(programs)
        shutil.copy(ROOT / "tools/quickstart.sh", folder / "tools")
        (folder / "tools/setup.sh").write_text("")
        self.environment = {
            **{name: value for name, value in os.environ.items()
               if not FOREIGN.match(name)},
            "PATH": f"{programs}:{os.environ['PATH']}",
            "FUSOR_CACHE_DIR": str(folder / "cache"),
            "OMP_WAIT_POLICY": "passive", "TMPDIR": str(folder / "tmp")}
        self.outputs = {}

    def output(self, sample):
        """Returns the lines that the sample's last command prints. Runs it
        once for all samples of its block."""
        words = (sample.prepare, *sample.commands)
        if words not in self.outputs:
            if any("DATA" in command.split() for command in sample.commands):
                self.make_data()
            mark = "the output of the last command begins here"
            *before, last = sample.commands
            script = "\n".join((PRELUDE, sample.prepare, *before,
                                f"echo '{mark}'", last))
            text = self.run(script)
            self.outputs[words] = text.split(mark + "\n")[-1].splitlines()
        return self.outputs[words]

    def run(self, script):
        temporary = f"{self.folder}/tmp/"
        result = subprocess.run(
            ["timeout", SECONDS, "bash", "-c",
             re.sub(r"(?<!\w)/tmp/", temporary, script)],
            cwd=self.folder, env=self.environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, check=False)
        failed = re.search(r"^fusor: ", result.stdout, re.MULTILINE)
        if bool(result.returncode) != bool(failed):
            raise AssertionError(f"exit code {result.returncode}:\n"
                                 f"{result.stdout}")
        return result.stdout.replace(temporary, "/tmp/")

    def make_data(self):
        if not (self.folder / "DATA").exists():
            self.run("fusor data make-samples --out DATA --train-images 8 "
                     "--val-images 2")


def segments_of(lines):
    """Returns the segments between lines `...`."""
    segments = [[]]
    for line in lines:
        if line.strip() == "...":
            segments.append([])
        else:
            segments[-1].append(line)
    return segments


class Comparison:
    """Compares samples with outputs. `exact` also compares numbers."""

    def __init__(self, exact):
        self.exact = exact

    def masked(self, line):
        """Returns the line without what varies: numbers, and the column widths
        that depend on them."""
        for lines, varies in MASKS:
            if lines.search(line):
                line = varies.sub("#", line)
        if not self.exact:
            for varies in ELSEWHERE:
                line = varies.sub("#", line)
        return re.sub(r"\s+", " ", line).rstrip()

    def same(self, sample, line):
        """Returns whether a line of a sample matches a line of the output."""
        parts = map(re.escape, self.masked(sample).split("..."))
        return re.fullmatch(".*".join(parts), self.masked(line)) is not None

    def all_same(self, segment, lines):
        return len(segment) == len(lines) and all(
            map(self.same, segment, lines))

    def likeness(self, segment, lines):
        return sum(difflib.SequenceMatcher(
            None, self.masked(a), self.masked(b)).ratio()
                   for a, b in zip(segment, lines))

    def find(self, segment, output, at_start, at_end):
        """Returns (first, end) of the output's lines that match the segment,
        or of the most similar lines."""
        count = len(segment)
        if at_start and at_end:
            return 0, len(output)
        last = max(len(output) - count, 0)
        places = [0] if at_start else [last] if at_end else range(last + 1)
        for first in places:
            if self.all_same(segment, output[first:first + count]):
                break
        else:
            first = max(places, key=lambda place: self.likeness(
                segment, output[place:place + count]))
        return first, min(first + count, len(output))

    def fresh(self, sample, output):
        """Returns the corrected sample. Keeps segments that differ only in
        what varies."""
        segments = segments_of(sample)
        elisions = [line for line in sample if line.strip() == "..."]
        lines, place = [], 0
        for i, segment in enumerate(segments):
            if i:
                lines.append(elisions[i - 1])
            if not segment and elisions:
                continue
            first, end = self.find(segment, output[place:], i == 0,
                                   i == len(segments) - 1)
            news = output[place + first:place + end]
            lines += (segment if self.all_same(segment, news) else
                      self.elided(segment, news))
            place += end
        return lines

    def elided(self, segment, news):
        """Returns the new lines. Keeps those with `...` inside if they still
        match."""
        kept = [line for line in segment if "..." in line]
        return [next((old for old in kept if self.same(old, line)), line)
                for line in news]


def difference(sample, lines):
    return "\n".join(itertools.islice(difflib.unified_diff(
        sample, lines, "sample", "output", lineterm="", n=1), 60))


def is_machine_of_samples(programs):
    doctor = subprocess.run([programs / "fusor", "doctor"], text=True,
                            capture_output=True, check=True).stdout
    return all(re.search(rf"^cpu: .*\b{word}\b", doctor, re.MULTILINE)
               for word in MACHINE)


def check_document(document, programs, exact, report):
    """Calls report(sample, lines) with the correct lines of each sample, or
    with the AssertionError. Returns the text with correct samples."""
    text = (ROOT / document).read_text()
    comparison = Comparison(exact)
    lines = text.splitlines()
    shift = 0
    with tempfile.TemporaryDirectory() as name:
        scratch = Scratch(pathlib.Path(name).resolve(), programs)
        for sample in samples_of(document, text):
            try:
                if sample.problem:
                    raise AssertionError(sample.problem)
                if sample.commands is None:
                    continue
                news = comparison.fresh(sample.block.lines,
                                        scratch.output(sample))
            except AssertionError as error:
                report(sample, error)
                continue
            report(sample, news)
            block = sample.block
            start = block.start + shift
            lines[start:start + len(block.lines)] = [
                (block.indent + line).rstrip() for line in news]
            shift += len(news) - len(block.lines)
    return "\n".join(lines) + "\n"


def list_samples(document):
    for sample in samples_of(document, (ROOT / document).read_text()):
        what = sample.problem or (sample.block.note if sample.commands is None
                                  else sample.commands[-1])
        print(f"{sample.name}: {what}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("documents", nargs="*", default=DOCUMENTS)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    programs = arguments.bin.resolve()
    exact = is_machine_of_samples(programs)
    if arguments.update and not exact:
        parser.error(f"--update: expected a machine with {MACHINE}, got the "
                     "one that `fusor doctor` shows; edit MACHINE to move all "
                     "samples to it")
    differs = False

    def report(sample, news):
        nonlocal differs
        if news == sample.block.lines:
            return
        differs = True
        print(f"{sample.name}: {sample.commands and sample.commands[-1]}")
        print(news if isinstance(news, AssertionError)
              else difference(sample.block.lines, news), flush=True)

    for document in arguments.documents:
        if arguments.list:
            list_samples(document)
            continue
        text = check_document(document, programs, exact, report)
        if arguments.update:
            (ROOT / document).write_text(text)
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main())
