"""Callbacks for trainers of other packages: `fmapviz.integrations.lightning` and others.

Their modules are in the folders of features.
"""

from importlib.util import find_spec

_found = find_spec("fmapviz.features.watch.callbacks")
assert _found
__path__ = list(_found.submodule_search_locations or ())
