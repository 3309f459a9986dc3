"""What holds for every command: help, exit codes, one clear line."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from frontend.cli import main
from tests.unit.cli.conftest import Strata

REPOSITORY = Path(__file__).resolve().parents[3]


def commands(group: click.Group = main, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


ALL = dict(commands())
#: Those that run a part or make a new installation, and answer nothing.
WITHOUT_JSON = {("setup",), ("keeper",), ("worker",)}


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_says_what_it_does_and_knows_json(strata: Strata, path: tuple[str, ...]) -> None:
    said = strata.ok(*path, "--help")
    assert f"Usage: strata {' '.join(path)} " in said
    assert len(ALL[path].help or "") > 20
    assert ("--json" in said) is (path not in WITHOUT_JSON)
    assert all(parameter.help for parameter in ALL[path].params
               if isinstance(parameter, click.Option) and parameter.name != "role")


def test_every_topic_has_examples_of_commands_that_exist(strata: Strata) -> None:
    for name, topic in main.commands.items():
        if isinstance(topic, click.Group):
            said = strata.ok(name, "--help")
            examples = [line.split() for line in said.splitlines() if line.startswith("    strata ")]
            assert examples
            assert all(tuple(words[1:3]) in ALL for words in examples)


def test_the_readme_names_every_command() -> None:
    readme = (REPOSITORY / "README.md").read_text()
    names = [" ".join(path) for path in ALL if path not in WITHOUT_JSON]
    assert [name for name in names if f"`strata {name}" not in readme] == []


@pytest.mark.parametrize(("args", "code", "said"), [
    (("users", "create", "nonsense"), 1, "no email"), (("keys", "revoke", "key_x"), 1, "no key"),
    (("users", "disable", "nobody@example.org"), 1, "no account"), (("keys", "rotate", "key_x"), 1, "no key"),
    (("keys", "create", "nobody@example.org", "--name", "x"), 1, "no account"),
    (("audit", "list", "--account", "nobody@example.org"), 1, "no account"),
    (("keys", "create", "a@b.c"), 2, "--name"), (("nonsense",), 2, "nonsense"), (("--nonsense",), 2, "nonsense"),
    (("users", "nonsense"), 2, "nonsense"), (("users", "create"), 2, "EMAIL"),
    (("users", "create", "a@b.c", "--password-stdin"), 2, "password"),
    (("users", "create", "a@b.c", "--role", "root"), 2, "root"),
    (("keys", "create", "a@b.c", "--name", "x", "--expires", "soon"), 2, "2027-01-31"),
    (("keys", "rotate", "key_x", "--overlap", "1 day"), 2, "24h"), (("audit", "list", "--limit", "0"), 2, "limit"),
    (("audit", "list", "--action", "nonsense"), 2, "key:revoke"),
])
def test_exit_codes_and_one_clear_line(strata: Strata, args: tuple[str, ...], code: int, said: str) -> None:
    done = strata(*args)
    assert (done.exit_code, done.stdout) == (code, "")
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


def test_a_wrong_setting_is_one_line(strata: Strata) -> None:
    done = strata("users", "list", STRATA_PORT="http")
    assert done.exit_code == 1
    assert done.stderr == "Error: STRATA_PORT must be a whole number from 1 to 65535\n"


def test_a_database_that_cannot_be_used_is_one_line(strata: Strata, tmp_path: Path) -> None:
    (tmp_path / "no-database").write_text("hello" * 1000)
    for url in (f"sqlite:///{tmp_path / 'no-database'}", f"postgresql://nobody@/nothing?host={tmp_path}"):
        done = strata("users", "list", STRATA_DATABASE_URL=url)
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr


def test_a_topic_without_a_command_shows_its_help(strata: Strata) -> None:
    for args in ((), ("users",)):
        done = strata(*args)
        assert done.exit_code == 2
        assert "Examples:" in done.stderr
