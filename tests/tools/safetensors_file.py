"""Reads and writes safetensors files."""

import json
import struct


def read(path):
    """Returns the tensors of a safetensors file, (type, shape, bytes) by name,
    and its metadata."""
    data = path.read_bytes()
    size, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    metadata = header.pop("__metadata__", {})
    return {name: (entry["dtype"], entry["shape"],
                   data[8 + size:][slice(*entry["data_offsets"])])
            for name, entry in header.items()}, metadata


def write(path, tensors, metadata=None):
    """Writes a file from such tensors and metadata, without a checksum unless
    the metadata has one."""
    header = {} if metadata is None else {"__metadata__": metadata}
    offset = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text
                     + b"".join(data for _, _, data in tensors.values()))
