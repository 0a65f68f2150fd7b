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


class Language(nn.Module):
    """Predicts the next token. The embedding is also the last layer."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(11, 8, padding_idx=0)
        self.places = nn.Parameter(torch.randn(1, 6, 8))
        self.norm = nn.RMSNorm(8, eps=1e-5)
        self.qkv = nn.Linear(8, 24)
        self.mix = nn.Linear(8, 16)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids, labels):
        present = (ids != 0).long()
        place = (present.cumsum(1) - 1).clamp(min=0)
        x = self.tokens(ids) + torch.gather(
            self.places.expand(ids.shape[0], -1, -1), 1,
            place.unsqueeze(2).expand(-1, -1, 8))
        q, k, v = self.qkv(self.norm(x)).view(-1, 6, 3, 2, 4).permute(
            2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + y.transpose(1, 2).reshape(-1, 6, 8)
        x = x + F.glu(self.mix(x))
        logits = self.head(x)
        return (F.cross_entropy(logits.transpose(1, 2), labels),
                logits.logsumexp(2), ids.neg())


class Segmenter(nn.Module):
    """Goes down and up again, like a U-Net."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(2, 4, 3, 2, 1, bias=False)
        self.norm = nn.InstanceNorm2d(4, affine=True)
        self.up = nn.ConvTranspose2d(4, 4, 3, 2, 1, output_padding=1, groups=2)
        self.last = nn.Conv2d(14, 3, 1)

    def forward(self, x):
        y = F.leaky_relu(self.norm(self.down(x)))
        y = torch.cat([
            self.up(y), F.interpolate(y, scale_factor=2.0),
            F.interpolate(y, size=x.shape[2:], mode="bilinear"),
            torch.flip(x, (3,))], 1)
        # The padded row has norm 0.
        return F.normalize(F.pad(self.last(y), (0, 1)), dim=1)


class Functions(nn.Module):
    """Calls functions of mathematics, order and truth."""

    def __init__(self):
        super().__init__()
        self.prelu = nn.PReLU(3)

    def forward(self, x, y):
        inside = 0.9 * torch.tanh(x)
        real = torch.stack([
            torch.asin(inside), torch.acos(inside), torch.atan(4 * x),
            torch.atanh(inside), torch.asinh(3 * x), torch.acosh(2 + x * x),
            torch.sinh(x), torch.cosh(x), torch.tan(inside),
            torch.atan2(x, y), torch.log1p(x * x), torch.expm1(x),
            torch.log1p(1e-3 * inside), torch.expm1(1e-3 * x),
            torch.pow(2.5, x), torch.sign(x) * x, torch.round(3 * x),
            F.softshrink(x, 0.3), self.prelu(x)])
        top, index = torch.topk(x, 2, 1)
        ordered, places = torch.sort(y, 2, descending=True)
        changed = torch.slice_scatter(y, x[:, :1], 1, 1, 2)
        changed = torch.select_scatter(changed, x[:, :, 0], 2, 3)
        flags = torch.stack([torch.any(x > 1, 2), torch.all(x > -2, 2),
                             torch.isnan(x / y * 0).any(2),
                             torch.isinf(x / (y * 0)).all(2)])
        return (real, torch.prod(y, 2), top, index, ordered, places, changed,
                flags.long(), torch.argsort(x, 0), torch.prod(x))


class Places(nn.Module):
    """Reads and writes by index, and calls functions of two operands."""

    def forward(self, x, y):
        rows = torch.tensor([2, 0])
        put = x.clone()
        put[:, rows, 1] = y[:, :2, 0]
        put[x > 1.5] = 0
        added = y.index_add(1, rows, x[:, 1:], alpha=2)
        copied = x.index_copy(2, rows, y[:, :, :2])
        places = torch.tensor([[[0, 3, 1]], [[2, 0, 3]]])
        scattered = torch.scatter(x, 2, places, y[:, :1, :3])
        marked = torch.scatter(y, 2, places, 0.5)
        first, second = torch.meshgrid(x[0, 0], y[0, :, 1], indexing="xy")
        either = torch.where(x > 1, torch.nan, x)
        pairs = torch.stack([
            torch.lerp(x, y, 0.3), torch.lerp(x, y, y), torch.logaddexp(x, y),
            torch.logaddexp2(x, y), torch.fmax(either, y),
            torch.fmin(y, either), torch.nan_to_num(either.detach() / 0, 1, 2, -3) * x,
            torch.square(x), torch.frac(3 * y), torch.flipud(x),
            torch.fliplr(y)])
        return (put, added, copied, scattered, marked, first * second, pairs,
                torch.outer(x[0, 0], y[0, :, 0]),
                F.cosine_similarity(x, y, dim=2),
                torch.isfinite(either).view_as(x).long(),
                torch.unsafe_chunk(x, 2, 2)[1].ravel().reshape_as(y[:, :, :2]))


class Rearranged(nn.Module):
    """Shuffles, windows, diagonals, stacks and repetitions."""

    def forward(self, x, y):
        image = torch.cat([x, y[:, :1]], 1).unsqueeze(3)  # [2, 4, 4, 1]
        columns = F.unfold(x.unsqueeze(1), (2, 3), padding=1, stride=(1, 2))
        return (F.pixel_shuffle(image, 2), F.channel_shuffle(image, 2),
                F.pixel_unshuffle(x.unsqueeze(1)[:, :, :2], 2), columns,
                F.fold(columns, (3, 4), (2, 3), padding=1, stride=(1, 2)),
                x.unfold(2, 3, 1), torch.diagonal(x, -1, 1, 2),
                torch.diag_embed(y[0], 1), torch.diag(x[0, 0], -1),
                torch.diag(x[0]), torch.trace(y[1]), torch.hstack([x, y]),
                torch.vstack([x[0], y[1]]), torch.dstack([x[0], y[0]]),
                torch.column_stack([x[0, 0], y[0].mT]),
                torch.block_diag(x[0], y[1, :2]), torch.atleast_3d(x[0]),
                *torch.tensor_split(x, 3, 2), *torch.tensor_split(y, (1, 3), 2),
                x.repeat_interleave(2, 1), y.tile(2, 1, 2),
                x.movedim((0, 2), (1, 0)), y.mT,
                x[0][tuple(torch.tril_indices(3, 4))],
                x[0][tuple(torch.triu_indices(3, 4, 1))])


class Vectors(nn.Module):
    """Norms, distances, products and order statistics."""

    def forward(self, x, y):
        norms = [torch.linalg.vector_norm(x, p, 2)
                 for p in (2, 1, 3, 0, float("inf"), -float("inf"))]
        sorted_values = torch.tensor([-1.0, 0.0, 0.5])
        hidden = torch.where(y > 1, torch.nan, y)
        return (*norms, torch.linalg.norm(x), F.pairwise_distance(x, y, 3),
                torch.dist(x, y, 1), torch.cdist(x, y[:, :2]),
                torch.inner(x[0], y[1]), torch.tensordot(x, y, ([2, 1], [2, 1])),
                torch.kron(x[0, :2], y[0]),
                torch.addr(x[0], y[0, :, 0], x[1, 0], beta=0.5, alpha=2),
                torch.linalg.cross(x, y, dim=1), *torch.kthvalue(x, 2, 2),
                *torch.median(y, 2), torch.median(x), *torch.aminmax(y, dim=1),
                torch.count_nonzero(x > 0, 2), torch.nansum(hidden, 1),
                torch.nanmean(hidden, 2), torch.cumprod(x, 1),
                torch.searchsorted(sorted_values, x, right=True),
                torch.bucketize(y, sorted_values),
                torch.take(x, torch.tensor([0, 23, -2])),
                torch.take_along_dim(x, torch.tensor([[[1]], [[2]]]), 1),
                y.index_fill(2, torch.tensor([1, -1]), 2.0),
                torch.erfc(x), torch.logit(torch.sigmoid(x), 1e-3),
                torch.xlogy(x, y * y),
                torch.heaviside(x.detach(), y.detach()),
                torch.hypot(x, y), torch.sinc(x),
                torch.isclose(x, x + 1e-9).long())


class Cells(nn.Module):
    """Runs single steps of recurrent layers."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTMCell(3, 4)
        self.gru = nn.GRUCell(4, 2)
        self.tanh = nn.RNNCell(2, 3, bias=False)
        self.relu = nn.RNNCell(3, 2, nonlinearity="relu")

    def forward(self, x):
        h, c = self.lstm(x)
        h = self.gru(h)
        return self.relu(self.tanh(h)), c


class Recurrent(nn.Module):
    """Has recurrent layers of all kinds."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True)
        self.narrow = nn.LSTM(8, 4, proj_size=2, bias=False, batch_first=True)
        self.gru = nn.GRU(2, 3, batch_first=True)
        self.tanh = nn.RNN(3, 4)
        self.relu = nn.RNN(4, 2, nonlinearity="relu", bidirectional=True)

    def forward(self, x, state):
        y, (_, cell) = self.lstm(x)
        y, _ = self.narrow(y)
        y, last = self.gru(y, state)
        y, _ = self.tanh(y.transpose(0, 1))
        y, _ = self.relu(y)
        return y, cell, last


class Losses(nn.Module):
    """Computes losses of all kinds."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.rand(5) + 0.5)
        self.register_buffer("sign", torch.randn(4, 5).sign())

    def of_values(self, x, y):
        return (F.mse_loss(x, y), F.l1_loss(x, y[:1], reduction="none"),
                F.smooth_l1_loss(x, y, beta=0.5),
                F.huber_loss(x, y, reduction="sum", delta=0.7))

    def of_probabilities(self, x, y):
        p = torch.sigmoid(y)
        log_p = F.log_softmax(x, 1)
        return (F.binary_cross_entropy(torch.sigmoid(x), p, self.weight),
                F.binary_cross_entropy_with_logits(
                    x, p, self.weight, pos_weight=self.weight),
                F.multilabel_soft_margin_loss(x, p, reduction="none"),
                F.kl_div(log_p, p, reduction="batchmean"),
                F.kl_div(log_p, y, reduction="none", log_target=True),
                F.poisson_nll_loss(x, 4 * p, full=True),
                F.poisson_nll_loss(x.exp(), p, log_input=False))

    def of_margins(self, x, y, labels, several):
        return (F.hinge_embedding_loss(x, self.sign),
                F.margin_ranking_loss(x, y, self.sign, margin=0.1),
                F.soft_margin_loss(x, self.sign, reduction="none"),
                F.cosine_embedding_loss(x, y, self.sign[:, 0], margin=-0.2),
                F.triplet_margin_loss(x, y, y.flip(0), swap=True),
                F.triplet_margin_loss(x, y, y.flip(1), p=3, reduction="none"),
                F.multi_margin_loss(x, labels, p=2, weight=self.weight),
                F.multilabel_margin_loss(x, several, reduction="none"))

    def of_classes(self, x, y, labels):
        options = {"weight": self.weight, "label_smoothing": 0.1}
        return (F.nll_loss(F.log_softmax(x, 1), labels, self.weight,
                           ignore_index=2),
                F.cross_entropy(x, labels, **options, ignore_index=2),
                F.cross_entropy(x, F.softmax(y, 1), **options),
                F.cross_entropy(x.view(2, 5, 2), labels.view(2, 2),
                                reduction="none"),
                F.cross_entropy(x[0], labels[0], reduction="sum"))

    def forward(self, x, y, labels, several):
        return (*self.of_values(x, y), *self.of_probabilities(x, y),
                *self.of_margins(x, y, labels, several),
                *self.of_classes(x, y, labels))


def losses_inputs(generator):
    several = generator.permuted(np.tile(np.arange(5), (4, 1)), axis=1)
    several[:2, 2] = -1
    return {"x": generator.standard_normal((4, 5)).astype(np.float32),
            "y": generator.standard_normal((4, 5)).astype(np.float32),
            "labels": np.array([3, 2, 0, 4]), "several": several}


class Pooling(nn.Module):
    """Pools lines, images and volumes, and convolves them."""

    def __init__(self):
        super().__init__()
        self.grow = nn.ConvTranspose3d(2, 4, (3, 2, 1), (2, 1, 2), 1,
                                       (1, 0, 1), groups=2)
        self.mix = nn.Conv1d(4, 2, 3, padding="same", padding_mode="circular")
        self.stretch = nn.ConvTranspose1d(2, 1, 2, 2, output_padding=2,
                                          dilation=3)
        self.register_buffer("samples", torch.rand(1, 4, 2))

    def forward(self, x):
        y = self.grow(x)
        volumes = [
            F.avg_pool3d(y, 2, 2, 1, ceil_mode=True, count_include_pad=False),
            F.avg_pool3d(y[0], (2, 1, 3), divisor_override=5),
            F.max_pool3d(y, (2, 3, 2), 2, 1, ceil_mode=True),
            *F.max_pool3d(y, 2, 1, dilation=(1, 2, 1), return_indices=True),
            F.adaptive_avg_pool3d(y, (2, 3, None)),
            *F.adaptive_max_pool3d(y, (3, None, 2), return_indices=True),
            F.lp_pool3d(y.abs() + 1, 3, 2),
            F.local_response_norm(y, 3)]
        image = y[:, :, 1]
        images = [
            F.avg_pool2d(image, 3, 2, 1, ceil_mode=True),
            *F.max_pool2d(image[0], (3, 2), 2, 1, return_indices=True),
            *F.adaptive_max_pool2d(image, (2, 3), return_indices=True),
            *F.fractional_max_pool2d(image, 2, (2, 3), return_indices=True,
                                     _random_samples=self.samples)]
        line = self.mix(image[0, :, 0])
        lines = [
            self.stretch(line),
            F.avg_pool1d(line, 2, 1, 1, count_include_pad=False),
            *F.max_pool1d(line, 2, dilation=2, return_indices=True),
            F.adaptive_avg_pool1d(line, 2), F.adaptive_max_pool1d(line, 3),
            torch.sign(line)]
        return (*volumes, *images, *lines)


def pooling_inputs(generator):
    return {"x": generator.standard_normal((1, 2, 3, 4, 5)).astype(np.float32)}


def recurrent_inputs(generator):
    return {"x": generator.standard_normal((2, 5, 3)).astype(np.float32),
            "state": generator.standard_normal((1, 2, 3)).astype(np.float32)}


def functions_inputs(generator):
    return {name: generator.standard_normal((2, 3, 4)).astype(np.float32)
            for name in "xy"}


def cells_inputs(generator):
    return {"x": generator.standard_normal((2, 3)).astype(np.float32)}


def language_inputs(generator):
    ids = generator.integers(0, 11, (2, 6))
    labels = np.where(ids == 0, -100, generator.integers(0, 11, (2, 6)))
    return {"ids": ids, "labels": labels}


def segmenter_inputs(generator):
    return {"x": generator.standard_normal((2, 2, 8, 12)).astype(np.float32)}


# Programs with other inputs and results than classifiers, for `fusor exec`.
PROGRAMS = {"language": (Language, language_inputs),
            "segmenter": (Segmenter, segmenter_inputs),
            "recurrent": (Recurrent, recurrent_inputs),
            "functions": (Functions, functions_inputs),
            "places": (Places, functions_inputs),
            "rearranged": (Rearranged, functions_inputs),
            "vectors": (Vectors, functions_inputs),
            "cells": (Cells, cells_inputs),
            "losses": (Losses, losses_inputs),
            "pooling": (Pooling, pooling_inputs)}


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
    """Writes an archive, its inputs, and the results with gradients of their
    sum."""
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
