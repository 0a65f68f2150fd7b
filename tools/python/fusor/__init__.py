"""Compile and run whole training steps.

    step = fusor.compile(model, example, optimizer=fusor.SGD(lr=0.1))
    loss = step(images, labels)

    run = fusor.train("resnet18", "images", epochs=90, workspace="out")

See compile, Step, train, compare and Builder.
"""

from fusor._fusor import (Builder, EvalReport, StepReport, Value, backends,
                          models, version)
from fusor.errors import Error
from fusor.optimizers import LAMB, LARS, SGD, Adam, AdamW, Optimizer, RMSprop
from fusor.program import command
from fusor.reports import Report
from fusor.step import Step, compare, compile, load_program
from fusor.training import Training, train

__version__ = version

__all__ = [
    "LAMB", "LARS", "SGD", "Adam", "AdamW", "Builder", "Error", "EvalReport",
    "Optimizer", "RMSprop", "Report", "Step", "StepReport", "Training", "Value",
    "backends", "command", "compare", "compile", "load_program", "models",
    "train",
]
