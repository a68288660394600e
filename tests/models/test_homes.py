"""The modules of the user that define a network of library classes."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest
from torch import nn

from fmapviz.models.homes import find_homes

NETWORK = nn.Sequential(nn.Conv2d(3, 4, 3))


@pytest.fixture
def put(monkeypatch, tmp_path):
    """Import a module from a file, under a name; without other modules, the candidates are the test's own."""
    plain = {name: each for name, each in sys.modules.items() if "preprocess" not in getattr(each, "__dict__", {})}
    monkeypatch.setattr(sys, "modules", plain)

    def put(name, file=None, **values):
        module = ModuleType(name)
        vars(module).update({"__file__": str(file or tmp_path / f"{name}.py")} | values)
        sys.modules[name] = module
        return module

    return put


def installed(name):
    return Path(sysconfig.get_path("purelib"), name)


def test_the_only_preprocessing_of_the_user_is_taken(put):
    put("of_a_library", installed("of_a_library.py"), preprocess=len)
    own = put("own", preprocess=len)
    sys.modules["the_same"] = own
    homes, notice = find_homes(NETWORK)
    assert homes == [own]
    assert "own.preprocess is taken" in notice


def test_a_preprocessing_defined_after_a_first_look_is_found(put):
    own = put("own")
    assert find_homes(NETWORK) == ([], "")
    own.preprocess = len
    assert find_homes(NETWORK)[0] == [own]


def test_a_module_that_takes_the_name_of_a_library_is_found(put):
    put("name", installed("name.py"), preprocess=len)
    assert find_homes(NETWORK) == ([], "")
    own = put("name", preprocess=len)
    assert find_homes(NETWORK)[0] == [own]


def test_a_library_is_not_looked_into_again(put):
    looks = []

    class Noting(str):
        __slots__ = ()

        def startswith(self, prefix):
            looks.append(prefix)
            return str.startswith(self, prefix)

    library = put("of_a_library", preprocess=len)
    library.__file__ = Noting(installed("of_a_library.py"))
    for _ in range(3):
        assert find_homes(NETWORK) == ([], "")
    assert len(looks) == 1
