"""The counter-based generator of ir/support/philox.h, vectorised with numpy.
tests/ir/support/philox_test.cc contains values printed by this module. Both
must be bit-identical, since the C++ tests regenerate weights and inputs from a
seed."""

import numpy as np

_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_CHUNK_BLOCKS = 1 << 20  # limits temporaries to some 100 MiB


def philox(counter, key):
    """Philox4x32-10. `counter` is four broadcastable uint64 arrays of
    32-bit words, `key` a 64-bit integer. Returns four uint64 arrays of
    32-bit words."""
    c0, c1, c2, c3 = (np.asarray(c, dtype=np.uint64) for c in counter)
    k0, k1 = key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF
    for _ in range(10):
        p0 = np.uint64(0xD2511F53) * c0
        p1 = np.uint64(0xCD9E8D57) * c2
        c0 = (p1 >> _SHIFT) ^ c1 ^ np.uint64(k0)
        c1 = p1 & _LOW
        c2 = (p0 >> _SHIFT) ^ c3 ^ np.uint64(k1)
        c3 = p0 & _LOW
        k0 = (k0 + 0x9E3779B9) & 0xFFFFFFFF
        k1 = (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def bits(key, step, site, rank, first_block, blocks):
    """Returns the 32-bit words of `blocks` consecutive blocks as uint32
    [blocks * 4]."""
    out = np.empty((blocks, 4), dtype=np.uint32)
    for begin in range(0, blocks, _CHUNK_BLOCKS):
        end = min(blocks, begin + _CHUNK_BLOCKS)
        index = np.arange(first_block + begin, first_block + end, dtype=np.uint64)
        words = philox((index & _LOW, step, site, rank), key)
        for lane in range(4):
            out[begin:end, lane] = words[lane]
    return out.reshape(-1)


def uniform(key, step, site, rank, count):
    """Returns RandomUniform(key, step, site, rank, 0..count-1) as float32
    [count] with 24 bits in [0, 1)."""
    words = bits(key, step, site, rank, 0, (count + 3) // 4)[:count]
    return (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


if __name__ == "__main__":
    # Prints the values of RandomUniformMatchesTheNumpyGenerator in
    # philox_test.cc.
    streams = [(0, 0, 0, 0, 0), (4, 0, 160, 0, 1023), (1, 1, 0, 0, 98303),
               (0x123456789ABCDEF0, 7, 3, 2, 6)]
    for key, step, site, rank, index in streams:
        value = uniform(key, step, site, rank, index + 1)[index]
        print(f"{{{key:#x}, {step}, {site}, {rank}, {index}, "
              f"{int(value * 2**24):#08x}}},")
