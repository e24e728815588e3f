"""The workflow for a public server runs targets of the Makefile and commands of the README, over every extra that users install."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def jobs():
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"]


def test_its_commands_are_those_of_makefile_and_readme(jobs):
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    readme = (ROOT / "README.md").read_text()
    strange = []
    for command in [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]:
        words = command.split()
        if words[0] == "make":
            known = len(words) == 2 and words[1] in targets
        elif words[0] == "pip":
            known = (
                command == "pip install 'torch==${{ matrix.torch }}' '.${{ matrix.extras }}'" and "`pip install .`" in readme
            )
        else:
            known = f"`{command}`" in readme
        if not known:
            strange.append(command)
    assert strange == []


def test_its_matrix_has_every_extra_of_users_and_the_oldest_torch_and_python(jobs):
    developers = {"dev", "notebooks", "docs", "bench"}
    extras = set(PROJECT["optional-dependencies"]) - developers
    matrix = jobs["installed"]["strategy"]["matrix"]
    assert {extra.strip("[]") for extra in matrix["extras"]} == {"", *extras}
    oldest = next(d.removeprefix("torch>=") for d in PROJECT["dependencies"] if d.startswith("torch>="))
    assert matrix["torch"][0] == f"{oldest}.*"
    assert f">={jobs['tests']['strategy']['matrix']['python'][0]}" == PROJECT["requires-python"]
