"""The list of faults that `scripts/mutation_check` plants fits the code as it is."""

import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
MUTATIONS = tomllib.loads((ROOT / "tests/mutations.toml").read_text())["mutation"]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation["name"])
def test_text_that_a_mutation_replaces_is_once_in_its_file(mutation):
    assert {*mutation} == {"name", "file", "old", "new", "test"}
    assert (ROOT / mutation["file"]).read_text().count(mutation["old"]) == 1
    assert mutation["new"] != mutation["old"]


def test_names_of_mutations_are_their_own():
    names = [mutation["name"] for mutation in MUTATIONS]
    assert len({*names}) == len(names)
