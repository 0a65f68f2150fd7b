"""Writes models in ONNX's format without ONNX's package. Messages consist of
onnx.proto's fields by number, as bytes."""

import struct

FLOAT, UINT8, INT8, INT32, INT64, STRING, BOOL, FLOAT16, DOUBLE = (
    1, 2, 3, 6, 7, 8, 9, 10, 11)


def varint(value):
    value &= (1 << 64) - 1
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(number, value):
    """Encodes a field: an int, a float, or text, bytes or a message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, str):
        value = value.encode()
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields(number, values):
    return b"".join(field(number, value) for value in values)


def tensor(name, dtype, dims, raw=None, floats=(), ints=(), external=None):
    """Returns a TensorProto with raw bytes, typed values or a file's
    entries."""
    message = fields(1, dims) + field(2, dtype) + field(8, name)
    message += fields(4, map(float, floats)) + fields(7, ints)
    if raw is not None:
        message += field(9, raw)
    for key, value in (external or {}).items():
        message += field(13, field(1, key) + field(2, str(value)))
    return message + (field(14, 1) if external else b"")


def floats(name, dims, values):
    return tensor(name, FLOAT, dims, struct.pack(f"<{len(values)}f", *values))


def integers(name, values):
    return tensor(name, INT64, [len(values)],
                  struct.pack(f"<{len(values)}q", *values))


def value(name, dims, dtype=FLOAT):
    """Returns a ValueInfoProto. An extent is a number or a name."""
    shape = b"".join(field(1, field(2 if isinstance(dim, str) else 1, dim))
                     for dim in dims)
    return field(1, name) + field(2, field(1, field(1, dtype)
                                           + field(2, shape)))


def attribute(name, content):
    if isinstance(content, int):
        return field(1, name) + field(3, content) + field(20, 2)
    if isinstance(content, float):
        return field(1, name) + field(2, content) + field(20, 1)
    if isinstance(content, str):
        return field(1, name) + field(4, content) + field(20, 3)
    if isinstance(content, bytes):
        return field(1, name) + field(5, content) + field(20, 4)
    return field(1, name) + fields(8, content) + field(20, 7)


def node(op, inputs, outputs, name="", domain="", **attributes):
    return (fields(1, inputs) + fields(2, outputs) + field(3, name)
            + field(4, op) + field(7, domain)
            + b"".join(field(5, attribute(key, content))
                       for key, content in attributes.items()))


def reference(name, to):
    """Returns an attribute of a function's node that refers to the call's
    attribute `to`."""
    return field(1, name) + field(20, 1) + field(21, to)


def function(name, inputs, outputs, nodes, domain="own"):
    return (field(1, name) + fields(4, inputs) + fields(5, outputs)
            + fields(7, nodes) + field(9, field(1, "") + field(2, 18))
            + field(10, domain))


def model(nodes, inputs, outputs, tensors=(), opset=18, functions=()):
    graph = (fields(1, nodes) + field(2, "g") + fields(5, tensors)
             + fields(11, inputs) + fields(12, outputs))
    return (field(1, 8) + field(7, graph)
            + field(8, field(1, "") + field(2, opset)) + fields(25, functions))


def classifier(classes=5, batch="N", extra=(), softmax=False, opset=18):
    """Returns a classifier of images of 16 x 16 pixels: a convolution with
    batch normalisation and dropout in training mode, and a last layer. `extra`
    nodes map h to h2."""
    weights = [floats("stem.weight", [4, 3, 3, 3],
                      [(i % 7 - 3) / 16 for i in range(108)]),
               floats("norm.weight", [4], [1] * 4),
               floats("norm.bias", [4], [0.25] * 4),
               floats("norm.running_mean", [4], [0] * 4),
               floats("norm.running_var", [4], [1] * 4),
               floats("head.weight", [classes, 4],
                      [(i % 5 - 2) / 8 for i in range(4 * classes)]),
               floats("head.bias", [classes], [0.125] * classes),
               floats("ratio", [], [0.5]),
               tensor("training", BOOL, [], b"\1")]
    last = "h2" if extra else "h"
    nodes = [
        node("Conv", ["x", "stem.weight"], ["c"], "/stem/Conv",
             kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("BatchNormalization",
             ["c", "norm.weight", "norm.bias", "norm.running_mean",
              "norm.running_var"], ["n", "mean", "var"], "/norm/Norm",
             training_mode=1, momentum=0.9),
        node("Relu", ["n"], ["r"], "/act/Relu"),
        node("GlobalAveragePool", ["r"], ["p"], "/pool/Pool"),
        node("Flatten", ["p"], ["f"], "/Flatten"),
        node("Dropout", ["f", "ratio", "training"], ["h", ""], "/drop/Dropout"),
        *extra,
        node("Gemm", [last, "head.weight", "head.bias"], ["logits"],
             "/head/Gemm", transB=1)]
    result = "logits"
    if softmax:
        result = "probabilities"
        nodes.append(node("Softmax", ["logits"], [result], "/Softmax"))
    return model(nodes, [value("x", [batch, 3, 16, 16])],
                 [value(result, [batch, classes])], weights, opset)
