"""The configuration of a run: each option's name, type, default and help, once.

The command line derives its options from these fields (`fmapviz.cli.options`), `fmapviz.visualize` takes them as keyword
arguments, Ray workers receive them, and `run.json` stores those that change pictures.
"""

from fmapviz.config.arguments import explain_arguments as explain_arguments
from fmapviz.config.checks import check_scores as check_scores
from fmapviz.config.checks import check_type as check_type
from fmapviz.config.checks import check_weights as check_weights
from fmapviz.config.checks import types_of as types_of
from fmapviz.config.execution import Engine as Engine
from fmapviz.config.execution import Part as Part
from fmapviz.config.input_options import InputOptions as InputOptions
from fmapviz.config.input_options import sides_of as sides_of
from fmapviz.config.options import COMMON as COMMON
from fmapviz.config.options import PANELS as PANELS
from fmapviz.config.options import RUNNING as RUNNING
from fmapviz.config.options import Option as Option
from fmapviz.config.options import check_glob as check_glob
from fmapviz.config.options import describe as describe
from fmapviz.config.options import options_of as options_of
from fmapviz.config.options import split as split
from fmapviz.config.renamed import renamed as renamed
from fmapviz.config.run_config import RunConfig as RunConfig
from fmapviz.config.run_config import RunInfo as RunInfo
from fmapviz.config.style import COLORMAPS as COLORMAPS
from fmapviz.config.style import Style as Style
from fmapviz.config.style import canonical_colormap as canonical_colormap
