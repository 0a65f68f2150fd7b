#!/usr/bin/env python3
"""Writes archives of torch.export and the training step of each in PyTorch.

    python make_torch_export.py --out torch_export
    python make_torch_export.py --out FOLDER --size 64 resnet18 swin_t

Without names, writes the small models and programs below. A name is one of
torchvision's models. NAME.pt2 is the archive, NAME.onnx the same model in ONNX's
format, NAME.safetensors the step in fp64. README.md in this folder describes them.
"""

import argparse
import collections
import copy
import pathlib
import re
import zipfile

import numpy as np
import onnx
import safetensors.numpy
import torch
import torchvision
from torch import nn
from torch.nn import functional as F

from torch_programs import PROGRAMS

BATCH = 3
CLASSES = 5
AUXILIARY_WEIGHT = 0.3
SEGMENTATION_AUXILIARY_WEIGHT = 0.5  # torchvision's references/segmentation
UNLABELLED = 255  # torchvision's masks; -100 is PyTorch's ignore_index


class Activations(nn.Module):
    """Functions whose constants are floats in PyTorch's kernels."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Conv2d(3, 12, 4, 4)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x):
        parts = self.mix(x).mul(4).split(2, dim=1)
        functions = (F.hardsigmoid, F.hardswish, F.mish, F.selu,
                     lambda x: F.gelu(x, approximate="tanh"),
                     lambda x: torch.where(x > 0, x.clamp(max=3) ** 3,
                                           torch.rsqrt(x * x + 1)))
        x = torch.cat([f(part) for f, part in zip(functions, parts)], 1)
        return self.head(x.mean((2, 3)))


class Convolutional(nn.Module):
    """Convolutions, normalisations, pooling and in-place activations."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False),
                                  nn.BatchNorm2d(8), nn.Hardswish(inplace=True))
        self.depthwise = nn.Conv2d(8, 8, 3, 1, 1, groups=8, bias=False)
        self.norm1 = nn.BatchNorm2d(8, momentum=0.01, eps=1e-3)
        self.squeeze = nn.Conv2d(8, 4, 1)
        self.excite = nn.Conv2d(4, 8, 1)
        self.grouped = nn.Conv2d(8, 8, 3, 1, 2, dilation=2, groups=2)
        self.norm2 = nn.GroupNorm(2, 8)
        self.pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.branch = nn.Conv2d(8, 4, 1)
        self.head = nn.Linear(12, CLASSES)

    def shuffle(self, x):
        n, c, h, w = x.shape
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous()
        return x.view(n, c, h, w)

    def forward(self, x):
        x = self.stem(x)
        y = F.relu6(self.norm1(self.depthwise(x)))
        scale = F.adaptive_avg_pool2d(y, 1)
        scale = torch.sigmoid(self.excite(F.silu(self.squeeze(scale))))
        y = scale * y
        y += x
        y = F.leaky_relu(self.norm2(self.grouped(self.shuffle(y))), 0.1)
        y = self.pool(y)
        first, second = y.chunk(2, dim=1)
        side = F.elu(self.branch(F.avg_pool2d(y, 3, 1, 1)))
        y = torch.cat([first, side, F.softplus(second)], 1)
        y = F.dropout(torch.flatten(F.adaptive_avg_pool2d(y, (1, 1)), 1), 0.0)
        return self.head(y)


class Windowed(nn.Module):
    """Attention in shifted windows with a mask that is filled in place."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.norm1 = nn.LayerNorm(8, eps=1e-6)
        self.qkv = nn.Linear(8, 24)
        self.bias = nn.Parameter(torch.randn(9, 2))
        self.register_buffer("index", torch.arange(16).view(4, 4) % 9 - 2)
        self.project = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.full((8,), 0.5))
        self.norm2 = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.head = nn.Linear(8, CLASSES)

    def windows(self, x):
        n, h, w, c = x.shape
        x = x.view(n, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5)
        return x.reshape(n * (h // 2) * (w // 2), 4, c)

    def shifted(self, x):
        n, h, w, c = x.shape
        x = self.windows(torch.roll(x, (-1, -1), (1, 2)))
        q, k, v = self.qkv(x).view(-1, 4, 3, 2, 4).permute(2, 0, 3, 1, 4)
        scores = torch.einsum("bhid,bhjd->bhij", q * 0.5, k)
        scores = scores + self.bias[self.index.view(-1)].view(4, 4, 2).permute(
            2, 0, 1).unsqueeze(0)
        mask = x.new_zeros((h, w))
        mask[:-2, -1:] = 1
        mask[-1:, :] = 2
        mask = self.windows(mask.view(1, h, w, 1)).squeeze(2)
        apart = mask.unsqueeze(1) - mask.unsqueeze(2)
        apart = apart.masked_fill(apart != 0, -100.0)
        count = apart.shape[0]
        scores = scores.view(n, count, 2, 4, 4) + apart.unsqueeze(1)
        scores = scores.view(-1, 2, 4, 4).softmax(-1)
        y = self.project((scores @ v).transpose(1, 2).reshape(-1, 4, c))
        y = y.view(n, h // 2, w // 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5)
        return torch.roll(y.reshape(n, h, w, c), (1, 1), (1, 2))

    def forward(self, x):
        x = self.patches(x).permute(0, 2, 3, 1)
        x = x + self.scale * self.shifted(self.norm1(x))
        x = torch.cat([self.token.expand(x.shape[0], -1, -1),
                       x.flatten(1, 2)], 1)
        y = self.norm2(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.mlp(x)
        return self.head(x[:, 0] + x[:, 1:].mean(1))


class Auxiliary(nn.Module):
    """A side branch, like GoogLeNet's two."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, 2)
        self.side = nn.Linear(6, CLASSES)
        self.second = nn.Conv2d(6, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.head = nn.Conv2d(6, CLASSES, 1)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        side = self.side(x.mean((2, 3)))
        x = self.norm(self.second(x)).relu_()
        return self.head(x).amax((2, 3)), side


class Pixels(nn.Module):
    """Returns the logits of each pixel, as torchvision's segmentation models."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 6, 3, 2, 1)
        self.norm = nn.BatchNorm2d(6)
        self.head = nn.Conv2d(6, CLASSES, 1)
        self.side = nn.Conv2d(6, CLASSES, 1)

    def forward(self, x):
        y = F.relu(self.norm(self.down(x)))
        size = x.shape[-2:]
        return collections.OrderedDict(
            (name, F.interpolate(head(y), size=size, mode="bilinear",
                                 align_corners=False))
            for name, head in (("out", self.head), ("aux", self.side)))


class Tokens(nn.Module):
    """Predicts the next token of any number of tokens up to 12."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.places = nn.Embedding(12, 8)
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.tokens.weight

    def attend(self, ids, **mask):
        n, t = ids.shape
        x = self.tokens(ids.view(-1, t)) + self.places(torch.arange(t))
        q, k, v = self.qkv(self.norm(x)).view(n, t, 3, 2, 4).permute(
            2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, **mask)
        x = x + y.transpose(1, 2).reshape(n, t, 8)
        return self.head(x + F.gelu(self.mix(x)))

    def forward(self, ids):
        return self.attend(ids, is_causal=True)


class Masked(Tokens):
    """Predicts tokens from those that a mask does not hide."""

    def forward(self, input_ids, attention_mask):
        return self.attend(input_ids,
                           attn_mask=attention_mask[:, None, None, :] != 0)


def pixels_data(generator):
    mask = generator.integers(0, CLASSES, (BATCH, 8, 10))
    mask[:, :2] = UNLABELLED
    mask[0, 3, 4] = -100
    images = generator.standard_normal((BATCH, 3, 8, 10)).astype(np.float32)
    return {"input": images}, mask


def tokens_data(generator):
    ids = generator.integers(0, 11, (BATCH, 6))
    labels = np.roll(ids, -1, 1)
    labels[:, -1] = -100
    return {"input": ids}, labels


def masked_data(generator):
    inputs, labels = tokens_data(generator)
    mask = generator.integers(0, 2, labels.shape)
    mask[:, 0] = 1
    return {**inputs, "attention_mask": mask}, labels


# Models with labels of pixels and of tokens.
TRAINED = {"pixels": (Pixels, pixels_data), "tokens": (Tokens, tokens_data),
           "masked": (Masked, masked_data)}

SMALL = {"activations": Activations, "auxiliary": Auxiliary,
         "convolutional": Convolutional, "windowed": Windowed,
         # With layers as the operators that they consist of.
         "decomposed": Convolutional}


def make(name):
    torch.manual_seed(0)
    if name in SMALL:
        return SMALL[name]()
    settings = {"num_classes": CLASSES}
    if name in ("googlenet", "inception_v3"):
        settings.update(init_weights=False, aux_logits=True)
    model = torchvision.models.get_model(name, weights=None, **settings)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, torchvision.ops.StochasticDepth):
            module.p = 0.0
    return model


def strip_paths(path):
    """Removes this machine's folders from the recorded Python lines."""
    root = str(pathlib.Path(__file__).resolve().parents[2]) + "/"
    with zipfile.ZipFile(path) as archive:
        entries = [(info.filename, archive.read(info)) for info in
                   archive.infolist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for entry, data in entries:
            if entry.endswith("models/model.json"):
                text = data.decode().replace(root, "")
                text = re.sub(r'File \\"[^"]*/site-packages/', r'File \\"', text)
                data = re.sub(r'File \\"/[^"]*/(\w+\.py)\\"', r'File \\"\1\\"',
                              text).encode()
            archive.writestr(zipfile.ZipInfo(entry), data)


def export(model, size, path, decomposed):
    images = torch.randn(BATCH, 3, size, size)
    program = torch.export.export(
        model, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    if decomposed:
        program = program.run_decompositions()
    torch.export.save(program, path)
    strip_paths(path)


def export_onnx(model, size, path):
    # The exporter runs the model, which changes the running statistics.
    state = {name: tensor.clone() for name, tensor in
             model.state_dict().items()}
    torch.onnx.export(
        model, (torch.randn(BATCH, 3, size, size),), str(path),
        input_names=["x"], dynamic_axes={"x": {0: "batch"}}, opset_version=18,
        training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
        dynamo=False)
    exported = onnx.load(path)
    for tensor in exported.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(
            state[tensor.name].numpy(), tensor.name))
    onnx.save(exported, path)
    model.load_state_dict(state)


def step(model, size):
    """Returns inputs and results of a training step, and evaluation logits."""
    generator = np.random.default_rng(0)
    images = generator.standard_normal((BATCH, 3, size, size)).astype(np.float32)
    labels = generator.integers(0, CLASSES, BATCH)
    model = copy.deepcopy(model).double()
    inputs = torch.from_numpy(images).double()
    with torch.no_grad():
        logits = copy.deepcopy(model).eval()(inputs)
    results = model.train()(inputs)
    if torch.is_tensor(results):
        results = (results,)
    target = torch.from_numpy(labels)
    loss = F.cross_entropy(results[0], target)
    for side in results[1:]:
        loss = loss + AUXILIARY_WEIGHT * F.cross_entropy(side, target)
    loss.backward()
    if not torch.is_tensor(logits):
        logits = logits[0]
    tensors = {"images": images, "labels": labels.astype(np.int32),
               "loss": loss.detach().numpy().reshape(1),
               "logits": logits.numpy()}
    for name, parameter in model.named_parameters():
        tensors["grad/" + name] = parameter.grad.numpy()
    for name, buffer in model.named_buffers():
        if "running_" in name:
            tensors["running/" + name] = buffer.numpy()
    return {key: np.ascontiguousarray(value) for key, value in
            tensors.items()}


def write_program(name, folder):
    """Writes an archive, its inputs, and the results: the outputs, the gradients
    of their sum, and running statistics."""
    torch.manual_seed(0)
    model = PROGRAMS[name][0]()
    inputs = PROGRAMS[name][1](np.random.default_rng(0))
    tensors = {key: torch.from_numpy(value) for key, value in inputs.items()}
    torch.export.save(torch.export.export(model, (), dict(tensors)),
                      folder / f"{name}.pt2")
    strip_paths(folder / f"{name}.pt2")
    safetensors.numpy.save_file(inputs, folder / f"{name}.in.safetensors")
    model = model.double()
    for key, tensor in tensors.items():
        if tensor.is_floating_point():
            tensors[key] = tensor.double().requires_grad_()
    outputs = model(**tensors)
    outputs = (outputs,) if torch.is_tensor(outputs) else outputs
    sum(output.sum() for output in outputs
        if output.is_floating_point()).backward()
    expected = {f"output{i}": output.detach().numpy().reshape(
        output.shape or (1,)) for i, output in enumerate(outputs)}
    for key, parameter in model.named_parameters():
        expected["grad/" + key] = parameter.grad.numpy()
    for key, tensor in tensors.items():
        if tensor.grad is not None:
            expected["grad/" + key] = tensor.grad.numpy()
    for key, buffer in model.named_buffers():
        if "running_" in key:
            expected[key] = buffer.numpy()
    safetensors.numpy.save_file(
        {key: np.ascontiguousarray(value) for key, value in expected.items()},
        folder / f"{name}.out.safetensors")


def write_trained(name, folder):
    """Writes an archive, a batch of it, and the losses and gradients."""
    torch.manual_seed(0)
    model = TRAINED[name][0]().train()
    inputs, target = TRAINED[name][1](np.random.default_rng(0))
    shapes = {0: torch.export.Dim("batch")}
    if name != "pixels":
        shapes[1] = torch.export.Dim("length", max=12)
    given = [torch.from_numpy(value) for value in inputs.values()]
    torch.export.save(
        torch.export.export(model, tuple(given),
                            dynamic_shapes=(shapes,) * len(given)),
        folder / f"{name}.pt2")
    strip_paths(folder / f"{name}.pt2")
    model = model.double()
    labels = torch.from_numpy(target)
    labels = torch.where(labels == UNLABELLED, -100, labels)
    results = model(*(value.double() if value.is_floating_point() else value
                      for value in given))
    results = list(results.values()) if isinstance(results, dict) else [results]
    first = results[0].detach()
    if name != "pixels":
        results[0] = results[0].transpose(1, 2)
    loss = F.cross_entropy(results[0], labels)
    for side in results[1:]:
        loss = loss + SEGMENTATION_AUXILIARY_WEIGHT * F.cross_entropy(
            side, labels)
    loss.backward()
    result = results[0].detach()
    counts = labels != -100
    values = torch.from_numpy(np.random.default_rng(1).random(first.shape))
    expected = {
        **inputs, "target": target, "loss": loss.detach().numpy(),
        # Of the first result, in training mode.
        "accuracy": (result.argmax(1) == labels)[counts].double().mean(),
        "loss_alone": F.cross_entropy(result, labels), "values": values,
        "mse": F.mse_loss(first, values),
        "bce": F.binary_cross_entropy_with_logits(first, values)}
    for key, parameter in model.named_parameters():
        expected["grad/" + key] = parameter.grad.numpy()
    safetensors.numpy.save_file(
        {key: np.ascontiguousarray(np.atleast_1d(value)) for key, value in
         expected.items()}, folder / f"{name}.safetensors")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--size", type=int, default=16,
                        help="height and width of the images")
    parser.add_argument("names", nargs="*", default=list(SMALL), metavar="NAME")
    args = parser.parse_args()
    for outputs in (torchvision.models.GoogLeNetOutputs,
                    torchvision.models.InceptionOutputs):
        torch.utils._pytree._register_namedtuple(
            outputs, serialized_type_name=outputs.__name__)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.names == list(SMALL):
        (args.out / "programs").mkdir(exist_ok=True)
        for name in PROGRAMS:
            write_program(name, args.out / "programs")
        (args.out / "trained").mkdir(exist_ok=True)
        for name in TRAINED:
            write_trained(name, args.out / "trained")
    for name in args.names:
        model = make(name).train()
        safetensors.numpy.save_file(
            step(model, args.size), args.out / f"{name}.safetensors",
            metadata={"tolerance": "1e-10" if name != "activations" else "1e-7"})
        decomposed = name == "decomposed"
        export(model, args.size, args.out / f"{name}.pt2", decomposed)
        if not decomposed:
            export_onnx(model, args.size, args.out / f"{name}.onnx")


if __name__ == "__main__":
    main()
