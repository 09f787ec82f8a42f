"""The tests that know Celery's insides, on each of its versions that is promised: an environment each, beside `.venv`.

python -m tests.versions                                  # the versions that .venv does not have
python -m tests.versions --celery 5.5 --python python3.10 --python python3.13
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from celery import __version__ as installed

from tests.services import ROOT

#: What is promised, by its first two numbers.
VERSIONS = ("5.5", "5.6", "5.7")

#: Extras that the marked tests need.
EXTRAS = "postgres,mysql,redis,zstd"


class Environment:
    """A virtual environment with one version of Celery under one Python.

    Args:
        version: of Celery, by its first two numbers.
        python: that makes it; a command or a path.

    Raises:
        OSError: there is no such Python.
        subprocess.CalledProcessError: it does not run.
    """

    def __init__(self, version: str, python: str) -> None:
        ask = "import sys; print('%d.%d' % sys.version_info[:2])"
        said = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
        self.version, self._python = version, python
        self.name = f"Celery {version}, Python {said.stdout.strip()}"
        self.folder = ROOT / f".venv-celery-{version}-python-{said.stdout.strip()}"

    @property
    def _command(self) -> str:
        return str(self.folder / "bin" / "python")

    def make(self) -> None:
        """Install what the tests need, unless that was done for this pyproject.toml."""
        made, wanted = self.folder / "made-for", (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        if made.exists() and made.read_text(encoding="utf-8") == wanted:
            return
        subprocess.run([self._python, "-m", "venv", "--clear", str(self.folder)], check=True)
        pip = [self._command, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--upgrade", "pip>=25.1"], check=True)  # which knows dependency groups
        of_the_project = ["--group", "test", "--group", "services", "--editable", f".[{EXTRAS}]"]
        subprocess.run([*pip, *of_the_project, f"celery=={self.version}.*"], check=True, cwd=ROOT)
        made.write_text(wanted, encoding="utf-8")

    def test(self, arguments: Sequence[str]) -> bool:
        """Run the marked tests, and tell whether they passed."""
        command = [self._command, "-m", "pytest", "-q", "-m", "versions", *arguments]
        environ = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
        return subprocess.run(command, check=False, cwd=ROOT, env=environ).returncode == 0


def main(argv: Sequence[str] | None = None) -> int:
    """Make the environments, run the tests in each, and say what came of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__)
    others = [version for version in VERSIONS if not installed.startswith(f"{version}.")]
    parser.add_argument("--celery", action="append", help=f"a version, such as 5.5; {', '.join(others)} if not given")
    parser.add_argument("--python", action="append", help="an interpreter; this one if not given")
    options, pytest_arguments = parser.parse_known_args(argv)
    said: dict[str, str] = {}
    for python in options.python or [sys.executable]:
        for version in options.celery or others:
            try:
                environment = Environment(version, python)
                environment.make()
            except (OSError, subprocess.CalledProcessError) as error:
                said[f"Celery {version}, {python}"] = f"NOT RUN: {error}"
                continue
            print(f"{environment.name}:", flush=True)
            began = time.monotonic()
            passed = environment.test(pytest_arguments)
            said[environment.name] = f"{'passed' if passed else 'FAILED'} in {time.monotonic() - began:.0f} s"
    for name, end in said.items():
        print(f"{name}: {end}")
    return 0 if all(end.startswith("passed") for end in said.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
