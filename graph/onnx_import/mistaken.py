"""Mistaken: files that are no ONNX models, told by how they begin: what they are, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

UNPACK = "unpack it first"
EXPORT = "export the model to ONNX first"

_MAGIC: Mapping[bytes, tuple[str, str]] = {
    b"\x1f\x8b": ("a gzip file", UNPACK),
    b"BZh": ("a bzip2 file", UNPACK),
    b"\xfd7zXZ\0": ("an xz file", UNPACK),
    b"\x28\xb5\x2f\xfd": ("a zstandard file", UNPACK),
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", UNPACK),
    b"PK\x03\x04": ("a zip archive, as PyTorch saves its models", f"{UNPACK}, or {EXPORT}"),
    b"\x89HDF\r\n\x1a\n": ("an HDF5 file, as Keras saves its models", EXPORT),
    b"\x80\x02": ("a pickle of Python, as PyTorch saved its models", EXPORT),
    b"GGUF": ("a GGUF file", EXPORT),
}
"""By how a file begins. No ONNX model does: these are tags of fields that it hasn't."""

_SHAPES: Mapping[str, Callable[[bytes], bool]] = {
    "a TensorFlow Lite model": lambda data: data[4:8] == b"TFL3" and data[:1] != b"\x08",  # 8: an ONNX file's version
    "a safetensors file": lambda data: data[8:10] == b'{"' and int.from_bytes(data[:8], "little") < len(data),
}


def mistaken(data: bytes) -> str:
    """What a file is instead of an ONNX model, and what to do, as a line; empty where it may be one."""
    for magic, (what, remedy) in _MAGIC.items():
        if data.startswith(magic):
            return f"this is {what}, not ONNX: {remedy}"
    return next((f"this is {what}, not ONNX: {EXPORT}" for what, is_one in _SHAPES.items() if is_one(data)), "")
