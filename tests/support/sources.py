"""What every source of models must have."""

import inspect
from importlib import import_module

from fmapviz.core import registry
from fmapviz.models.sources.base import ModelSource


def check_protocol(name):
    """Check that the module of a source has the functions of the protocol, with their parameters."""
    source = registry.sources()[name]
    module = import_module(source.module)
    members = {key: member for key, member in vars(ModelSource).items() if inspect.isfunction(member) and key[0] != "_"}
    assert sorted(members) == ["load"]
    for key, member in members.items():
        signature = inspect.signature(member)
        parameters = [each for each in signature.parameters.values() if each.name != "self"]
        assert inspect.signature(getattr(module, key)) == signature.replace(parameters=parameters)
    assert not (source.names and hasattr(module, "model_names"))  # which would not be called
