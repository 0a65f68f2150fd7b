"""The torchvision models of the stored values, with weights and inputs drawn
from a seed. README.md in this folder specifies every stream."""

import dataclasses

import numpy as np
import torch
import torch.nn as nn
import torchvision

import philox

PARAMETER_STEP, INPUT_STEP = 0, 1
IMAGE_SITE, LABEL_SITE = 0, 1


@dataclasses.dataclass(frozen=True)
class Shape:
    image: int
    batch: int


@dataclasses.dataclass(frozen=True)
class Reference:
    arch: str  # torchvision's name
    classes: int
    sharp: Shape  # fp64 fingerprints; small, for a plain interpreter
    blunt: Shape  # fp32 errors over seeds; large, for ReLU flips
    curve: Shape | None = None
    curve_lr: float = 0.0


MODELS = {
    "resnet50-v1.5": Reference("resnet50", 1000, Shape(64, 4), Shape(64, 16),
                               Shape(64, 4), 2e-6),
    # Gluon's v1b is v1.5 (stride in the 3x3, no convolution biases). It is
    # here for its odd spatial sizes (48 -> 24, 12, 6, 3, 2).
    "resnet50-v1b": Reference("resnet50", 100, Shape(48, 4), Shape(48, 16)),
    "resnet18": Reference("resnet18", 100, Shape(64, 4), Shape(64, 16),
                          Shape(32, 8), 5e-4),
    "vgg16": Reference("vgg16", 100, Shape(32, 4), Shape(96, 8)),
}


def build(reference):
    """Returns a model in training mode without dropout."""
    model = getattr(torchvision.models, reference.arch)(
        num_classes=reference.classes)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model.train()


def roles(model):
    """Returns [(name, parameter, role)] in the order of named_parameters. The
    role is weight or bias of a convolution or linear layer, or gamma or beta
    of a batch norm."""
    modules = dict(model.named_modules())
    out = []
    for name, parameter in model.named_parameters():
        owner, _, leaf = name.rpartition(".")
        if isinstance(modules[owner], nn.BatchNorm2d):
            role = {"weight": "gamma", "bias": "beta"}[leaf]
        else:
            role = leaf
        out.append((name, parameter, role))
    return out


def draw_parameters(model, seed):
    """Overwrites all parameters, which must be fp32, with the seed's values."""
    with torch.no_grad():
        for site, (_, parameter, role) in enumerate(roles(model)):
            u = philox.uniform(seed, PARAMETER_STEP, site, 0, parameter.numel())
            u = u.astype(np.float64)
            if role == "weight":
                fan_in = parameter[0].numel()
                values = (2 * u - 1) * np.sqrt(6.0 / fan_in)
            elif role == "bias":
                values = (2 * u - 1) * 0.1
            elif role == "gamma":
                values = 0.5 + u
            else:
                values = (2 * u - 1) * 0.2
            values = torch.from_numpy(values.astype(np.float32))
            parameter.copy_(values.view(parameter.shape))


def draw_batch(reference, shape, seed):
    """Returns (images fp32 NCHW, labels int64) of the seed."""
    dims = (shape.batch, 3, shape.image, shape.image)
    u = philox.uniform(seed, INPUT_STEP, IMAGE_SITE, 0, int(np.prod(dims)))
    images = ((2 * u.astype(np.float64) - 1) * 2).astype(np.float32)
    u = philox.uniform(seed, INPUT_STEP, LABEL_SITE, 0, shape.batch)
    labels = np.floor(u.astype(np.float64) * reference.classes)
    return (torch.from_numpy(images.reshape(dims)),
            torch.from_numpy(labels.astype(np.int64)))


def running_statistics(model):
    """Returns [(name, buffer)] of running means and variances in buffer
    order."""
    return [(name, buffer) for name, buffer in model.named_buffers()
            if not name.endswith("num_batches_tracked")]


def prepare(reference, shape, seed, dtype, memory_format):
    """Returns (model, images, labels) ready for a step."""
    model = build(reference)
    draw_parameters(model, seed)
    images, labels = draw_batch(reference, shape, seed)
    model = model.to(dtype).to(memory_format=memory_format)
    return model, images.to(dtype).to(memory_format=memory_format), labels


def train_step(model, images, labels):
    """Runs forward and backward with mean cross-entropy. Returns the loss."""
    model.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    return loss.item()


def loss_curve(reference, seed, steps, dtype, memory_format):
    """Returns the losses of `steps` SGD steps on one batch, each before its
    update. Momentum is 0.9, and weights have weight decay 1e-4."""
    model, images, labels = prepare(reference, reference.curve, seed, dtype,
                                    memory_format)
    decayed = [p for _, p, role in roles(model) if role == "weight"]
    plain = [p for _, p, role in roles(model) if role != "weight"]
    optimizer = torch.optim.SGD(
        [{"params": decayed, "weight_decay": 1e-4}, {"params": plain}],
        lr=reference.curve_lr, momentum=0.9)
    losses = []
    for _ in range(steps):
        losses.append(train_step(model, images, labels))
        optimizer.step()
    return losses
