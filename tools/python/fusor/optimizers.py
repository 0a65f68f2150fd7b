"""Optimizers, with PyTorch's names and defaults."""

import dataclasses
import typing

from fusor.errors import Error


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """The update rule of a step, and its first learning rate.

    lr: learning rate; Step.lr changes it later.
    weight_decay: decay of the weights of convolutions and matmuls.
    bn_weight_decay: decay biases and the parameters of normalisations too, as
        PyTorch's optimizers do.
    """

    lr: float = 0.1
    weight_decay: float = 0.0
    bn_weight_decay: bool = False

    name: typing.ClassVar[str]

    def options(self) -> dict[str, typing.Any]:
        """Return the keywords of fusor.compile that select this optimizer."""
        return {"optimizer": self.name, **dataclasses.asdict(self)}


@dataclasses.dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent."""

    momentum: float = 0.0
    nesterov: bool = False
    decoupled_weight_decay: bool = False

    name: typing.ClassVar[str] = "sgd"


@dataclasses.dataclass(frozen=True)
class LARS(Optimizer):
    """Layer-wise adaptive rate scaling (You, Gitman and Ginsburg, 2017).

    lars_coefficient: learning rate of a layer, relative to |weight| /
        |gradient|.
    """

    momentum: float = 0.9
    nesterov: bool = False
    lars_coefficient: float = 0.001

    name: typing.ClassVar[str] = "lars"


@dataclasses.dataclass(frozen=True)
class _Moments(Optimizer):
    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8


@dataclasses.dataclass(frozen=True)
class Adam(_Moments):
    """Adam (Kingma and Ba, 2015)."""

    name: typing.ClassVar[str] = "adam"


@dataclasses.dataclass(frozen=True)
class AdamW(_Moments):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    weight_decay: float = 0.01

    name: typing.ClassVar[str] = "adamw"


@dataclasses.dataclass(frozen=True)
class LAMB(_Moments):
    """Adam with layer-wise rates (You et al., 2020)."""

    weight_decay: float = 0.01

    name: typing.ClassVar[str] = "lamb"


@dataclasses.dataclass(frozen=True)
class RMSprop(Optimizer):
    """RMSprop.

    alpha: decay of the average squared gradient.
    tf: add eps inside the root, as TensorFlow does.
    """

    lr: float = 0.01
    momentum: float = 0.0
    alpha: float = 0.99
    eps: float = 1e-8
    tf: bool = False

    name: typing.ClassVar[str] = "rmsprop"

    def options(self) -> dict[str, typing.Any]:
        options = super().options()
        if options.pop("tf"):
            options["optimizer"] = "rmsprop-tf"
        return options


def keywords_of(optimizer: Optimizer | None,
                options: dict[str, typing.Any]) -> dict[str, typing.Any]:
    """Return options and those that select the optimizer; each must be in one
    of both."""
    if optimizer is None:
        return options
    if not isinstance(optimizer, Optimizer):
        raise Error("optimizer: expected one of fusor, such as fusor.SGD(), "
                    f"got {type(optimizer).__name__}")
    given = optimizer.options()
    for name in given:
        if name in options:
            raise Error(f"option {name}: expected it in the optimizer, "
                        f"fusor.{type(optimizer).__name__}({name}=...)")
    return {**given, **options}
