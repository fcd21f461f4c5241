"""Writing of safetensors files with one tensor in memory at a time: the library's own writer wants all of them at once.

A file is the length of its header in 8 bytes, little endian; the header, which is JSON and says of each tensor what it is
and where its bytes lie; and the bytes, row by row, one tensor after the other.
https://github.com/huggingface/safetensors#format
"""

import json
import math
from pathlib import Path
from typing import Callable, Mapping, NamedTuple

import ml_dtypes
import numpy as np

KINDS = {np.dtype(np.float32): "F32", np.dtype(ml_dtypes.bfloat16): "BF16"}
ALIGNED = 8   # the first tensor begins at a multiple of it


class Tensor(NamedTuple):
    """A tensor that is made when it is written."""

    shape: tuple[int, ...]
    dtype: np.dtype
    make: Callable[[], np.ndarray]   # of that shape and dtype, contiguous

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def write(path: str | Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes the tensors by their names, in the order given. They are marked as PyTorch's, which is what `transformers` reads.

    Raises:
      KeyError: for a dtype other than float32 and bfloat16; OSError: when the disk does not take them.
    """
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": KINDS[tensor.dtype], "shape": tensor.shape, "data_offsets": [end, end + tensor.nbytes]}
        end += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % ALIGNED)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(tensor.make().reshape(-1).view(np.uint8))
