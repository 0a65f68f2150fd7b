"""PyTorch models. PyTorch is imported only by those who pass its objects."""

import inspect
import pathlib
import sys
import tempfile
import typing

from fusor.errors import Error


def is_model(model: object) -> bool:
    """Return whether it is a torch.nn.Module or an ExportedProgram."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if isinstance(model, torch.nn.Module):
        return True
    export = sys.modules.get("torch.export")
    return export is not None and isinstance(model, export.ExportedProgram)


class Export:
    """A model exported to a temporary .pt2 file while `with` lasts.

    A module is exported in its present mode: in train() its layers use batch
    statistics and dropout, in eval() they do not.
    """

    def __init__(self, model: typing.Any, example: list[typing.Any]) -> None:
        self._model = model
        self._example = example
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> str:
        import torch

        program = self._model
        if isinstance(program, torch.nn.Module):
            program = torch.export.export(
                program, _inputs(program, self._example))
        self._folder = tempfile.TemporaryDirectory(prefix="fusor-")
        name = type(self._model).__name__.lower()
        path = pathlib.Path(self._folder.name) / f"{name}.pt2"
        torch.export.save(program, path)
        return str(path)

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()


def _inputs(module: typing.Any,
            example: list[typing.Any]) -> tuple[typing.Any, ...]:
    """Return the tensors of the example that forward() takes: all arrays if it
    requires as many, or the only one; otherwise the last array is the target.
    """
    if not example:
        raise Error("example: expected arrays, to export the model, got none")
    required = [parameter for parameter
                in inspect.signature(module.forward).parameters.values()
                if parameter.default is parameter.empty
                and parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    count = len(example)
    if count > 1 and count != len(required):
        count -= 1
    return tuple(_tensor(array) for array in example[:count])


def _tensor(array: typing.Any) -> typing.Any:
    """Return an input; images of bytes as float32 [N, 3, S, S]."""
    import torch

    tensor = torch.as_tensor(array)
    if tensor.dtype == torch.uint8 and tensor.ndim == 4:
        if tensor.shape[1] != 3:
            tensor = tensor.permute(0, 3, 1, 2)
        tensor = tensor.float()
    return tensor


class StateDict:
    """Turns the state of a step into one that the module's load_state_dict
    takes, and keeps what is no state of the step: other buffers, counts of
    batches, and the names of tied parameters.
    """

    def __init__(self, model: typing.Any, names: list[str]) -> None:
        # A method of a module, a property of an ExportedProgram.
        state = model.state_dict
        state = dict(state() if callable(state) else state)
        known = {state[name].data_ptr(): name for name in names
                 if name in state}
        self._tied: dict[str, str] = {}
        self._others: dict[str, typing.Any] = {}
        for name, value in state.items():
            if name in names:
                continue
            tied = known.get(value.data_ptr()) if value.numel() else None
            if tied is not None:
                self._tied[name] = tied
            else:
                self._others[name] = value.detach().clone()

    def ignores(self, name: str) -> bool:
        """Return whether a name of the module is no state of the step."""
        return name in self._tied or name in self._others

    def fill(self, state: dict[str, typing.Any],
             steps: int) -> dict[str, typing.Any]:
        """Return the whole state; the step has run `steps` times."""
        whole = dict(state)
        for name, tied in self._tied.items():
            whole[name] = state[tied]
        for name, value in self._others.items():
            counts = name.rpartition(".")[2] == "num_batches_tracked"
            whole[name] = value + steps if counts else value.clone()
        return whole


def state_dict(state: dict[str, typing.Any], framework: str | None,
               template: StateDict | None,
               steps: int) -> dict[str, typing.Any]:
    """Return the state as numpy arrays or PyTorch tensors; see
    Step.state_dict. template: of the PyTorch model, if there is one.
    """
    if framework is None:
        framework = "numpy" if template is None else "torch"
    if framework not in ("numpy", "torch"):
        raise Error(f"framework {framework}: expected numpy or torch")
    if framework == "numpy":
        return state
    import torch

    tensors = {name: torch.from_numpy(value) for name, value in state.items()}
    return tensors if template is None else template.fill(tensors, steps)
