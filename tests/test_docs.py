"""The README is true: its help is current, nothing is undocumented, its examples work."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from placer import cli
from placer.scenario import parse_scenario

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
COMMANDS = sorted(cli.commands.commands)


@pytest.mark.parametrize("words", ["placer", *(f"placer {name}" for name in COMMANDS)])
def test_help_in_the_readme_is_current(words):
    """The help of every command stands in the README as the program prints it."""
    match = re.search(rf"<!-- help: {words} -->\n```text\n(.*?)```\n", README, re.DOTALL)
    assert match is not None, f"README has no help of {words}"
    arguments = [*words.split()[1:], "--help"]
    assert match[1] == CliRunner().invoke(cli.commands, arguments, prog_name="placer", terminal_width=80).output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_documented(name):
    """Each command has a section, each option is named with its help."""
    assert f"### placer {name}\n" in README
    for parameter in cli.commands.commands[name].params:
        for option in parameter.opts:
            assert option in README or option == "scenario"


def test_every_exit_code_is_documented():
    """The exit codes of errors, of bugs and of an interrupt are rows of the table."""
    from placer import errors

    codes = {0, cli.EXIT_BUG, cli.EXIT_INTERRUPTED}
    kinds = (errors.UsageError, errors.InvalidInputError, errors.InfeasibleError, errors.LimitReachedError)
    codes |= {kind.exit_code for kind in kinds}
    table = README.split("### Exit codes")[1].split("## ")[0]
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == codes


def test_every_scenario_key_is_documented():
    """Each key of the JSON Schema stands in the README's reference."""
    reference = README.split("## scenario.yaml")[1].split("## rank_map.json")[0]
    words = set(re.findall(r"[a-z_0-9]+", reference))
    schema = json.loads((ROOT / "scenarios" / "scenario.schema.json").read_text("utf-8"))
    sections = [schema, *schema["$defs"].values()]
    keys = {key for section in sections for key in section.get("properties", {})}
    assert keys
    assert keys <= words


def test_reference_scenario_is_valid():
    """The YAML of the reference, put together, is a scenario that the reader accepts."""
    reference = README.split("## scenario.yaml")[1].split("## rank_map.json")[0]
    text = "\n".join(re.findall(r"```yaml\n(.*?)```", reference, re.DOTALL))
    assert parse_scenario(text).name == "my-job"


def test_library_example_runs(tmp_path, monkeypatch, capsys):
    """The library example works as it stands."""
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    exec(code[1], {})
    assert "Proven optimal" in capsys.readouterr().out


def test_quickstart_table_is_current(tmp_path, capsys):
    """The table in the README is what the quickstart prints."""
    assert cli.main(["solve", str(ROOT / "scenarios" / "quickstart.yaml"), "-o", str(tmp_path / "m.json")]) == 0
    printed = capsys.readouterr().out
    table = re.search(r"```text\n(bytes per step.*?)```", README, re.DOTALL)
    assert table[1] in printed
    assert "96.7 % less than the default order" in printed


@pytest.mark.parametrize("name", ["main job", "tests"])
def test_ci_runs_the_commands_of_the_readme(name):
    """The marked commands are single lines, which .ci/run takes from the README itself."""
    match = re.search(rf"<!-- ci: {name} -->\n```sh\n(.*)\n```\n", README)
    assert match is not None
    assert match[1].startswith("python3 -m venv .venv && .venv/bin/pip install ")


def test_changelog_names_the_version():
    """What is released, or about to be, is in the changelog."""
    from placer import __version__

    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert f"## [{__version__}]" in text or "## [Unreleased]" in text
