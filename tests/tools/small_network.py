"""A small network for tests that do not depend on the architecture."""

import atexit
import pathlib
import random
import tempfile

from onnx_file import floats, model, node, value


def small_network():
    """Returns a residual network of 6 convolutions with normalisations and 4
    hidden layers, as an ONNX file. Compiling it takes a third of ResNet-20's
    time. 11 of its weights are large enough to be sharded."""
    draw = random.Random(1)
    tensors, nodes = [], []

    def weight(name, shape, fan_in):
        count = shape[0] * fan_in
        bound = (6 / fan_in) ** 0.5
        tensors.append(floats(name, shape, [
            draw.uniform(-bound, bound) for _ in range(count)]))

    def conv(name, x, inputs, channels, size, stride):
        weight(f"{name}.weight", [channels, inputs, size, size],
               size ** 2 * inputs)
        nodes.append(node("Conv", [x, f"{name}.weight"], [f"{name}.conv"],
                          f"/{name}/Conv", kernel_shape=[size] * 2,
                          strides=[stride] * 2, pads=[size // 2] * 4))
        return f"{name}.conv"

    def conv_norm(name, x, inputs, channels, stride):
        x = conv(name, x, inputs, channels, 3, stride)
        norm = [f"{name}.norm.{part}" for part in
                ("weight", "bias", "running_mean", "running_var")]
        tensors.extend(floats(part, [channels], [start] * channels)
                       for part, start in zip(norm, (1, 0, 0, 1)))
        nodes.append(node("BatchNormalization", [x, *norm],
                          [f"{name}.out", f"{name}.mean", f"{name}.var"],
                          f"/{name}/Norm", training_mode=1, momentum=0.9))
        return f"{name}.out"

    def linear(name, x, outputs):
        weight(f"{name}.weight", [outputs, 64], 64)
        tensors.append(floats(f"{name}.bias", [outputs], [0] * outputs))
        nodes.append(node("Gemm", [x, f"{name}.weight", f"{name}.bias"],
                          [f"{name}.out"], f"/{name}/Gemm", transB=1))
        return f"{name}.out"

    def relu(x):
        nodes.append(node("Relu", [x], [f"{x}.relu"], f"/{x}/Relu"))
        return f"{x}.relu"

    x = relu(conv_norm("stem", "images", 3, 16, 2))
    x = relu(conv_norm("wide", x, 16, 64, 2))
    for block in ("first", "second"):
        y = relu(conv_norm(f"{block}.a", x, 64, 64, 1))
        y = conv_norm(f"{block}.b", y, 64, 64, 1)
        x = conv(f"{block}.c", x, 64, 64, 1, 1)
        nodes.append(node("Add", [x, y], [f"{block}.sum"], f"/{block}/Add"))
        x = relu(f"{block}.sum")
    nodes += [node("GlobalAveragePool", [x], ["pooled"], "/pool/Pool"),
              node("Flatten", ["pooled"], ["flat"], "/Flatten")]
    x = "flat"
    for i in range(4):
        x = relu(linear(f"hidden{i}", x, 64))
    logits = linear("head", x, 5)
    return model(nodes, [value("images", ["N", 3, 32, 32])],
                 [value(logits, ["N", 5])], tensors)


_FOLDER = tempfile.TemporaryDirectory()
atexit.register(_FOLDER.cleanup)
# Its file, for --arch. It takes images of 32 x 32 pixels and has 5 classes.
NETWORK = pathlib.Path(_FOLDER.name) / "network.onnx"
NETWORK.write_bytes(small_network())
