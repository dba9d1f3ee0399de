"""Profiles: validated with messages that help, written from a golden node and read back."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpucluster.expectations.catalogue import find_gpu
from pytest_gpucluster.expectations.profile import (
    SECTIONS,
    Profile,
    ProfileError,
    builtin_profiles,
    load_profile,
    parse_profile,
    read_profile,
    save_profile,
)
from pytest_gpucluster.expectations.profile_errors import profile_schema
from pytest_gpucluster.facts.model import (
    Ecc,
    Fabric,
    Gpu,
    GpuPair,
    Host,
    NetworkPort,
    NodeFacts,
    NvLink,
    Pcie,
    Power,
    RemappedRows,
    Software,
    Unreadable,
)

EVERYTHING = """
name = "site-h100"
description = "ours"
[gpus]
count = 8
model = ["NVIDIA H100 80GB HBM3"]
memory_gb = 80
ecc = true
mig = false
persistence = true
[nvlink]
links = 18
version = "4.0"
all_pairs = true
[fabric]
completed = true
[pcie]
generation = 5
width = 16
[p2p]
required = true
[network]
ports = 8
kind = "infiniband"
rate_gbps = 400
required = true
[software]
driver = ">=535,<600"
cuda = ">=12.4"
nccl = ">=2.20"
torch = "==2.9.*"
[power]
limit_w = 700
[host]
memlock_unlimited = true
shm_gb = 64
[bandwidth]
all_reduce_gbs = 430
[checks]
required = ["gpucluster/*"]
optional = ["gpucluster/test_network.py::*"]
allow_warnings = ["persistence.off"]
"""


def parse(text: str) -> Profile:
    return parse_profile(text, source="site.toml", name="site", origin="site.toml")


def healthy(count: int = 8) -> NodeFacts:
    links = tuple(NvLink(i, active=True, version="4.0", remote_type="switch") for i in range(18))
    gpus = tuple(
        Gpu(
            i,
            name="NVIDIA H100 80GB HBM3",
            memory_bytes=85_520_809_984,
            ecc=Ecc(enabled=True, uncorrected_volatile=0),
            remapped_rows=RemappedRows(0, 0, pending=False, failed=False),
            mig_enabled=False,
            persistence=True,
            power=Power(limit=700.0),
            pcie=Pcie(generation=1, max_generation=5, max_width=16),
            nvlinks=links,
            fabric=Fabric(state="completed"),
        )
        for i in range(count)
    )
    pairs = tuple(
        GpuPair(a, b, "ok", "ok", "ok") for a in range(count) for b in range(a + 1, count)
    )
    ports = tuple(
        NetworkPort(f"mlx5_{i}", kind="infiniband", state="ACTIVE", rate_gbps=400.0)
        for i in range(8)
    )
    return NodeFacts(
        Host("node-1", memlock_bytes=-1, shm_bytes=64_000_000_000),
        Software(driver="535.104.05", torch="2.9.1+cu128", torch_cuda="12.8", torch_nccl="2.27.5"),
        gpus=gpus,
        pairs=pairs,
        network=(*ports, NetworkPort("eth0", state="ACTIVE", rate_gbps=25.0)),
        taken="2026-01-01T00:00:00Z",
    )


def with_gpu(facts: NodeFacts, index: int, **changes: object) -> NodeFacts:
    gpus = list(facts.gpus or ())
    gpus[index] = replace(gpus[index], **changes)
    return replace(facts, gpus=tuple(gpus))


def test_every_key_is_read() -> None:
    profile = parse(EVERYTHING)
    assert (profile.name, profile.source, profile.label) == (
        "site-h100",
        "site.toml",
        "profile site-h100",
    )
    for name in SECTIONS:
        section = getattr(profile, name)
        assert None not in vars(section).values(), name
        assert set(vars(section)) == set(profile_schema()["properties"][name]["properties"])
    assert profile.gpus.model == ("NVIDIA H100 80GB HBM3",)
    assert profile.software.driver == ">=535,<600"


def test_an_empty_profile_asks_for_nothing() -> None:
    assert parse("") == Profile(name="site", source="site.toml")


def test_whole_numbers_may_be_written_as_either_kind() -> None:
    profile = parse("gpus = {count = 8.0, memory_gb = 80}")
    assert repr((profile.gpus.count, profile.gpus.memory_gb)) == "(8, 80.0)"


def test_the_schema_is_itself_valid() -> None:
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(profile_schema())


def test_the_named_profiles_ship() -> None:
    assert builtin_profiles() == (
        "gb200-tray",
        "hgx-a100",
        "hgx-b200",
        "hgx-h100",
        "hgx-h200",
        "l40s-pcie",
    )


@pytest.mark.parametrize("name", builtin_profiles())
def test_built_in_profiles_agree_with_the_catalogue(name: str) -> None:
    profile = load_profile(name)
    assert (profile.name, profile.source) == (name, "built-in")
    assert profile.description
    assert profile.gpus.model
    for product in profile.gpus.model:
        model = find_gpu(product)
        assert model is not None
        assert profile.nvlink.links == model.nvlink_links
        assert profile.gpus.memory_gb in (None, *model.memory_gb)
        assert profile.gpus.count in (model.node_sizes or (8,))
        assert profile.pcie.generation in (None, model.pcie_generation)
        assert profile.nvlink.version == (model.nvlink.version if model.nvlink else None)


@pytest.mark.parametrize(
    ("toml", "parts"),
    [
        ("[gpus]\ncont = 8", ["unknown key gpus.cont = 8", "Did you mean count?", "memory_gb"]),
        ("[gpu]\ncount = 8", ["unknown key gpu", "Did you mean gpus?"]),
        ("[gpus]\nqqq = 8", ["unknown key gpus.qqq", "Allowed here: count, model"]),
        ('[gpus]\ncount = "8"', ['gpus.count = "8"', "a whole number from 1 to 1024"]),
        ("[gpus]\ncount = true", ["gpus.count = true", "a whole number from 1 to 1024"]),
        ("[gpus]\ncount = 2024-01-01", ["gpus.count", "2024-01-01"]),
        ("[gpus]\ncount = 0", ["gpus.count = 0", "a whole number from 1 to 1024"]),
        ("[gpus]\nmemory_gb = -1", ["gpus.memory_gb = -1", "above 0, at most 10000"]),
        ("[gpus]\nmemory_gb = nan", ["gpus.memory_gb = nan", "not a finite number"]),
        ("[power]\nlimit_w = inf", ["power.limit_w = inf", "not a finite number"]),
        ('[gpus]\necc = "on"', ['gpus.ecc = "on"', "true or false"]),
        ('[gpus]\nmodel = "H100"', ['gpus.model = "H100"', "one or more entries in brackets"]),
        ('[gpus]\nmodel = ["a", ""]', ['gpus.model[1] = ""', "non-empty text"]),
        ('[network]\nkind = "ib"', ["network.kind", "one of infiniband, roce, efa, ethernet"]),
        ("[pcie]\nwidth = 5", ["pcie.width = 5", "one of 1, 2, 4, 8, 16"]),
        ("[nvlink]\nversion = 4.0", ["nvlink.version = 4.0", 'in quotes, e.g. "4.0"']),
        ('[software]\ndriver = "535"', ['software.driver = "535"', '">=535"']),
        ('[software]\ncuda = ""', ['software.cuda = ""', "version specifier"]),
        ("[checks]\nrequired = []", ["checks.required = []", "one or more entries"]),
        ('[checks]\nallow_warnings = ["x"]', ["checks.allow_warnings[0]", "finding code"]),
        ('name = "../../x"', ["name", "letters, digits"]),
        ("gpus = 3", ["gpus = 3", "a table with count, model"]),
        ("[gpus\ncount = 8", ["not valid TOML", "line 1"]),
        ("x = " + "[" * 5000, ["not valid TOML"]),
        ("[gpus]\ncount = 8\ncount = 8\n", ["not valid TOML", "line 3"]),
        ('[gpus]\n"c\\u001b[31m" = 1', ["unknown key", "\\u001b"]),
    ],
)
def test_a_wrong_profile_says_where_what_and_what_is_allowed(toml: str, parts: list[str]) -> None:
    with pytest.raises(ProfileError) as caught:
        parse(toml)
    message = str(caught.value)
    assert message.startswith("site.toml: ")
    assert all(part in message for part in parts), message
    assert message.isprintable()


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ProfileError) as caught:
        parse('[gpus]\ncount = 0\nmig = "no"\n[pci]\nwidth = 16')
    assert len(str(caught.value).splitlines()) == 3


def test_an_unknown_built_in_name_lists_those_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProfileError) as caught:
        load_profile("hgx-h10")
    assert "Did you mean hgx-h100?" in str(caught.value)
    assert all(name in str(caught.value) for name in builtin_profiles())
    for reference in ("", "quux", "\x1b[31m"):
        with pytest.raises(ProfileError, match="no built-in profile"):
            load_profile(reference)


def test_a_profile_is_loaded_from_a_path_with_or_without_suffix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site.toml").write_text("gpus.count = 4")
    (tmp_path / "plain").write_text("gpus.count = 2")
    assert load_profile(str(tmp_path / "site.toml")) == Profile(
        "site", str(tmp_path / "site.toml"), gpus=SECTIONS["gpus"](count=4)
    )
    monkeypatch.chdir(tmp_path)
    assert load_profile("plain").gpus.count == 2


def test_files_that_are_no_profiles_are_told_apart(tmp_path: Path) -> None:
    binary, huge, fifo = tmp_path / "a.toml", tmp_path / "b.toml", tmp_path / "c.toml"
    binary.write_bytes(b"# \xff")
    huge.write_bytes(b"#" * 1_000_001)
    os.mkfifo(fifo)
    for path, reason in (
        (binary, "not UTF-8"),
        (huge, "larger than"),
        (fifo, "not a regular file"),
        (tmp_path, "is a directory"),
        (tmp_path / "none.toml", "no such file"),
    ):
        with pytest.raises(ProfileError, match=reason) as caught:
            load_profile(str(path))
        assert str(path) in str(caught.value)


def test_an_unreadable_file_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "site.toml"
    path.write_text("")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ProfileError, match="cannot be read: Permission denied"):
        read_profile(path)


def read_or_explained(text: str) -> Profile | None:
    """The profile, or ``None`` for a `ProfileError` that names the file; else the test fails."""
    try:
        return parse(text)
    except ProfileError as error:
        explained = str(error).startswith("site.toml: ")
    assert explained
    return None


@settings(deadline=None, database=None)
@given(st.text(max_size=60))
def test_any_text_is_a_profile_or_a_profile_error(text: str) -> None:
    read_or_explained(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@settings(deadline=None, database=None)
@given(section=st.sampled_from(sorted(SECTIONS)), data=st.data())
def test_any_value_of_a_known_key_is_taken_or_explained(section: str, data: st.DataObject) -> None:
    keys = sorted(profile_schema()["properties"][section]["properties"])
    key, value = data.draw(st.sampled_from(keys)), data.draw(json_values)
    profile = read_or_explained(f"[{section}]\n{key} = {json.dumps(value)}")
    assert profile is None or getattr(getattr(profile, section), key) is not None


def test_a_golden_node_becomes_a_profile_that_loads_again(tmp_path: Path) -> None:
    path = tmp_path / "golden.toml"
    saved = save_profile(healthy(), path)
    assert saved == load_profile(str(path))
    assert [p.name for p in tmp_path.iterdir()] == ["golden.toml"]
    assert saved.name == "golden"
    assert saved.description == "golden node node-1, taken 2026-01-01T00:00:00Z"
    assert (saved.gpus.count, saved.gpus.memory_gb, saved.gpus.mig) == (8, 85.5, False)
    assert (saved.nvlink.links, saved.nvlink.version, saved.nvlink.all_pairs) == (18, "4.0", True)
    assert (saved.pcie.generation, saved.pcie.width) == (5, 16)
    assert saved.fabric.completed
    assert saved.p2p.required
    assert (saved.network.ports, saved.network.kind, saved.network.rate_gbps) == (
        8,
        "infiniband",
        400.0,
    )
    assert saved.software.torch == "==2.9.1"
    assert saved.power.limit_w == 700
    assert (saved.host.memlock_unlimited, saved.host.shm_gb) == (True, 64.0)


def test_what_differs_or_is_unknown_stays_out_of_the_profile(tmp_path: Path) -> None:
    facts = with_gpu(healthy(), 3, power=Power(limit=500.0), persistence=None)
    facts = replace(facts, network=None, pairs=None, software=Software(driver="odd version"))
    saved = save_profile(facts, tmp_path / "golden.toml")
    assert saved.power.limit_w is None
    assert saved.gpus.persistence is None
    assert saved.network == SECTIONS["network"]()
    assert saved.software == SECTIONS["software"]()
    assert saved.p2p.required is None


def test_names_from_the_machine_are_data(tmp_path: Path) -> None:
    host = 'x"]\n[gpus]\ncount = 1 \x1b[31m'
    facts = replace(healthy(), host=Host(host))
    saved = save_profile(facts, tmp_path / "od d\n.toml")
    assert saved.gpus.count == 8
    assert saved.description.startswith(f"golden node {host}")
    assert saved.name == "od_d_"


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (NodeFacts(Host("n"), gpus=()), "no NVIDIA GPU"),
        (
            NodeFacts(Host("n"), unreadable=(Unreadable("nvml", "driver mismatch"),)),
            "could not be read (driver mismatch)",
        ),
        (with_gpu(healthy(), 2, name="NVIDIA H200"), "mixed (NVIDIA H100 80GB HBM3, NVIDIA H200)"),
        (with_gpu(healthy(), 2, name=None), "not every GPU tells its name"),
        (with_gpu(healthy(), 2, lost="fell off the bus"), "GPU2 is lost (fell off the bus)"),
        (with_gpu(healthy(), 2, nvlinks=()), "GPU2 has 0 of 18 NVLinks up"),
        (
            with_gpu(healthy(), 2, remapped_rows=RemappedRows(0, 9, pending=False, failed=True)),
            "GPU2 has a row remapping failed",
        ),
        (with_gpu(healthy(), 2, ecc=Ecc(uncorrected_volatile=1)), "GPU2 has uncorrectable"),
    ],
)
def test_a_node_that_is_no_model_for_others_is_refused(
    facts: NodeFacts, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ProfileError) as caught:
        save_profile(facts, tmp_path / "golden.toml")
    assert reason in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_eight_gpus_with_every_link_down_are_no_model(tmp_path: Path) -> None:
    facts = healthy()
    for index in range(8):
        facts = with_gpu(facts, index, nvlinks=tuple(NvLink(i, active=False) for i in range(18)))
    with pytest.raises(ProfileError, match="GPU7 has 0 of 18"):
        save_profile(facts, tmp_path / "golden.toml")


def test_bridge_products_without_bridges_are_a_model(tmp_path: Path) -> None:
    gpus = tuple(Gpu(i, name="NVIDIA A40", nvlinks=()) for i in range(4))
    saved = save_profile(NodeFacts(Host("n"), gpus=gpus), tmp_path / "golden.toml")
    assert saved.nvlink.links == 0


def test_cards_with_and_without_a_bridge_are_a_model_that_says_nothing_of_links(
    tmp_path: Path,
) -> None:
    bridged = tuple(NvLink(i, active=True) for i in range(4))
    gpus = tuple(Gpu(i, name="NVIDIA A40", nvlinks=bridged if i < 2 else ()) for i in range(4))
    saved = save_profile(NodeFacts(Host("n"), gpus=gpus), tmp_path / "golden.toml")
    assert saved.nvlink.links is None


def test_a_failed_write_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "golden.toml"
    path.write_text("gpus.count = 2")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ProfileError, match=r"golden\.toml: cannot be written: No space left"):
        save_profile(healthy(), path)
    assert path.read_text() == "gpus.count = 2"
    assert [p.name for p in tmp_path.iterdir()] == ["golden.toml"]


def test_a_missing_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot be written: No such file"):
        save_profile(healthy(), tmp_path / "none" / "golden.toml")
