"""fusor.compile, fusor.compare and the compiled step."""

import json
import math
import os
import typing
import weakref

from fusor import torch_export
from fusor._fusor import Builder, TrainingStep
from fusor._fusor import compare as _compare
from fusor.errors import Error
from fusor.optimizers import SGD, Optimizer, keywords_of
from fusor.reports import Report

# A built-in model's name, the path of a .pt2, .onnx, IR text or protobuf file,
# a Builder, a torch.nn.Module or a torch.export.ExportedProgram.
Model = typing.Any
# A numpy array, a PyTorch tensor or any other with __dlpack__, in CPU memory.
Array = typing.Any


class Step:
    """A compiled training step with its state. fusor.compile returns it.

    loss = step(images, labels) runs forward pass, backward pass and update on
    one batch. One thread uses a step at a time.
    """

    def __init__(self, step: TrainingStep,
                 state_dict: torch_export.StateDict | None = None) -> None:
        self._step = step
        self._state_dict = state_dict
        if step.world_size > 1:
            weakref.finalize(self, step.leave)  # at the latest at exit

    def __call__(self, *batch: Array, **named: Array) -> float:
        """Run one training step and return its loss.

        One array per data input, in order or by name, in the shapes and dtypes
        of `inputs`: images, uint8 [N, S, S, 3] or float32 [N, 3, S, S], and
        labels, integers [N]; or other inputs and their target, such as tokens
        [N, T], a mask, and labels [N, T], of which those of -100 do not count.
        Contiguous arrays are copied once, into the
        step's memory; others are made contiguous first. Raises Error for arrays
        that do not fit; the state is unchanged then.
        """
        return self._step.run(*batch, **named)

    @property
    def inputs(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """Name, dtype and shape of each data input."""
        return self._step.inputs

    @property
    def lr(self) -> float:
        """Learning rate of the next steps. Set it to follow a schedule."""
        return self._step.lr

    @lr.setter
    def lr(self, lr: float) -> None:
        self._step.lr = lr

    @property
    def steps(self) -> int:
        """Training steps done."""
        return self._step.steps

    @property
    def device(self) -> str:
        """The device, with its number of threads."""
        return self._step.device

    @property
    def rank(self) -> int:
        """Number of this process among the ranks, from 0."""
        return self._step.rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._step.world_size

    def output(self, name: str) -> typing.Any:
        """Return an output of the last step as a numpy array, float32."""
        return self._step.output(name)

    def evaluate(self, *batch: Array, **named: Array) -> dict[str, float]:
        """Evaluate a batch of at most the compiled size.

        Takes the arrays of a training step. Uses the running statistics, and
        the averages of the weights if the step keeps them (ema_decay). Returns
        the mean loss and, if targets are labels, the shares of labels, from 0
        to 1, that are the top class (top1) or among the first five (top5). The
        first call compiles. A graph of a Builder or a file has no form for
        evaluation: raises Error.
        """
        return _means(self._step.evaluate(*batch, **named))

    def evaluate_dataset(self, data: str | os.PathLike[str],
                         **options: typing.Any) -> dict[str, float]:
        """Evaluate every image of a data set once, as `fusor eval` does.

        data: a folder of images, or files of another format that `fusor train`
            takes; safetensors files if the step reads tensors.
        options: split="val" or "train", workers, prefetch, bad_record,
            val_transform, val_resize_size.

        Returns images, their number, and what evaluate does. A step of a
        classifier must take uint8 images. Ctrl-C stops after the current batch.
        """
        result = self._step.evaluate_data(os.fspath(data), options)
        return {"images": result[0], **_means(result)}

    def predict(self, *inputs: Array, **named: Array) -> typing.Any:
        """Return the logits of inputs without target; see evaluate.

        The result is a numpy array, float32 [N, C] or [N, C, ...].
        """
        return self._step.predict(*inputs, **named)

    def state_dict(self, framework: str | None = None) -> dict[str, typing.Any]:
        """Return parameters and running statistics by name, float32.

        framework: "numpy" or "torch"; default: torch if the model was a PyTorch
        object, otherwise numpy. Then model.load_state_dict(step.state_dict())
        loads the weights into the PyTorch model.
        """
        return torch_export.state_dict(self._step.state(), framework,
                                       self._state_dict, self.steps)

    def load_state_dict(self, state: typing.Mapping[str, Array],
                        strict: bool = True) -> None:
        """Set parameters and running statistics; keep the optimizer's state.

        With strict, raises Error unless the names are those of state_dict;
        nothing changes then. Otherwise ignores unknown names and keeps the
        values of missing ones. Floats of any width are converted.
        """
        own = self._step.state_names()
        arrays = {name: value.detach() if hasattr(value, "detach") else value
                  for name, value in state.items()
                  if self._state_dict is None or name in own
                  or not self._state_dict.ignores(name)}
        self._step.load_state(arrays, strict)

    def save_weights(self, path: str | os.PathLike[str]) -> None:
        """Save the state_dict as safetensors, with torchvision's names."""
        self._step.save_weights(os.fspath(path))

    def load_weights(self, path: str | os.PathLike[str]) -> None:
        """Load weights that save_weights or `fusor train` wrote."""
        self._step.load_weights(os.fspath(path))

    def save_program(self, path: str | os.PathLike[str]) -> None:
        """Save the compiled step and its evaluation, without the state.

        load_program loads the file on the same kind of machine, without
        compiling. If the step takes uint8 images, fusor.train and `fusor run`
        take the file, too. The file holds no machine code.
        """
        self._step.save_program(os.fspath(path))

    def save_checkpoint(self, folder: str | os.PathLike[str],
                        keep: int = 3) -> str:
        """Save all state of training, and return the checkpoint's path.

        Writes parameters, running statistics, the optimizer's state and the
        number of steps, but not `lr`, to a new folder in `folder`, and keeps
        the newest `keep` ones (0: all). A crash leaves the earlier ones intact.
        """
        return self._step.save_checkpoint(os.fspath(folder), keep)

    def load_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Restore a checkpoint, so that training continues with equal bits.

        path: what save_checkpoint returned, or its folder, of which the newest
        intact checkpoint is taken. Raises Error for a checkpoint of another
        model, optimizer or seed; nothing changes then.
        """
        self._step.load_checkpoint(os.fspath(path))

    def report(self, top: int = 15) -> Report:
        """Return what the step costs: kernels, memory, estimated times.

        top: number of longest kernels and library calls to list.
        """
        text, page, data = self._step.report(top)
        return Report(text, page, json.loads(data))

    def __repr__(self) -> str:
        inputs = ", ".join(
            f"{name} {dtype}{list(shape)}"
            for name, dtype, shape in self.inputs)
        return f"<fusor.Step {self._step.model}({inputs}), {self.steps} steps>"


def _means(result: tuple[int, float, float, float]) -> dict[str, float]:
    _, loss, top1, top5 = result
    if math.isnan(top1):
        return {"loss": loss}
    return {"loss": loss, "top1": top1, "top5": top5}


def _example(example: typing.Any) -> list[Array]:
    if example is None:
        return []
    if isinstance(example, (list, tuple)):
        return list(example)
    return [example]


def _source(model: Model) -> str | Builder:
    if isinstance(model, Builder):
        return model
    if isinstance(model, (str, os.PathLike)):
        return os.fspath(model)
    raise Error(
        "model: expected a name, a path, a fusor.Builder, a torch.nn.Module or "
        f"an ExportedProgram, got {type(model).__name__}")


def compile(model: Model, example: typing.Any = None, *,
            optimizer: Optimizer | None = None, ranks: bool = False,
            **options: typing.Any) -> Step:
    """Compile a training step: forward pass, loss, backward pass and update.

    model: the name of a built-in model (fusor.models()), the path of a file
        that torch.export.save (.pt2), an exporter of ONNX's format (.onnx) or
        fusor wrote, a fusor.Builder, a torch.nn.Module or an
        ExportedProgram. A module is exported in its present mode: call its
        train() first.
    example: images, or (images, labels), of the batches to come. Images,
        uint8 [N, S, S, 3] or float32 [N, 3, S, S], determine batch size and
        image size; the step normalises bytes, and takes floats as they are. For
        models that do not classify images: the inputs, and then the target,
        such as (tokens, mask, labels). A torch.nn.Module requires an example,
        with a target if it has optional arguments.
    optimizer: default SGD(lr=0.1).
    ranks: train with all processes that torchrun, mpirun or another launcher
        has started: gradients are averaged over ranks. Each rank passes its
        own batch, of equal size. All ranks call the same functions of the step.
        Losses and evaluations are means over ranks; rank 0 writes checkpoints.
        If a rank is lost, this process ends with exit code 75. Without a
        launcher, the step has one rank.
    options: the flags of `fusor train` for models, compilation, loss scale and
        dumps, with _ for -: batch_size=32, num_classes=10, amp=True,
        fusion="off", threads=2, clip_grad_norm=1.0, ema_decay=0.999,
        dump_to="dump", seed=0, ...

    Initialises the parameters from the archive or the module, otherwise from
    the seed. Raises Error. Ctrl-C stops the compilation.
    """
    keywords = keywords_of(optimizer or SGD(), options)
    arrays = _example(example)
    if not torch_export.is_model(model):
        return Step(TrainingStep(_source(model), arrays, keywords, ranks))
    with torch_export.Export(model, arrays) as path:
        step = TrainingStep(path, arrays, keywords, ranks)
    return Step(step, torch_export.StateDict(model, step.state_names()))


def load_program(path: str | os.PathLike[str]) -> Step:
    """Load a step that Step.save_program or `fusor compile --output` wrote.

    Its state is initialised from the seed; load_weights or load_checkpoint
    restore another. Raises Error on another kind of machine, for another
    version of fusor, and for a step of several ranks.
    """
    return Step(TrainingStep.load_program(os.fspath(path)))


def compare(model: Model, example: typing.Any = None, *,
            a: typing.Mapping[str, typing.Any],
            b: typing.Mapping[str, typing.Any]
            | typing.Sequence[typing.Mapping[str, typing.Any]],
            optimizer: Optimizer | None = None, rounds: int = 20,
            warmup: int = 3, top: int = 10,
            **options: typing.Any) -> Report:
    """Compare variants of a step: time, memory and numbers.

    fusor.compare("resnet18", a={"fusion": "off"}, b={"fusion": "on"})

    model, example, optimizer, options: as for compile, for all variants. Inputs
        without an example get random values.
    a, b: options of the variants; b may be a list of several.
    rounds: measured rounds, each of which runs every variant once (0: none).
    warmup: rounds before these.
    top: number of differences and rejected fusions to list.
    """
    keywords = keywords_of(optimizer or SGD(), options)
    arrays = _example(example)
    others = [b] if isinstance(b, typing.Mapping) else list(b)
    variants = [dict(variant) for variant in (a, *others)]
    if torch_export.is_model(model):
        with torch_export.Export(model, arrays) as path:
            texts = _compare(path, arrays, keywords, variants, rounds, warmup,
                             top)
    else:
        texts = _compare(_source(model), arrays, keywords, variants, rounds,
                         warmup, top)
    text, page, data = texts
    return Report(text, page, json.loads(data))
