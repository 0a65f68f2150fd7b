"""fusor.train, and what it returns."""

import contextlib
import json
import os
import tempfile
import typing

from fusor import torch_export
from fusor._fusor import Builder, EvalReport, StepReport, TrainingRun
from fusor.errors import Error
from fusor.optimizers import Optimizer, keywords_of
from fusor.step import Model

OnStep = typing.Callable[[StepReport], object]
OnEvaluation = typing.Callable[[int, EvalReport], object]


class Training:
    """A training run that has ended. fusor.train returns it.

    data: the numbers of the run. Keys are those of `fusor train --json`:
        losses, evaluations, step_ms, images_per_second, ...
    """

    def __init__(self, run: TrainingRun,
                 template: torch_export.StateDict | None = None) -> None:
        self._run = run
        self._template = template
        self.data: dict[str, typing.Any] = json.loads(run.result()) or {}

    @property
    def losses(self) -> list[float]:
        """The loss of each step."""
        return self.data.get("losses", [])

    @property
    def evaluations(self) -> list[dict[str, float]]:
        """Images, loss, top1 and top5 (0 to 1) of each evaluation."""
        return self.data.get("evaluations", [])

    def state_dict(self, framework: str | None = None) -> dict[str, typing.Any]:
        """Return the trained state; see Step.state_dict."""
        return torch_export.state_dict(
            self._run.state(), framework, self._template,
            self.data.get("last_step", 0))

    def save_weights(self, path: str | os.PathLike[str]) -> None:
        """Save the state_dict as safetensors, with torchvision's names."""
        self._run.save_weights(os.fspath(path))

    def __repr__(self) -> str:
        losses = self.losses
        ends = f", loss {losses[0]:.4f} -> {losses[-1]:.4f}" if losses else ""
        return f"<fusor.Training {len(losses)} steps{ends}>"


@contextlib.contextmanager
def model_file(model: Model, options: dict[str, typing.Any],
               ) -> typing.Iterator[str]:
    """Yield the name or path of a model, written to a temporary file if it is
    an object."""
    if torch_export.is_model(model):
        import numpy

        size = options.get("image_size") or 224
        shape = (options.get("batch_size") or 32, 3, size, size)
        with torch_export.Export(
                model, [numpy.zeros(shape, numpy.float32)]) as path:
            yield path
    elif isinstance(model, Builder):
        with tempfile.TemporaryDirectory(prefix="fusor-") as folder:
            path = os.path.join(folder, f"{model.name}.txt")
            with open(path, "w", encoding="utf-8") as file:
                file.write(str(model))
            yield path
    elif isinstance(model, (str, os.PathLike)):
        yield os.fspath(model)
    else:
        raise Error(
            "model: expected a name, a path, a fusor.Builder, a "
            "torch.nn.Module or an ExportedProgram, got "
            f"{type(model).__name__}")


def train(model: Model, data: str | os.PathLike[str] | None = None, *,
          optimizer: Optimizer | None = None, on_step: OnStep | None = None,
          on_evaluation: OnEvaluation | None = None, verbose: bool = True,
          **options: typing.Any) -> Training:
    """Train on a data set, as `fusor train` does.

    fusor.train("resnet18", "imagenet", batch_size=64, amp=True, epochs=90,
                optimizer=fusor.SGD(lr=0.1, momentum=0.9), workspace="out")

    model: as for fusor.compile, or the path of a program file, which nothing is
        compiled for. A module is exported for batch_size (32) and image_size
        (224); pass an ExportedProgram if its inputs are no images. A graph of a
        Builder has inputs images, uint8 [N, S, S, 3] or float32 [N, 3, S, S],
        and labels, integers [N].
    data: the data set: a folder of images, or files of another format that
        `fusor train` takes. Or none, with synthetic=True.
    optimizer: default SGD with the momentum and weight decay of `fusor train`,
        0.9 and 1e-4.
    on_step: called with a StepReport after each step.
    on_evaluation: called with the epoch and an EvalReport after each
        evaluation.
    verbose: print the lines of `fusor train`.
    options: the other flags of `fusor train`, with _ for -: epochs=2,
        workers=2, auto_augment="ra", workspace="out", resume="auto",
        dynamic_loss_scale=True, recipe="timm-a1", log_jsonl="log.jsonl", ...
        A program file takes the flags of `fusor run`.

    Started by torchrun, mpirun or another launcher, trains with its ranks. If
    a rank is lost, this process ends with exit code 75. Raises Error. Ctrl-C
    ends the run after the current step and a checkpoint in the workspace.
    Exceptions of callbacks end it at once.
    """
    keywords = keywords_of(optimizer, options)
    with model_file(model, options) as path:
        run = TrainingRun(path, "" if data is None else os.fspath(data),
                          keywords, on_step, on_evaluation, verbose)
    template = None
    if torch_export.is_model(model):
        template = torch_export.StateDict(model, run.state_names())
    return Training(run, template)
