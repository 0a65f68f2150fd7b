"""Compile and run whole training steps.

    step = fusor.compile(model, example, optimizer=fusor.SGD(lr=0.1))
    loss = step(images, labels)

See compile, Step, compare and Builder.
"""

from fusor._fusor import Builder, Value, backends, models, version
from fusor.errors import Error
from fusor.optimizers import LAMB, LARS, SGD, Adam, AdamW, Optimizer, RMSprop
from fusor.reports import Report
from fusor.step import Step, compare, compile

__version__ = version

__all__ = [
    "LAMB", "LARS", "SGD", "Adam", "AdamW", "Builder", "Error", "Optimizer",
    "RMSprop", "Report", "Step", "Value", "backends", "compare", "compile",
    "models",
]
