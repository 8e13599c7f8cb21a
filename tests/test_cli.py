"""The command line around the commands."""

import subprocess
import sys

import pytest

from lmc_grouped.cli import COMMANDS, main


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as leaving:
        main(["--help"])
    assert leaving.value.code == 0
    out = capsys.readouterr().out
    assert all(command.name in out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_has_help_of_its_own(command, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as leaving:
        main([command.name, "--help"])
    assert leaving.value.code == 0
    assert "--help" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["certify", "--nonsense"]])
def test_arguments_nobody_knows_end_with_status_2(
    argv: list[str], capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as leaving:
        main(argv)
    assert leaving.value.code == 2
    assert "usage: lmc-grouped" in capsys.readouterr().err


def test_the_command_line_loads_no_engine_and_no_other_command():
    code = (
        "import sys, lmc_grouped.cli as cli; cli.build_parser(None); "
        "loaded = {name.split('.')[0] for name in sys.modules} & {'torch', 'vllm', 'lmcache'}; "
        "loaded |= {c.module for c in cli.COMMANDS} & set(sys.modules); "
        "print(', '.join(sorted(loaded)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")
