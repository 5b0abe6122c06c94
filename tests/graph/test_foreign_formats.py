"""Files that are no ONNX models say what they are, whoever reads them."""

import bz2
import gzip
import io
import lzma
import zipfile

import pytest
from onnx import TensorProto, helper

from tunewright.graph.onnx_import import ModelError, load
from tunewright.graph.onnx_import.check import foreign_format
from tunewright.graph.onnx_import.outline import outline
from tunewright.graph.onnx_import.structure import strip


def model(producer=""):
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [value], [out])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name=producer)
    return proto.SerializeToString()


def zipped(data):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("model/data.pkl", data)
    return file.getvalue()


SAFETENSORS = b'{"weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'

FILES = {
    "gzip": (gzip.compress(model()), "a gzip file, not ONNX: unpack it first"),
    "bzip2": (bz2.compress(model()), "a bzip2 file, not ONNX: unpack it first"),
    "xz": (lzma.compress(model()), "an xz file, not ONNX: unpack it first"),
    "zip": (zipped(b"x"), "a zip archive, as PyTorch saves its models, not ONNX: unpack it first, or export"),
    "npy": (b"\x93NUMPY\x01\0" + bytes(100), "an array of NumPy, not ONNX: name the model; arrays are for run --input"),
    "tflite": (b"\x1c\0\0\0TFL3" + bytes(40), "a TensorFlow Lite model, not ONNX: export the model to ONNX first"),
    "ort": (b"\x1c\0\0\0ORTM" + bytes(40), "a model in ONNX Runtime's own format, not ONNX: export the model"),
    "safetensors": (len(SAFETENSORS).to_bytes(8, "little") + SAFETENSORS + bytes(4), "a safetensors file, not ONNX"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(40), "an HDF5 file, as Keras saves its models, not ONNX"),
}


@pytest.mark.parametrize("kind", FILES)
def test_what_a_file_is_is_said(kind, tmp_path):
    data, words = FILES[kind]
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    for read in (load, outline, strip):
        for source in (data, path):
            with pytest.raises(ModelError, match=f"this is {words}"):
                read(source)


@pytest.mark.parametrize("producer", ["", "TFL3", "ORTM", "PK\x03\x04", "GGUF"])
def test_models_are_taken_for_nothing_else(producer):
    assert foreign_format(model(producer)) == ""
    assert load(model(producer)) is not None
