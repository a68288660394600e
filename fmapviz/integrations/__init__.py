"""Callbacks for trainers of other packages: `fmapviz.integrations.lightning` and others.

The modules lie in the folder of the capability that they are a part of.
"""

from importlib.util import find_spec

_found = find_spec("fmapviz.features.watch.callbacks")
assert _found
__path__ = list(_found.submodule_search_locations or ())
