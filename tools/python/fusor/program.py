"""The program fusor of the command line, which the wheel contains."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import typing

from fusor._fusor import model_word
from fusor.errors import Error
from fusor.training import model_file

# Commands that have no --json.
_WITHOUT_JSON = ("data convert", "doctor", "exec", "export", "launch")


class Result:
    """What a command printed and wrote.

    text: its lines.
    data: what --json writes; see the command's documentation. {} if the command
        has no --json.
    code: 0, or 1 if the command found what it looked for, a difference or a
        fault.
    """

    def __init__(self, text: str, data: dict[str, typing.Any],
                 code: int) -> None:
        self.text = text
        self.data = data
        self.code = code

    def __repr__(self) -> str:
        return self.text


def path() -> pathlib.Path:
    """Return the path of the program: in the wheel, or in the build folder."""
    package = pathlib.Path(__file__).parent
    own = package / "bin/fusor"
    return own if own.exists() else package.parents[1] / "bin/fusor"


def _words(options: dict[str, typing.Any]) -> typing.Iterator[str]:
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            yield flag
        elif isinstance(value, (list, tuple)):
            yield from (f"{flag}={item}" for item in value)
        elif value is not None and value is not False:
            yield f"{flag}={value}"


def command(name: str, *arguments: str | os.PathLike[str],
            model: typing.Any = None, **options: typing.Any) -> Result:
    """Run a command of the program fusor in a process of its own.

    fusor.command("bisect", model="resnet20-cifar", batch_size=2)
    fusor.command("predict", "cat.jpg", model="model.pt2").data["predictions"]

    name: "bisect", "isolate", "dump", "plan", "predict", "bench", ...
    arguments: those without a flag.
    model: as for fusor.compile; a torch.nn.Module also needs batch_size and
        image_size if they are not 32 and 224.
    options: flags, with _ for -: True for a flag without a value.

    Raises Error, with the exit code and the last line of the program's errors,
    if the command fails. Ctrl-C ends the command, too.
    """
    words = [str(path()), name, *map(os.fspath, arguments)]
    with tempfile.TemporaryDirectory(prefix="fusor-") as folder:
        output = pathlib.Path(folder) / "result.json"
        if not " ".join(words[1:]).startswith(_WITHOUT_JSON):
            words.append(f"--json={output}")
        if model is None:
            words += _words(options)
            done = _run(words)
        else:
            with model_file(model, options) as file:
                words += [*_words(options), model_word(file)]
                done = _run(words)
        if done.returncode not in (0, 1):
            lines = done.stderr.strip().splitlines() or [f"fusor {name} failed"]
            error = Error(lines[-1].removeprefix("fusor: "))
            error.code = done.returncode
            raise error
        data = json.loads(output.read_text()) if output.exists() else {}
    return Result(done.stdout, data, done.returncode)


def _run(words: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, capture_output=True, text=True, check=False)


def main() -> None:
    """Replace this process by the program, with the same arguments."""
    os.execv(path(), ["fusor", *sys.argv[1:]])
