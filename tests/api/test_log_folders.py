"""Folders of other programs and the log: files go there and back byte for byte, and never anywhere else."""

import hashlib
import importlib.util
import json
import logging
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tunewright.api.client import log
from tunewright.api.client.folders import FORMATS, sync
from tunewright.api.client.folders.command import parse_only, sync_folder
from tunewright.api.client.folders.tuned_folder import TunedFolder
from tunewright.api.client.log import LogClient
from tunewright.api.program import execute
from tunewright.db.access import KeyScope
from tunewright.db.logs.entry import VALUE_BYTES, LogEntry, LogEnvironment
from tunewright.tuner.errors import Refused

from .planted import NO_SERVERS, planted

H200 = "E=256,N=128,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
ARC = "E=10,N=512,device_name=Intel(R)_Arc(TM)_Pro_B60_Graphics.json"
DOWN = "E=256,N=256,device_name=NVIDIA_H20-3e,dtype=fp8_w8a8,block_shape=[128, 128]_down.json"
CHANNELS = "E=8,N=7168,device_name=AMD_Instinct_MI300X,dtype=int8_w8a8,per_channel_quant=True.json"
SPEC = b"""module attributes { iree_codegen.tuning_spec_with_default_entrypoint, transform.with_named_sequence } {
  transform.named_sequence @__kernel_config(%op: !transform.any_op) attributes { iree_codegen.tuning_spec_entrypoint } {
  }
}
"""
GPU, DSL = "NVIDIA H200", "cpython-312;torch==2.9.1:" + "ab" * 120  # longer than a text of an environment may be


def table(warps=4, triton=None):
    row = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "GROUP_SIZE_M": 1, "num_warps": warps, "num_stages": 3}
    head = {} if triton is None else {"triton_version": triton}
    return (json.dumps(head | {"1": row, "64": row | {"USE_TMA": True}}, indent=4) + "\n").encode()


def write(root, files):
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def read(root):
    """All files, but for the database of the service."""
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and not path.name.startswith("s0.db")]
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def flashinfer(tactic=7, gpu=GPU, keys=("('fp4_gemm', 'CutlassRunner', ((8, 64), (64, 64)), ())", "é" * 600)):
    """The files of an environment."""
    manifest = {
        "cache_schema": "v2", "flashinfer_version": "0.7.4", "cuda_version": "13.0", "gpu": gpu,
        "cutlass_dsl_version": DSL, "measure_execution_mode": "cuda_graph",
    }  # fmt: skip
    canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    above = f"v2/{hashlib.sha256(canonical.encode()).hexdigest()[:16]}"
    files = {f"{above}/manifest.json": json.dumps(manifest, indent=2, sort_keys=True).encode()}
    for key in keys:
        entry = {"key": key, "runner": "CutlassRunner", "tactic": [tactic, -1]}
        name = hashlib.sha256(key.encode()).hexdigest()[:24]
        files[f"{above}/entries/{name}.json"] = json.dumps(entry, indent=2, sort_keys=True).encode()
    return files


FOLDERS = {
    "vllm-moe": {H200: table(triton="3.6.0"), ARC: table(8)},
    "sglang-moe": {
        f"configs/triton_3_4_0/{DOWN}": table(),
        f"configs/triton_3_5_1/{DOWN}": table(8),
        f"configs/triton_3_5_1/{CHANNELS}": table(),
    },
    "flashinfer": flashinfer() | flashinfer(gpu="NVIDIA B200"),
    "iree": {"gfx942.mlir": SPEC, "llvm-cpu.znver5.mlir": SPEC + b"// for processors\n"},
}


@pytest.fixture(autouse=True)
def _told_anew(monkeypatch):
    monkeypatch.setattr(log, "_logged", set())


@pytest.fixture
def run(one, monkeypatch, tmp_path):
    """Brings a folder and the log together; what came of it."""
    monkeypatch.setattr(log.LogClient.__init__, "__defaults__", (None, 60.0))
    monkeypatch.setenv("TUNEWRIGHT_API_KEY", one.token)

    def begin(tool, root, namespace=None, **options):
        answer = sync_folder(tool, tmp_path / root, namespace, one.url, **options)
        assert answer["reached"]
        return {name: answer[name] for name in ("pushed", "pulled", "replaced", "same", "differing")} | {
            "left_out": {line["file"]: line["reason"] for line in answer["left_out"]}
        }

    return begin


def counts(pushed=0, pulled=0, replaced=0, same=0, differing=0):
    numbers = {"pushed": pushed, "pulled": pulled, "replaced": replaced, "same": same, "differing": differing}
    return numbers | {"left_out": {}}


@pytest.mark.parametrize("tool", FORMATS)
def test_files_go_there_and_back_byte_for_byte(tool, run, tmp_path):
    files = FOLDERS[tool]
    write(tmp_path / "one", files)
    assert run(tool, "one") == counts(pushed=len(files))
    assert run(tool, "two") == counts(pulled=len(files))
    assert read(tmp_path / "two") == read(tmp_path / "one") == dict(sorted(files.items()))
    for folder in ("one", "two"):
        assert run(tool, folder) == counts(same=len(files))


def test_entries_tell_where_they_hold(run, one, tmp_path):
    for tool, files in FOLDERS.items():
        write(tmp_path / tool, files)
        run(tool, tool)
    vllm = {entry.key: entry.environment for entry in LogClient("vllm-moe", one.url).entries()}
    assert vllm[H200] == LogEnvironment("NVIDIA_H200", "vllm-moe", {"triton": "3.6.0"})
    assert vllm[ARC] == LogEnvironment("Intel(R)_Arc(TM)_Pro_B60_Graphics", "vllm-moe")
    sglang = {(entry.key, entry.environment.versions["triton"]) for entry in LogClient("sglang-moe", one.url).entries()}
    assert sglang == {(DOWN, "3.4.0"), (DOWN, "3.5.1"), (CHANNELS, "3.5.1")}
    found = {entry.environment.device: entry.environment for entry in LogClient("flashinfer", one.url).entries()}
    assert sorted(found) == ["NVIDIA B200", GPU]
    assert found[GPU].versions["flashinfer_version"] == "0.7.4"
    assert "cutlass_dsl_version" not in found[GPU].versions


def test_another_namespace(run, tmp_path):
    write(tmp_path / "one", FOLDERS["vllm-moe"])
    run("vllm-moe", "one", "team-a.moe")
    assert run("vllm-moe", "two") == counts()
    assert run("vllm-moe", "two", "team-a.moe") == counts(pulled=2)


def test_files_that_differ_are_left_until_somebody_says_whose_counts(run, tmp_path):
    write(tmp_path / "one", {ARC: table(4)})
    write(tmp_path / "two", {ARC: table(8)})
    run("vllm-moe", "one")
    assert run("vllm-moe", "two") == counts(differing=1)
    assert read(tmp_path / "two") == {ARC: table(8)}
    assert run("vllm-moe", "two", push=True) == counts(pushed=1)
    assert run("vllm-moe", "two") == counts(same=1)
    assert run("vllm-moe", "one") == counts(differing=1)
    assert run("vllm-moe", "one", pull=True) == counts(pulled=1, replaced=1)
    assert read(tmp_path / "one") == {ARC: table(8)}


def test_one_direction_alone(run, tmp_path):
    write(tmp_path / "one", {ARC: table()})
    write(tmp_path / "two", {H200: table()})
    run("vllm-moe", "one")
    assert run("vllm-moe", "two", push=True) == counts(pushed=1)
    assert list(read(tmp_path / "two")) == [H200]
    write(tmp_path / "three", {H200.replace("128", "64"): table()})
    assert run("vllm-moe", "three", pull=True) == counts(pulled=2)
    assert run("vllm-moe", "four", pull=True) == counts(pulled=2)


def test_only_what_is_for_a_device_or_version(run, tmp_path):
    write(tmp_path / "one", FOLDERS["sglang-moe"])
    run("sglang-moe", "one")
    run("sglang-moe", "two", only=["device=NVIDIA_H20-3e", "triton=3.4.0"])
    assert list(read(tmp_path / "two")) == [f"configs/triton_3_4_0/{DOWN}"]
    assert run("sglang-moe", "three", only=["device=NVIDIA_H100"]) == counts()


def test_a_file_for_several_versions_is_not_guessed(run, tmp_path):
    for warps, triton in ((4, "3.5.1"), (8, "3.6.0")):
        write(tmp_path / triton, {H200: table(warps, triton)})
        assert run("vllm-moe", triton)["pushed"] == 1
    answer = run("vllm-moe", "three")
    assert answer["left_out"] == {H200: "the log has it for several of triton: --only picks one"}
    assert not (tmp_path / "three").exists()
    assert run("vllm-moe", "three", only=["triton=3.6.0"]) == counts(pulled=1)
    assert read(tmp_path / "three") == {H200: table(8, "3.6.0")}


def test_what_is_retired_comes_no_more_and_is_not_pushed_again(run, one, tmp_path):
    write(tmp_path / "one", {ARC: table()})
    run("vllm-moe", "one")
    [entry] = LogClient("vllm-moe", one.url).entries()
    decision = {"key": ARC, "environment": entry.environment.to_json(), "choice": entry.choice, "state": "retired"}
    assert one.client().post("/v1/logs/vllm-moe:decide", json=decision).status_code == 200
    assert run("vllm-moe", "two") == run("vllm-moe", "one") == counts()


def test_a_key_that_may_only_read_pulls(run, one, tmp_path, monkeypatch):
    write(tmp_path / "one", {ARC: table()})
    run("vllm-moe", "one")
    write(tmp_path / "two", {H200: table()})
    monkeypatch.setenv("TUNEWRIGHT_API_KEY", one.key(KeyScope.LOGS_READ))
    answer = sync_folder("vllm-moe", tmp_path / "two", None, one.url)
    assert (answer["reached"], answer["pushed"], answer["pulled"]) == (True, 0, 1)
    assert answer["key_fault"] == "the scope logs:write is needed (403)"


# With FlashInfer


@pytest.fixture
def managed_cache(monkeypatch):
    """FlashInfer's own store. The package itself is not imported: it asks for a GPU."""
    spec = importlib.util.find_spec("flashinfer")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("flashinfer is not installed")
    for name in ("flashinfer", "flashinfer.jit", "flashinfer.jit.core"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    vars(sys.modules["flashinfer.jit.core"])["logger"] = logging.getLogger("flashinfer")
    module: Any = ModuleType("flashinfer.autotune_cache")
    module.__package__ = "flashinfer"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    path = Path(spec.submodule_search_locations[0], "autotune_cache.py")
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), vars(module))  # noqa: S102 - FlashInfer's own
    return module.ManagedAutotuneCache


def test_flashinfer_finds_what_it_wrote_on_another_machine(managed_cache, run, tmp_path):
    manifest = {"flashinfer_version": "0.7.4", "gpu": GPU, "cutlass_dsl_version": DSL}
    fields = [("fp4_gemm", "CutlassRunner", ((size, 64), (64, 64)), (None, True)) for size in (8, 16, 32)]
    one = managed_cache(manifest, tmp_path / "one")
    for key in fields:
        one.publish(str(key), "CutlassRunner", [7, -1], key_fields=key, profiling_policy=("events", False))
    assert run("flashinfer", "one") == counts(pushed=4)
    assert run("flashinfer", "two") == counts(pulled=4)
    assert read(tmp_path / "two") == read(tmp_path / "one")
    two = managed_cache(manifest, tmp_path / "two")
    assert two.preload()[1:] == (3, 0)
    assert two.lookup(str(fields[0])).tactic == [7, -1]
    assert managed_cache(manifest | {"gpu": "NVIDIA B200"}, tmp_path / "two").lookup(str(fields[0])) is None


# Names and contents that nobody should follow

HOSTILE = [
    "../x.json", "..", ".", "/etc/passwd", "a/b.json", "..\\x.json", "x.json", "", ".json", "E=1,N=1.json",
    "E=1,N=1,device_name=../../x.json", "E=1,N=1,device_name=a/b.json", "E=1,N=1,device_name=a\\b.json",
    "E=1,N=1,device_name=a,dtype=/x.json", "E=1,N=1,device_name=a.json/../x.json", "E=1,N=1,device_name=a.txt",
    f"E=1,N=1,device_name={'a' * 300}.json", "manifest.json", "a" * 24 + ".json", "../" + "a" * 24 + ".json",
]  # fmt: skip


@pytest.mark.parametrize("tool", FORMATS)
def test_no_name_leads_out_of_the_folder(tool, run, one, tmp_path):
    values = [table(), *FOLDERS["flashinfer"].values()]
    versions = [
        {},
        {"triton": "3.4.0"},
        {"triton": "../.."},
        {"triton": "/"},
        {"environment_hash": "../../../../../../x"},
    ]
    versions += [{"environment_hash": "a" * 16}, {"environment_hash": "v2"}, {"triton": ""}]
    entries = [
        LogEntry(key, value, LogEnvironment("a", tool, kind))
        for key in HOSTILE
        for value in values
        for kind in versions
        if key
    ]
    assert LogClient(tool, one.url).write(entries)
    answer = run(tool, "deep/er/root")
    assert answer["pulled"] == 0
    assert answer["left_out"]
    assert read(tmp_path) == {}


def test_sound_names_with_contents_that_nobody_could_have_written(run, one, tmp_path):
    files = FOLDERS["flashinfer"]
    [name] = [name for name in files if name.endswith("manifest.json") and GPU.encode() in files[name]]
    environment = LogEnvironment(GPU, "flashinfer", {"environment_hash": name.split("/")[1]})
    key = next(name.rpartition("/")[2] for name in files if "/entries/" in name)
    contents = [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b"[" * 50_000,
        json.dumps({"key": "other", "runner": "r", "tactic": 1}).encode(),
    ]
    for content in contents:
        entries = [LogEntry(key, content, environment), LogEntry("manifest.json", content, environment)]
        assert LogClient("flashinfer", one.url).write(entries)
        tables = [
            LogEntry(ARC, content, LogEnvironment("Intel(R)_Arc(TM)_Pro_B60_Graphics", "vllm-moe")),
            LogEntry(ARC, table(), LogEnvironment("NVIDIA_H200", "vllm-moe")),
        ]
        assert LogClient("vllm-moe", one.url).write(tables)
        for tool in ("flashinfer", "vllm-moe"):
            assert len(run(tool, "root")["left_out"]) >= 1
    assert read(tmp_path) == {}


BAD_TABLES = [
    b"", b"[]", b"{}", b"null", b'{"1": 2}', b'{"1": {}}', b'{"-1": {"num_warps": 4}}', b'{"x": {"num_warps": 4}}',
    b'{"1": {"num_warps": [4]}}', b'{"1": {"num_warps": 4}, "triton_version": 3}', b'{"triton_version": "3.6.0"}',
]  # fmt: skip


@pytest.mark.parametrize("data", BAD_TABLES)
def test_what_vllm_could_not_read_is_not_pushed(data, run, tmp_path):
    write(tmp_path / "one", {ARC: data})
    answer = run("vllm-moe", "one")
    assert answer["pushed"] == 0
    assert list(answer["left_out"]) == [ARC]
    assert read(tmp_path / "one") == {ARC: data}


@pytest.mark.parametrize("data", [b"", b"module {}", SPEC + b"\0", SPEC + b"\xff", b"ML\xefR\x01"])
def test_what_is_no_tuning_spec_is_left_out(data, run, tmp_path):
    write(tmp_path / "here", {"a.mlir": data})
    assert list(run("iree", "here")["left_out"]) == ["a.mlir"]


def test_other_files_are_none_of_the_programs(run, tmp_path):
    others = {"README.md": b"x", "E=1.json": b"{}", "sub/" + ARC: table(), "moe_sum_reduce_H200.json": b"{}", ".x": b""}
    write(tmp_path / "one", others)
    assert run("vllm-moe", "one") == counts()
    assert run("sglang-moe", "one") == counts()
    assert run("flashinfer", "one") == counts()


def test_what_is_too_large_or_no_file_is_left_out(run, tmp_path):
    root = write(tmp_path / "one", {H200: table() + b" " * VALUE_BYTES})
    (root / ARC).mkdir()
    os.mkfifo(root / H200.replace("128", "64"))
    answer = run("vllm-moe", "one")
    assert answer["pushed"] == 0
    assert sorted(answer["left_out"].values()) == ["it has more than 65,536 bytes", "it is no file", "it is no file"]


def test_an_environment_is_that_of_its_manifest(run, tmp_path):
    files = flashinfer()
    [manifest] = [name for name in files if name.endswith("manifest.json")]
    write(tmp_path / "one", files | {manifest: files[manifest].replace(b"0.7.4", b"0.7.3")})
    assert run("flashinfer", "one")["left_out"] == {
        manifest.rpartition("/")[0]: "its manifest is of another environment"
    }
    (tmp_path / "one" / manifest).unlink()
    assert run("flashinfer", "one")["left_out"] == {manifest.rpartition("/")[0]: "it has no manifest.json"}


def test_links_are_not_followed(run, one, tmp_path):
    outside = write(tmp_path / "outside", {"secret.json": table(8), f"triton_3_4_0/{CHANNELS}": table()})
    write(tmp_path / "good", {f"configs/triton_3_4_0/{DOWN}": table(), f"configs/triton_3_5_1/{DOWN}": table()})
    run("sglang-moe", "good")
    root = tmp_path / "root" / "configs"
    (root / "triton_3_5_1").mkdir(parents=True)
    (root / "triton_3_4_0").symlink_to(outside / "triton_3_4_0")
    (root / "triton_3_5_1" / DOWN).symlink_to(outside / "secret.json")
    for options in ({}, {"push": True}, {"pull": True}):
        answer = run("sglang-moe", "root", **options)
        assert (answer["pushed"], answer["pulled"]) == (0, 0)
        assert "configs/triton_3_5_1/" + DOWN in answer["left_out"]
    assert read(outside) == {"secret.json": table(8), f"triton_3_4_0/{CHANNELS}": table()}
    assert len(LogClient("sglang-moe", one.url).entries()) == 2


def test_the_folder_itself_may_be_a_link(run, tmp_path):
    write(tmp_path / "one", {ARC: table()})
    (tmp_path / "link").symlink_to(tmp_path / "one")
    assert run("vllm-moe", "link") == counts(pushed=1)


def test_nothing_is_written_through_a_link_or_over_a_folder(tmp_path):
    (tmp_path / "outside").mkdir()
    folder = TunedFolder(tmp_path / "root")
    folder.write(("a", "b"), b"1")
    folder.write(("a", "b"), b"2")
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "root" / "dangling").symlink_to(tmp_path / "outside" / "new")
    for place in (("link", "x"), ("dangling",), ("a",), ("a", "b", "c")):
        with pytest.raises(ValueError, match="no f"):
            folder.write(place, b"3")
        assert not folder.is_free(place[:1])
    assert read(tmp_path) == {"root/a/b": b"2"}


# Servers that are none


@pytest.mark.parametrize("name", NO_SERVERS)
@pytest.mark.parametrize("options", [{}, {"push": True}, {"pull": True}], ids=["both", "push", "pull"])
def test_no_server_loses_anything(name, options, tmp_path, monkeypatch):
    monkeypatch.setattr(log.LogClient.__init__, "__defaults__", (None, 0.5))
    files = FOLDERS["flashinfer"]
    write(tmp_path / "root", files)
    with planted(NO_SERVERS[name]) as url:
        started_s = time.monotonic()
        answer = sync_folder("flashinfer", tmp_path / "root", None, url, **options)
        assert time.monotonic() - started_s < 10  # with room for a busy machine
    assert not answer["reached"]
    assert read(tmp_path / "root") == dict(sorted(files.items()))


def test_a_server_that_goes_away_while_it_is_written_to(run, one, tmp_path, monkeypatch):
    write(tmp_path / "one", FOLDERS["vllm-moe"])
    monkeypatch.setattr(sync, "ENTRIES_AT_ONCE", 1)
    kept, calls = LogClient.write, []

    def write_once(client, entries):
        calls.append(entries)
        return len(calls) == 1 and kept(client, entries)

    monkeypatch.setattr(LogClient, "write", write_once)
    answer = sync_folder("vllm-moe", tmp_path / "one", None, one.url)
    assert (answer["reached"], answer["pushed"]) == (False, 1)
    monkeypatch.setattr(LogClient, "write", kept)
    assert run("vllm-moe", "one") == counts(pushed=1, same=1)


# The command


@pytest.fixture
def cli(one, monkeypatch, capsys):
    monkeypatch.setattr(log.LogClient.__init__, "__defaults__", (None, 60.0))
    monkeypatch.setenv("TUNEWRIGHT_API_KEY", one.token)
    monkeypatch.setenv("TUNEWRIGHT_SERVER", one.url)

    def begin(*arguments):
        code = execute(["log", "sync", *map(str, arguments)])
        return code, *capsys.readouterr()

    return begin


def test_the_command_says_what_came_of_it(cli, tmp_path):
    write(tmp_path / "one", {ARC: table(), H200: b"{}"})
    code, out, _ = cli("vllm-moe", "--root", tmp_path / "one")
    assert code == 0
    assert out.splitlines() == [
        "1 file pushed, 0 pulled, 0 the same on both sides",
        f"left out: {H200}: it is no table of configs by sizes of batches",
    ]
    write(tmp_path / "one", {ARC: table(8)})
    _, out, _ = cli("vllm-moe", "--root", tmp_path / "one")
    assert "1 file differs from what the log serves: --push has the log take them, --pull takes the log's" in out
    _, out, _ = cli("vllm-moe", "--root", tmp_path / "one", "--pull", "--json")
    assert json.loads(out) == {
        "tool": "vllm-moe", "root": str(tmp_path / "one"), "namespace": "vllm-moe", "reached": True, "key_fault": "",
        "pushed": 0, "pulled": 1, "replaced": 1, "same": 0, "differing": 0, "notes": [],
        "left_out": [{"file": H200, "reason": "it is no table of configs by sizes of batches"}],
    }  # fmt: skip


def test_the_command_does_not_fail_where_the_server_is_away(cli, tmp_path):
    write(tmp_path / "one", {ARC: table()})
    code, out, _ = cli("vllm-moe", "--root", tmp_path / "one", "--server", "http://127.0.0.1:1")
    assert (code, out) == (0, "the server does not answer as it should; nothing was changed\n")


def key_of_another(one):
    """A key for another namespace."""
    return one.store.keys.create("a", [KeyScope.LOGS_READ], namespaces=["other"])[1]


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (lambda one: "tw_wrong", "it refuses the API key (401)"),
        (lambda one: one.key(KeyScope.JOBS_READ), "the scope logs:read is needed (403)"),
        (
            lambda one: one.store.keys.create("a", [KeyScope.LOGS_READ], namespaces=["other"])[1],
            "this key is not for the namespace vllm-moe (403)",
        ),
    ],
    ids=["of nobody", "without the scope", "of another namespace"],
)
def test_the_command_fails_where_the_key_does_not_allow_it(cli, one, tmp_path, monkeypatch, key, reason):
    write(tmp_path / "one", {ARC: table()})
    monkeypatch.setenv("TUNEWRIGHT_API_KEY", key(one))
    code, out, err = cli("vllm-moe", "--root", tmp_path / "one")
    assert (code, out, err) == (1, f"the server does not allow this: {reason}; nothing was changed\n", "")
    code, out, _ = cli("vllm-moe", "--root", tmp_path / "one", "--json")
    assert (code, json.loads(out)["key_fault"]) == (1, reason)


def test_the_command_says_what_the_key_did_not_allow(cli, one, tmp_path, monkeypatch):
    write(tmp_path / "one", {ARC: table()})
    cli("vllm-moe", "--root", tmp_path / "one")
    write(tmp_path / "two", {H200: table()})
    monkeypatch.setenv("TUNEWRIGHT_API_KEY", one.key(KeyScope.LOGS_READ))
    code, out, _ = cli("vllm-moe", "--root", tmp_path / "two")
    assert (code, out.splitlines()) == (
        1,
        [
            "0 files pushed, 1 pulled, 0 the same on both sides",
            "the server does not allow this: the scope logs:write is needed (403); not all was pushed",
        ],
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--push", "--pull"], "--push and --pull: give one"),
        (["--namespace", "../x"], "is no namespace"),
        (["--only", "triton"], "is not NAME=TEXT"),
        (["--only", "a=1", "--only", "a=2"], "gives 'a' two texts"),
        (["--server", " "], "which server?"),
        (["--server", "ftp://x"], "a server is http"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, words, cli, tmp_path):
    code, out, err = cli("vllm-moe", "--root", tmp_path, *options)
    assert (code, out) == (2, "")
    assert words in err


def test_a_root_that_is_a_file_is_refused(cli, tmp_path):
    write(tmp_path, {"file": b""})
    code, _, err = cli("flashinfer", "--root", tmp_path / "file")
    assert code == 2
    assert "is no folder" in err


def test_texts_may_have_signs_of_equality():
    assert parse_only(["a=b=c"]) == {"a": "b=c"}
    with pytest.raises(Refused):
        parse_only(["=x"])
