"""The documentation says what the code does."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from pytest_gpucluster.collection import level_by_check
from pytest_gpucluster.expectations.profile import builtin_profiles, parse_profile
from pytest_gpucluster.options import OPTIONS
from pytest_gpucluster.requirements import MARKS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_page_of_checks_is_generated_from_their_docstrings() -> None:
    render = runpy.run_path(str(ROOT / "docs/generate.py"))["render"]
    assert (ROOT / "docs/checks.md").read_text() == render()


def test_every_option_named_in_the_docs_exists() -> None:
    known = {option.flag for option in OPTIONS}
    for page in PAGES:
        named = set(re.findall(r"--gpucluster(?:-[a-z]+(?:-[a-z]+)*)?", page.read_text()))
        assert named - {"--gpucluster-NAME"} <= known, page


def test_every_mark_and_built_in_profile_is_documented() -> None:
    own_checks = (ROOT / "docs/own-checks.md").read_text()
    assert all(f"@{name}" in own_checks for name in MARKS)
    profiles = (ROOT / "docs/profiles.md").read_text()
    assert all(f"`{name}`" in profiles for name in builtin_profiles())


def test_the_documented_profile_is_one() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/profiles.md").read_text(), re.S)
    profile = parse_profile(text, source="docs", name="docs", origin="docs")
    assert profile.name == "site-h100"
    assert profile.checks.allow_warnings == ("nccl.stray_variable",)


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page}: {target}"


def test_the_detection_table_covers_every_check() -> None:
    table = (ROOT / "docs/detection.md").read_text()
    for check in level_by_check():
        assert f"`{check.removeprefix('gpucluster/')}`" in table
