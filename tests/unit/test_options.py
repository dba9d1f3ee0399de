"""Options: which value is in force, where it came from, and what a wrong one is told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_gpucluster.options import (
    OPTIONS,
    Setting,
    Settings,
    defaults,
    parse_count,
    parse_duration,
    parse_flag,
    resolve,
)

# One wrong value for every option that can be wrong, and what the message must offer.
WRONG = {
    "debug-rank": ("last", "Give a number from 0"),
    "": ("maybe", "Choose true or false"),
    "level": ("fast", "Choose inventory, standard, extended or soak"),
    "rehearse": ("perhaps", "Choose true or false"),
    "ranks": ("0", "whole number from 1 to 4096"),
    "missing": ("ignore", "Choose auto, skip or fail"),
    "save-profile": (" ", "Give a file or folder"),
    "evidence": (" ", "Give a file or folder"),
    "report": (" ", "Give a file or folder"),
    "timeout": ("soon", "Give for example 90s, 30m or 1h"),
    "soak": ("-1h", "Give for example 90s, 30m or 1h"),
}
BY_NAME = {option.name: option for option in OPTIONS}
ANY_TEXT_IS_RIGHT = {"profile"}  # a name or a file: looked up when it is used


def settings(
    pytester: pytest.Pytester,
    *arguments: str,
    environ: Mapping[str, str] | None = None,
    ini: str = "",
) -> Settings:
    if ini:
        pytester.makeini(f"[pytest]\n{ini}")
    config = pytester.parseconfig(*arguments)
    return resolve(config, environ or {})


def test_without_anything_the_defaults_are_in_force(pytester: pytest.Pytester) -> None:
    found = settings(pytester)
    assert found == defaults()
    assert not found.enabled
    assert found["level"] == "standard"
    assert found["missing"] == "auto"
    assert found["timeout"] == 120
    assert found["report"] == Path("gpucluster-report")
    assert {found.source(option.name) for option in OPTIONS} == {"default"}


def test_an_option_outranks_the_environment_which_outranks_the_ini_file(
    pytester: pytest.Pytester,
) -> None:
    environ = {"GPUCLUSTER_LEVEL": "extended"}
    ini = "gpucluster_level = soak"
    by_ini = settings(pytester, ini=ini)
    by_environment = settings(pytester, environ=environ, ini=ini)
    by_option = settings(pytester, "--gpucluster-level=inventory", environ=environ, ini=ini)
    assert (by_ini["level"], by_ini.source("level")) == ("soak", "ini")
    assert by_environment["level"] == "extended"
    assert by_environment.source("level") == "environment GPUCLUSTER_LEVEL"
    assert (by_option["level"], by_option.source("level")) == ("inventory", "option")


def test_an_empty_variable_counts_as_not_set(pytester: pytest.Pytester) -> None:
    found = settings(pytester, environ={"GPUCLUSTER_LEVEL": ""}, ini="gpucluster_level = soak")
    assert found["level"] == "soak"


def test_flags_can_be_set_from_all_three_places(pytester: pytest.Pytester) -> None:
    assert settings(pytester, "--gpucluster").enabled
    assert settings(pytester, environ={"GPUCLUSTER": "yes"}).enabled
    assert not settings(pytester, environ={"GPUCLUSTER": "0"}).enabled
    assert settings(pytester, ini="gpucluster_rehearse = true")["rehearse"] is True


def test_a_flag_on_the_command_line_outranks_a_variable_that_says_no(
    pytester: pytest.Pytester,
) -> None:
    found = settings(pytester, "--gpucluster", environ={"GPUCLUSTER": "off"})
    assert found.by_name[""] == Setting(True, "option")


def test_the_environment_can_switch_off_what_the_ini_file_switches_on(
    pytester: pytest.Pytester,
) -> None:
    found = settings(pytester, environ={"GPUCLUSTER": "no"}, ini="gpucluster = true")
    assert found.by_name[""] == Setting(False, "environment GPUCLUSTER")


def test_every_option_that_can_be_wrong_has_a_wrong_value_here() -> None:
    assert set(WRONG) | ANY_TEXT_IS_RIGHT == set(BY_NAME)


@pytest.mark.parametrize("name", [name for name in WRONG if BY_NAME[name].metavar is not None])
def test_a_wrong_option_names_itself_and_what_is_allowed(
    name: str, pytester: pytest.Pytester
) -> None:
    value, allowed = WRONG[name]
    flag = f"--gpucluster-{name}"
    with pytest.raises(pytest.UsageError) as wrong:
        settings(pytester, f"{flag}={value}")
    assert str(wrong.value).startswith(f"{flag}={value}: ")
    assert allowed in str(wrong.value)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_variable_names_itself_and_what_is_allowed(
    name: str, pytester: pytest.Pytester
) -> None:
    value, allowed = WRONG[name]
    variable = BY_NAME[name].variable
    with pytest.raises(pytest.UsageError) as wrong:
        settings(pytester, environ={variable: value})
    assert str(wrong.value).startswith(f"{variable}={value}: ")
    assert allowed in str(wrong.value)


@pytest.mark.parametrize("name", [name for name, (value, _) in WRONG.items() if value.strip()])
def test_a_wrong_ini_key_names_itself_and_what_is_allowed(
    name: str, pytester: pytest.Pytester
) -> None:
    value, allowed = WRONG[name]
    key = BY_NAME[name].key
    with pytest.raises(pytest.UsageError) as wrong:
        settings(pytester, ini=f"{key} = {value}")
    assert str(wrong.value).startswith(f"ini key {key}={value}: ")
    assert allowed in str(wrong.value)


def test_a_wrong_option_ends_the_run_as_a_usage_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest_inprocess("--gpucluster-level=fast")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: --gpucluster-level=fast: unknown value 'fast'. Choose inventory, *"]
    )


def test_help_works_whatever_the_settings_say(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCLUSTER_LEVEL", "fast")
    result = pytester.runpytest_inprocess("--help")
    assert result.ret == 0
    for option in OPTIONS:
        result.stdout.fnmatch_lines([f"*{option.flag}*"])
        result.stdout.fnmatch_lines([f"*{option.key} (string)*"])


def test_every_option_is_declared_under_one_prefix() -> None:
    assert BY_NAME["save-profile"].flag == "--gpucluster-save-profile"
    assert BY_NAME["save-profile"].variable == "GPUCLUSTER_SAVE_PROFILE"
    assert BY_NAME["save-profile"].key == "gpucluster_save_profile"
    assert BY_NAME[""].flag == "--gpucluster"
    assert BY_NAME[""].variable == "GPUCLUSTER"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("30m", 1800), ("1.5h", 5400), ("1d", 86400), ("30d", 2592000)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "0", "-1", "1w", "31d", "nan", "inf", "1h30m", "1_s!"])
def test_texts_that_are_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


def test_counts() -> None:
    assert [parse_count(text) for text in ("1", " 8 ", "4096")] == [1, 8, 4096]


@pytest.mark.parametrize("text", ["", "0", "-2", "4097", "2.0", "two", "1e3"])
def test_texts_that_are_no_count(text: str) -> None:
    with pytest.raises(ValueError, match="is not a count"):
        parse_count(text)


@pytest.mark.parametrize("text", ["1", "true", "YES", " on "])
def test_words_for_yes(text: str) -> None:
    assert parse_flag(text) is True


@pytest.mark.parametrize("text", ["0", "false", "No", "off "])
def test_words_for_no(text: str) -> None:
    assert parse_flag(text) is False


@pytest.mark.parametrize("text", ["", "2", "y", "enable"])
def test_words_for_neither(text: str) -> None:
    with pytest.raises(ValueError, match="neither true nor false"):
        parse_flag(text)


def test_paths_may_start_at_home(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/operator")
    found = settings(pytester, "--gpucluster-report=~/reports")
    assert found["report"] == Path("/home/operator/reports")


@pytest.mark.parametrize(
    ("chosen", "included"),
    [
        ("inventory", ["inventory"]),
        ("standard", ["inventory", "standard"]),
        ("extended", ["inventory", "standard", "extended"]),
        ("soak", ["inventory", "standard", "extended", "soak"]),
    ],
)
def test_a_level_includes_the_lower_ones(
    chosen: str, included: list[str], pytester: pytest.Pytester
) -> None:
    found = settings(pytester, f"--gpucluster-level={chosen}")
    levels = ("inventory", "standard", "extended", "soak")
    assert [level for level in levels if found.level_includes(level)] == included
